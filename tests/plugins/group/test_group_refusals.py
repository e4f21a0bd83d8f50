"""What cannot be audited is refused at its place, before anything is trained."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.attacks import attacked, diagnosed, written

from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog

INPUT = "audit.canary={space: input, kind: noise, count: 40}"
MANY = "audit={method: many-run, canary: {space: gradient}, runs: 20}"
CALIBRATED = "audit.score=likelihood-ratio"
FINAL, SHADOW = "threat_model.access=final-model", "audit.score=shadow"
SHUFFLED = "mechanism.sampling={scheme: shuffled, batch_size: 10}"


@pytest.mark.family
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [INPUT],
        [MANY],
        ["audit.canary={count: 100}"],
        [INPUT, FINAL, CALIBRATED],
        [MANY, "audit.canary={space: input, kind: blank}"],
        ["audit.canary={space: gradient, count: 100, spread: 0.1}"],
        [INPUT, FINAL, "training.optimizer={kind: adam}"],
        [FINAL, "training.optimizer={kind: adam}"],
        *([f"mechanism.sampling={{scheme: poisson, rate: {rate}}}"] for rate in ("1e-12", "1e-15", "0.999999999")),
    ],
)
def test_what_makes_sense_is_accepted_and_planned(tmp_path: Path, overrides: list[str]) -> None:
    assert diagnosed(written(tmp_path), *overrides) == []
    assert prepare(attacked(tmp_path, *overrides), load_catalog()).plan().trials >= 1


@pytest.mark.parametrize(
    ("overrides", "code", "path", "words"),
    [
        (
            ["threat_model.adjacency=replace-one"],
            "unsupported",
            "threat_model.adjacency",
            "the attack removes canaries, and replaces none",
        ),
        (
            ["claims.0.adjacency=replace-one", "audit=null"],
            "unsupported",
            "claims.0.adjacency",
            "covers add-remove and zero-out adjacency only, not replace-one",
        ),
        (["claims.0.delta=0.02", "audit=null"], "large-delta", "claims.0.delta", "is not below 1 / "),
        (["mechanism.sampling={scheme: fixed, batch_size: 57}"], "bad-value", "mechanism.sampling.batch_size", "57"),
        (["mechanism.noise_multiplier=0"], "no-noise", "mechanism.noise_multiplier", "infinite"),
        (["mechanism.noise_multiplier=1e-320"], "bad-value", "mechanism.noise_multiplier", "at least 1e-06"),
        (["data={kind: declared, records: 100, features: 16}"], "data-not-at-hand", "audit", ""),
        (["model=null"], "no-model", "audit", ""),
        (["audit.canary=null"], "missing-key", "audit", "'canary'"),
        (["audit.canary={space: gradient}"], "missing-key", "audit.canary", "'count'"),
        (["audit.canary.kind=ortogonal"], "unknown-kind", "audit.canary.kind", "did you mean 'orthogonal'?"),
        (["audit.canary.kind=blank"], "unsupported", "audit.canary.kind", "is not a kind of gradient canary"),
        ([INPUT, "audit.canary.kind=mislabeled"], "unknown-kind", "audit.canary.kind", "did you mean 'mislabelled'?"),
        ([INPUT, FINAL, "audit.score=los"], "unknown-kind", "audit.score", "no installed plugin offers score 'los'"),
        ([INPUT, "audit.canary.spread=0.1"], "unsupported", "audit.canary.spread", "orthogonal gradient canaries"),
        ([INPUT, "audit.canary.kind=blank", "audit.canary.count=20"], "bad-value", "audit.canary.count", "at most 10"),
        ([INPUT, "audit.canary.count=15"], "bad-value", "audit.canary.count", "at least 16"),
        ([INPUT, FINAL, CALIBRATED, "audit.canary.count=31"], "bad-value", "audit.canary.count", "32"),
        (["audit.canary.count=212"], "bad-value", "audit.canary.count", "at most 210"),
        (["audit.canary.spread=0.1", "audit.canary.count=106"], "bad-value", "audit.canary.count", "at most 105"),
        (["audit.score=loss"], "unsupported", "audit.score", "canary.space: input only"),
        ([MANY, "audit.canary.count=3"], "bad-value", "audit.canary.count", "must be 2"),
        ([MANY, "audit.runs=15"], "bad-value", "audit.runs", "at least 16"),
        ([MANY, "audit.canary={space: input}", FINAL, CALIBRATED], "unsupported", "audit.score", "one group per size"),
        ([MANY, "audit.canary={space: input}", FINAL, SHADOW], "unsupported", "audit.score", "one group per size"),
        (["audit.canary.every=2"], "unsupported", "audit.canary.every", "canary.space: gradient only"),
        ([FINAL, "audit.canary.every=1000"], "bad-value", "audit.canary.every", "no step would have canary gradients"),
        (["audit.shard_runs=8"], "unsupported", "audit.shard_runs", "many-run only"),
        (["training.optimizer={kind: adam}"], "unsupported", "training.optimizer", "not invertible"),
    ],
)
def test_the_rest_is_refused_and_located(tmp_path, overrides, code, path, words):
    found = diagnosed(written(tmp_path), *overrides)
    if overrides[0].startswith(("threat_model", "data", "mechanism.sampling")):  # of which more follows
        found = [d for d in found if d.code == code]
    assert [(d.code, ".".join(map(str, d.path))) for d in found] == [(code, path)]
    assert words in found[0].message
    assert all(d.span is not None for d in found)


def test_the_help_names_what_a_backend_need_not_have(tmp_path: Path) -> None:
    """A backend without iterates and gradient canaries can still be attacked by records, on the final model."""
    installed = load_catalog()
    native = installed.backends["native"]
    bare = replace(native, provider=replace(native.provider, capabilities=frozenset()))
    catalog = replace(installed, backends={**installed.backends, "native": bare})
    lacking = diagnosed(written(tmp_path), catalog=catalog)
    assert [d.code for d in lacking] == ["missing-capability"] * 2
    assert {d.help for d in lacking} == {
        "set access: final-model, or choose another backend",
        "set canary.space: input, or choose another backend",
    }
    assert diagnosed(written(tmp_path), INPUT, FINAL, catalog=catalog) == []
