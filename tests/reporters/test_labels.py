"""The label of a proof where the executed run deviates, in every format that a person or a job reads."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from dpspec.engine.results.result import Conformance, Result
from dpspec.registry.foreign_code import resolve
from dpspec.registry.loader import load_catalog
from dpspec.reporters import terminal

LABEL = "proved as declared, run deviates"


def deviating(result: Result, *, expected: bool) -> Result:
    """The result with its first claim proved and its run deviating, as an error or as a control."""
    (audit,) = result.audits
    conformance = Conformance(status="deviates", expect="deviates", expected=expected, reason="noise-scale is halved")
    return dataclasses.replace(
        result, audits=(dataclasses.replace(audit, verdicts=audit.verdicts[:1], conformance=conformance),)
    )


def rendered(name: str, result: Result) -> str:
    render: Any = terminal.render_brief if name == "brief" else resolve(load_catalog().reporters[name].provider.render)
    return " ".join(str(render(result)).split())


@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("name", ["text", "brief", "html", "markdown", "junit", "csv", "statement", "statement-json"])
def test_a_proof_is_labelled_where_the_run_deviates(name: str, expected: bool, result: Result) -> None:
    text = rendered(name, deviating(result, expected=expected))
    assert LABEL in text.lower()


@pytest.mark.parametrize("name", ["github", "sarif"])
def test_formats_of_failures_label_the_proof_too(name: str, result: Result) -> None:
    """Both formats show claims that are not as expected only."""
    (audit,) = deviating(result, expected=False).audits
    verdicts = tuple(dataclasses.replace(one, expect=("refuted",), expected=False) for one in audit.verdicts)
    text = rendered(name, dataclasses.replace(result, audits=(dataclasses.replace(audit, verdicts=verdicts),)))
    assert LABEL in text


def test_the_page_has_no_green_badge_and_no_odds_for_a_deviating_run(result: Result) -> None:
    page = rendered("html", deviating(result, expected=False))
    shown = page[: page.index('<dl class="words">')]  # the legend shows every badge
    assert not re.search(r'class="verdict (proved|supported|no-deviation-found)', shown)
    assert 'class="verdict as-declared' in shown
    assert "guessing gives" not in shown
    assert "guessing gives" in rendered("html", result)


def test_no_guarantee_is_registered_for_a_deviating_run(result: Result) -> None:
    assert "privacy_parameters:" in rendered("registry", result)
    assert "privacy_parameters:" not in rendered("registry", deviating(result, expected=False))
