"""What the attack cannot do is said at its place, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attacks import written

from dpspec.contract import Diagnostic
from dpspec.contract.catalog import Catalog
from dpspec.engine.preparing.prepare import check
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

INPUT = "audit.canary={space: input, kind: noise, count: 40}"
MANY = "audit={method: many-run, canary: {space: gradient}, runs: 20}"
FINAL = "threat_model.access=final-model"


def diagnostics(folder: Path, *overrides: str, catalog: Catalog | None = None) -> list[Diagnostic]:
    loaded = load_specs([written(folder)], catalog or load_catalog(), overrides)
    (spec,) = loaded.specs or (None,)
    return list(loaded.diagnostics) if spec is None else list(check(spec, catalog or load_catalog()))


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [INPUT],
        [MANY],
        ["audit.canary={count: 100}"],
        [INPUT, FINAL, "audit.score=likelihood-ratio"],
        [MANY, "audit.canary={space: input, kind: blank}"],
        ["audit.canary={space: gradient, count: 100, spread: 0.1}"],
        [INPUT, FINAL, "training.optimizer={kind: adam}"],
        [FINAL, "training.optimizer={kind: adam}"],
    ],
)
def test_what_makes_sense_is_accepted(tmp_path: Path, overrides: list[str]) -> None:
    assert diagnostics(tmp_path, *overrides) == []


@pytest.mark.parametrize(
    ("overrides", "code", "path", "words"),
    [
        (["audit.canary=null"], "missing-key", "audit", "'canary'"),
        (["audit.canary={space: gradient}"], "missing-key", "audit.canary", "'count'"),
        (["audit.canary.kind=ortogonal"], "unknown-kind", "audit.canary.kind", "did you mean 'orthogonal'?"),
        (["audit.canary.kind=blank"], "unsupported", "audit.canary.kind", "is not a kind of gradient canary"),
        ([INPUT, "audit.canary.kind=mislabeled"], "unknown-kind", "audit.canary.kind", "did you mean 'mislabelled'?"),
        ([INPUT, FINAL, "audit.score=los"], "unknown-kind", "audit.score", "no installed plugin offers score 'los'"),
        ([INPUT, "audit.canary.spread=0.1"], "unsupported", "audit.canary.spread", "equal"),
        ([INPUT, "audit.canary.kind=blank", "audit.canary.count=20"], "bad-value", "audit.canary.count", "at most 10"),
        ([INPUT, "audit.canary.count=15"], "bad-value", "audit.canary.count", "at least 16"),
        (
            [INPUT, FINAL, "audit.score=likelihood-ratio", "audit.canary.count=31"],
            "bad-value",
            "audit.canary.count",
            "32",
        ),
        (["audit.canary.count=212"], "bad-value", "audit.canary.count", "at most 210"),
        (["audit.canary.spread=0.1", "audit.canary.count=106"], "bad-value", "audit.canary.count", "at most 105"),
        (["audit.score=loss"], "unsupported", "audit.score", "all iterates"),
        (["audit.score=loss", FINAL], "unsupported", "audit.score", "gradient canaries"),
        ([MANY, "audit.canary.count=3"], "bad-value", "audit.canary.count", "must be 2"),
        ([MANY, "audit.runs=15"], "bad-value", "audit.runs", "at least 16"),
        (
            [MANY, "audit.canary={space: input}", FINAL, "audit.score=likelihood-ratio"],
            "unsupported",
            "audit.score",
            "one per group size",
        ),
        (["training.optimizer={kind: adam}"], "unsupported", "training.optimizer", "not invertible"),
    ],
)
def test_what_does_not_is_said_and_located(
    tmp_path: Path, overrides: list[str], code: str, path: str, words: str
) -> None:
    found = diagnostics(tmp_path, *overrides)
    assert [(d.code, ".".join(map(str, d.path))) for d in found] == [(code, path)]
    assert words in found[0].message
    assert found[0].span is not None


def test_the_help_names_what_a_backend_need_not_have(tmp_path: Path) -> None:
    """A backend without iterates and gradient canaries can still be attacked by records, on the final model."""
    from dataclasses import replace

    installed = load_catalog()
    native = installed.backends["native"]
    bare = replace(native, provider=replace(native.provider, capabilities=frozenset()))
    catalog = replace(installed, backends={**installed.backends, "native": bare})
    lacking = diagnostics(tmp_path, catalog=catalog)
    assert [d.code for d in lacking] == ["missing-capability"] * 2
    assert {d.help for d in lacking} == {
        "access: final-model works with every backend",
        "canaries in space: input work with every backend",
    }
    assert diagnostics(tmp_path, INPUT, FINAL, catalog=catalog) == []
