"""Facts in a file: the keys of a spec, errors with their lines, and no effect on verdicts."""

from pathlib import Path

import pytest

from dpspec.contract import FrozenMap
from dpspec.language.declared_facts import read_declared_facts, with_declared_facts

FACTS = """\
owner: Clinic A
contact: privacy@clinic.example
deployment: {trust_model: central, operator: B. Person}
data: {collection: {name: Visits of 2024}}
"""


def test_the_facts_of_a_file_are_those_of_a_spec(tmp_path: Path) -> None:
    file = tmp_path / "facts.yaml"
    file.write_text(FACTS)
    found = read_declared_facts(file)
    assert found.diagnostics == ()
    document = with_declared_facts({"dpspec": 1, "data": FrozenMap({"kind": "declared", "records": 3})}, found.facts)
    assert document["data"] == {"kind": "declared", "records": 3, "collection": {"name": "Visits of 2024"}}
    assert document["deployment"] == {"trust_model": "central", "operator": "B. Person"}
    assert (document["dpspec"], document["owner"]) == (1, "Clinic A")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("owner: A\ndeployment:\n  trust_model: centrall\n", 3, "did you mean 'central'?"),
        ("deployment: {operatr: B}\n", 1, "did you mean 'operator'?"),
        ("owner: A\nmechanism: {kind: group}\n", 2, "unknown key 'mechanism'"),
        ("owner: A\ndata: {kind: csv}\n", 2, "unknown key 'kind' in data"),
        ("owner: A\nowner: B\n", 2, "owner"),
        ("- owner\n", 1, "map"),
        ("owner: [\n", 2, ""),
        ("", 1, ""),
    ],
)
def test_errors_have_their_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    file = tmp_path / "facts.yaml"
    file.write_text(text)
    found = read_declared_facts(file)
    assert found.facts == {}
    first = found.diagnostics[0]
    assert first.span is not None
    assert (first.span.file, first.span.line) == (str(file), line)
    assert message in first.message


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    (diagnostic,) = read_declared_facts(tmp_path / "none.yaml").diagnostics
    assert diagnostic.message == "no such file"
