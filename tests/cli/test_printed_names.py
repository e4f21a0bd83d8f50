"""``dpspec explain`` of the names of assumptions, channels, checks and rules."""

import ast
from pathlib import Path

import pytest

from dpspec.cli.app import main
from dpspec.cli.printed_names import printed_names
from dpspec.registry.loader import load_catalog
from dpspec.reporters.names import CHECKED, TERMS
from dpspec.stats.conformance.table import TABLE

ROOT = Path(__file__).parents[2]

#: The assumption of estimates, whose text lists the missing quantities.
UNNAMED = {"not-measured"}


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    return printed_names(load_catalog())


def written() -> set[str]:
    """The literal names of assumptions in the code."""
    texts = [file.read_text("utf-8") for folder in ("dpspec", "plugins") for file in (ROOT / folder).rglob("*.py")]
    calls = (node for text in texts if "Assumption(" in text for node in ast.walk(ast.parse(text)))
    found = set()
    for call in calls:
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Assumption"):
            given = next((one.value for one in call.keywords if one.arg == "name"), None)
            if isinstance(given, ast.Constant):
                found.add(str(given.value))
    return found


def test_every_printed_name_is_explained(names: dict[str, list[str]]) -> None:
    literals = written()
    assert len(literals) > 30
    assert {*literals, *CHECKED, *(row.assumption for row in TABLE)} - UNNAMED <= set(names)


@pytest.mark.recorder
def test_every_assumption_that_a_user_can_assume_is_explained(names: dict[str, list[str]]) -> None:
    from dpspec_recording.outcomes.conditions import ASSUMABLE

    assert set(ASSUMABLE) <= set(names)


@pytest.mark.parametrize("word", ["epsilon", "lower bound", "canary", "kappa"])
def test_a_term_is_explained_first_with_an_example(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == 0
    said = capsys.readouterr().out
    assert said.startswith("term ")
    assert "Example: " in said.split("\n\n")[0]


def test_terms_and_their_examples_are_different_sentences() -> None:
    assert all(term.text.endswith(".") and term.example.endswith(".") for term in TERMS.values())
    assert len({term.example for term in TERMS.values()}) == len(TERMS)
