"""``dpspec calibrate``: the value on stdout with what is proved there and what is not beside it, and an exit code."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest
from support import counting as support

from dpspec.contract import Diagnostic, FrozenMap

VARY = ("--vary", "mechanism.epsilon")


def folded(text: str) -> str:
    return " ".join(text.split())


def test_the_text(dpspec, counting):
    ended = dpspec("calibrate", counting, *VARY, "--precision", "0.01")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.split("\n")[0] == "coin"
    text = folded(ended.out)
    assert (
        "is the maximum found that proves held: - held (epsilon <= 1.5 at delta = 1e-6): epsilon <= 1.5 is proved"
        in text
    )
    assert "does not: - held (epsilon <= 1.5 at delta = 1e-6): only epsilon <= 1.51" in text
    assert "This applies to the declared mechanism." in text
    assert all(len(line) <= 80 for line in ended.out.split("\n") if "dpspec run" not in line)
    assert support.RAN == []


def test_the_command_shown_can_be_run_and_confirms(dpspec, counting):
    ended = dpspec("calibrate", counting, *VARY, "--set", "mechanism.epsilon=9", "--set", "claims.held.epsilon=0.7")
    shown = ended.out.partition("To use it:")[2].partition("\n\n")[0].replace("\\\n", " ")
    program, *command = shlex.split(shown)
    assert program == "dpspec"
    assert command.count("--set") == 2
    again = dpspec(*command, "--bounds-only", "--set", "claims.broken.expect=open")
    assert again.code == 0, again.out
    assert "PROVED        held: epsilon <= 0.7 at delta = 1e-6 (epsilon at most 0.7)" in again.out


def test_no_value_proves_the_claims(dpspec, counting):
    ended = dpspec("calibrate", counting, "--vary", "claims.held.epsilon", "--set", "claims.held.over=collection")
    assert ended.code == 0, ended.err
    ended = dpspec("calibrate", counting, *VARY, "--set", "claims.held.adjacency=replace-one")
    assert (ended.code, ended.err) == (1, "")
    text = folded(ended.out)
    assert "No tried value of mechanism.epsilon proves held." in text
    assert "no proved upper bound applies to this claim" in text
    assert "To use it" not in text
    as_json = dpspec("calibrate", counting, *VARY, "--set", "claims.held.adjacency=replace-one", "--json")
    assert as_json.code == 1
    assert json.loads(as_json.out)["calibrations"][0]["set"] is None


def test_a_search_that_ends_before_a_valid_value_ends_with_1(dpspec, counting, monkeypatch):
    def check(self, spec, facts):
        if spec.claims[0].group_size not in (1, 2, 6):
            yield Diagnostic(code="bad-value", message="that size is not covered", path=("claims", 0))

    def by_size(self, spec, context):
        size = spec.claims[0].group_size
        at = FrozenMap({"delta": 0.0, "group_size": size})
        yield support.Finding(
            quantity="epsilon", value=0.1 * size, bound="upper", rigor="theorem", method="made up", source="here", at=at
        )

    monkeypatch.setattr(support.CountingAudit, "check", check)
    monkeypatch.setattr(support.CountingAudit, "bound", by_size)
    ended = dpspec("calibrate", counting, "--vary", "claims.held.group_size", "--set", "threat_model.group_size=9")
    assert ended.code == 1
    text = folded(ended.out)
    assert "No value beyond was tried: 3 is not valid: that size is not covered." in text
    assert "The search ended there, but claims.held.group_size = 6 is valid" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "mechanism.epsilno"], "did you mean 'mechanism.epsilon'?"),
        (["--vary", "mechanism.kind"], "is not a number"),
        ([*VARY, "--claim", "hold"], "did you mean 'held'?"),
        ([*VARY, "--precision", "0"], "--precision must be above 0 and below 1, got 0.0"),
        ([*VARY, "--precision", "1"], "--precision must be above 0 and below 1, got 1.0"),
        (["--vary", "mechanism.factor"], "does not depend on mechanism.factor"),
    ],
)
def test_usage(dpspec, counting, arguments, message):
    ended = dpspec("calibrate", counting, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_values_that_rest_on_the_data_stay_inside(dpspec, counting, monkeypatch):
    bound = support.CountingAudit.bound

    def of_data(*given):
        return (dataclasses.replace(finding, privacy="data-dependent") for finding in bound(*given))

    monkeypatch.setattr(support.CountingAudit, "bound", of_data)
    ended = dpspec("calibrate", counting, *VARY)
    assert (ended.code, ended.out) == (2, "")
    assert "depends on the data" in ended.err
    assert "1.5" not in ended.err
    assert dpspec("calibrate", counting, *VARY, "--internal").code == 0
