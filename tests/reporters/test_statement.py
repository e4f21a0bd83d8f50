"""The privacy statement: every block said to be checked, declared or not covered, and nothing of the data in it."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from support import results as factory

from dpspec.contract import Assumption, Finding, FrozenMap
from dpspec.engine.results.result import AuditResult, Conformance, Result
from dpspec.reporters import statement
from dpspec.stats.attacks import curve_lines

DOCUMENT = FrozenMap(
    {
        "description": "A | model",
        "mechanism": {"kind": "group", "noise_multiplier": 1.5, "sampling": {"scheme": "poisson", "rate": 0.05}},
        "threat_model": {"adjacency": "add-remove", "unit": "record", "access": "final-model", "group_size": [1, 8]},
    }
)


def audit(**changes: object) -> AuditResult:
    return dataclasses.replace(factory.audit(document=DOCUMENT), **changes)  # type: ignore[arg-type]


def blocks(result: Result) -> dict[str, statement.Block]:
    (one,) = statement.statements(result)
    return {block.name: block for block in one.blocks}


@pytest.mark.parametrize("verdict", ["proved", "open", "refuted", "contradicted"])
def test_only_a_proved_claim_is_called_checked(verdict: str) -> None:
    found = blocks(factory.result(audit(verdicts=(factory.verdict(verdict=verdict),))))
    assert found["Epsilon and delta"].coverage == ("checked" if verdict == "proved" else "declared")
    assert ("not established" in found["Epsilon and delta"].text) == (verdict != "proved")
    assert "groups of 1 and 8" in found["Unit of privacy"].text
    assert found["Released output"].text.endswith("the final model")


@pytest.mark.parametrize(
    ("status", "coverage", "words"),
    [
        ("no-deviation-found", "checked", "compared with this"),
        ("deviates", "checked", "deviates"),
        ("not-run", "declared", "not compared"),
    ],
)
def test_the_mechanism_is_checked_only_where_it_ran(status: str, coverage: str, words: str) -> None:
    conformance = Conformance(status=status, expect=status, expected=True, reason="because")  # type: ignore[arg-type]
    block = blocks(factory.result(audit(conformance=conformance)))["Mechanism"]
    assert block.coverage == coverage
    assert words in block.text
    assert "noise_multiplier 1.5" in block.text


def test_markdown_and_json_say_the_same_and_nothing_of_the_data() -> None:
    secret = Finding(
        quantity="accuracy", value=0.987654, bound="estimate", rigor="approximate", method="m", source="s",
        privacy="data-dependent",
        assumptions=(Assumption(name="x", status="declared", text="y"),),
    )  # fmt: skip
    result = factory.result(audit(findings=(*factory.audit().findings, secret)))
    page, data = statement.render(result, internal=True), statement.render_json(result, internal=True)
    assert "0.987654" not in page + data
    assert "# Privacy statement: demo" in page
    assert "A &#124; model" in page
    (one,) = json.loads(data)
    assert [block["name"] for block in one["blocks"]] == list(blocks(result))
    for block in one["blocks"]:
        assert f"| {block['name']} | **{block['coverage']}** |" in page


def test_a_proved_curve_is_one_number_with_what_that_gives_away() -> None:
    profile = [(epsilon, curve_lines.gaussian_delta(1.0, epsilon)) for epsilon in np.linspace(0.0, 6.0, 200)]
    found = tuple(
        Finding(
            quantity="epsilon", value=float(epsilon), bound="upper", rigor="certified", method="m", source="s",
            at=FrozenMap({"delta": delta}),
        )
        for epsilon, delta in profile
    )  # fmt: skip
    (one,) = statement.statements(factory.result(audit(findings=found)))
    (said,) = one.curves
    mu, regret = (float(number) for number in re.findall(r"at most ([0-9.e-]+)", said))
    assert 1.0 <= mu < 1.1  # the pairs are those of a Gaussian mechanism with mu = 1, and a little is lost between them
    assert 0.0 <= regret < 0.01
    assert "single records" in said
    assert f"- {said}." in statement.render(factory.result(audit(findings=found)))
    (nothing,) = statement.statements(factory.result(audit(findings=found[:1])))
    assert nothing.curves == ()
