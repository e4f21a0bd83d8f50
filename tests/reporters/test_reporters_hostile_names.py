"""Whatever names a spec or a plugin brings in, every format keeps its structure: that of a result with tame names."""

import csv
import dataclasses
import io
import json
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len
from support import results as factory
from support.claims_oracle import PRIVATE
from support.schemas import registry_errors, sarif_errors

from dpspec.contract import Assumption, FrozenMap
from dpspec.contract.results import Result
from dpspec.reporters import ci, markdown, statement, terminal
from dpspec.reporters import data_files as csv_format
from dpspec.reporters import data_files as json_format
from dpspec.reporters import deployments_registry as registry
from dpspec.results.codec import result_schema

#: Text that means something to a terminal, a shell, a browser, Markdown, YAML, XML, a spreadsheet or a CI runner.
HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "'\"><svg onload=1><!--",
    "]]></testcase><evil/>",
    "[click](javascript:alert(1)) ![x](http://e.example/x.png) <b> `code` | cell | **bold**",
    "www.example.org and mail@example.org and https://example.org #1 @everyone",
    "::error file=a,line=1::owned\n::set-output name=x::y",
    "##[error]owned\r\n::warning::owned",
    "=HYPERLINK(1)",
    "\x1b[31mred\x1b[0m\u202egnp.exe \u200b",
    "[bold red]markup[/]",
    "--- !!python/object:os.system\n- x: &a [*a]",
    "# heading\n\n- list\n\n> quote\n```\nfence",
    "\u2028\u2029\x00\x07",
    "\N{PILE OF POO}\N{ZERO WIDTH JOINER}\N{HEBREW LETTER ALEF}\u05d0\u0627",
    "$x^2$ \\textbf{x} ~~gone~~ :smile:",
)

TAME = "name"


def result(text: str) -> Result:
    """A result in which everything that a spec or a plugin can name is ``text``."""
    verdicts = tuple(
        factory.verdict(f"{i}{text}", text=text, reason=text, quantity=text, verdict=name, expected=False)
        for i, name in enumerate(("refuted", "contradicted", "open"))
    )
    assumption = Assumption(name=text, status="declared", text=text, test=text)
    base = factory.audit()
    findings = tuple(
        dataclasses.replace(finding, method=text, source=text, quantity=text, assumptions=(assumption,))
        for finding in base.findings
    )
    series = factory.series({f"x{text}": [text], f"y{text}": [1.0]}, name=text, title=text, source=text)
    claims = [{"id": verdict.claim, "kind": "approx-dp", "epsilon": 3.0, "delta": 1e-6} for verdict in verdicts]
    audit = dataclasses.replace(
        base,
        name=f"a{text}",
        source=text,
        document=FrozenMap(
            {
                "name": text,
                "description": text,
                "claims": claims,
                "mechanism": {"kind": text, text: text},
                "threat_model": {"unit": text, "adjacency": text, "access": text, "group_size": [1]},
            }
        ),
        verdicts=verdicts,
        conformance=factory.conformance(expected=False, reason=text),
        findings=findings,
        series=(series,),
        checks=tuple(dataclasses.replace(check, assumption=text, test=text, note=text) for check in base.checks),
        notes=(text,),
        places=FrozenMap({verdict.claim: {"file": text, "line": 3, "column": 1} for verdict in verdicts}),
    )
    environment = FrozenMap({"command": ["dpspec", "run", text], "python": text, "plugins": {text: text}})
    return factory.result(audit, environment=environment, notes=(text,))


def tokens(text: str) -> list[str]:
    """The structure of a Markdown page by a parser that knows nothing of dpspec."""
    found = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        found.append(token.content if token.type.startswith("html") else token.type)
        found += [
            f"{child.type} {child.content if child.type == 'html_inline' else ''}"
            for child in token.children or ()
            if child.type not in ("text", "text_special", "softbreak")
        ]
    return found


def xml(text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(element.tag, tuple(element.attrib)) for element in ET.fromstring(text).iter()]


def commands(text: str) -> list[str]:
    lines = text.splitlines()
    assert all(re.fullmatch(r"::(error|warning|notice) [^:]*::.*", line) for line in lines)
    return [line.split(" ")[0] for line in lines]


def cells(text: str) -> list[int]:
    rows = list(csv.reader(io.StringIO(text)))
    assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for row in rows for cell in row)
    return [len(row) for row in rows]


def records(text: str) -> Any:
    found = list(yaml.safe_load_all(text))
    assert [e for record in found for e in registry_errors(record) if "To be filled in" not in e] == []
    return [sorted(record["deployment"]) for record in found]


def findings(text: str) -> list[int]:
    document = json.loads(text)
    assert sarif_errors(document) == []
    return [len(run["results"]) for run in document["runs"]]


@cache
def validator() -> Any:
    """Of results; the schema itself, which is checked here, is the same for all of them."""
    schema = result_schema()
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def shape(text: str) -> int:
    document = json.loads(text, parse_constant=pytest.fail)
    validator().validate(document)
    return len(document["audits"])


def keys(text: str) -> Any:
    """The structure of JSON without its texts."""

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: of(item) for key, item in value.items()}
        return [of(item) for item in value] if isinstance(value, list) else type(value).__name__

    return of(json.loads(text, parse_constant=pytest.fail))


def lines(text: str) -> bool:
    """Nothing in a log moves the cursor or commands the runner."""
    assert all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in text.replace("\n", ""))
    return any(line.lstrip().startswith(("::", "##[")) for line in text.split("\n"))


FORMATS: dict[str, tuple[Callable[[Result], str], Callable[[str], Any]]] = {
    "csv": (csv_format.render_csv, cells),
    "github": (ci.render_github, commands),
    "json": (json_format.render_json, shape),
    "junit": (ci.render_junit, xml),
    "markdown": (markdown.render, tokens),
    "registry": (registry.render, records),
    "sarif": (ci.render_sarif, findings),
    "statement": (statement.render, tokens),
    "statement-json": (statement.render_json, keys),
    "text": (terminal.render, lines),
}


@cache
def due(format_: str) -> Any:
    render, structure = FORMATS[format_]
    return structure(render(result(TAME)))


@pytest.mark.family
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_changes_no_structure(format_: str, text: str) -> None:
    render, structure = FORMATS[format_]
    assert structure(render(result(text))) == due(format_)


@pytest.mark.parametrize("format_", FORMATS)
@given(text=st.text(max_size=40).filter(lambda text: text.strip() and text not in PRIVATE))
def test_no_text_at_all_does(format_: str, text: str) -> None:
    """But for the names of quantities, which hypothesis draws from our own modules: epsilons make a guarantee."""
    render, structure = FORMATS[format_]
    assert structure(render(result(text))) == due(format_)


@pytest.mark.parametrize("text", HOSTILE)
def test_the_terminal_keeps_to_its_columns(text: str) -> None:
    short = FrozenMap({"command": ["dpspec"]})
    shown = terminal.render(dataclasses.replace(result(text), environment=short), width=80)
    assert max(cell_len(line) for line in shown.split("\n")) <= 80
