"""A few correct pipelines; all of them by hand: ``python tests/campaigns/right_runs.py``."""

import pytest
from campaigns import right_runs
from scipy.stats import binom

from dpspec.results.conformance_status import rejected


@pytest.mark.ci
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 300), marks=pytest.mark.slow)], ids=["few", "many"])
def test_no_correct_pipeline_deviates_and_no_check_exceeds_its_level(seeds: range) -> None:
    """Of n seeds, n * 1e-6 are expected to deviate; each kind of check keeps each level, here at error 1e-8."""
    found, below = right_runs.deviations(seeds)
    assert found == []
    for kind, counts in below.items():
        tested = counts[1.0] - counts[right_runs.UNTESTED]
        for level in right_runs.LEVELS:
            assert counts[level] <= binom.ppf(1 - 1e-8, tested, level), kind


_ALIKE = (("sgd", "sum"), ("sgd", "mean"), ("momentum", "sum"))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("optimizer", "reduction"),
    [("momentum", "mean"), *(pytest.param(*each, marks=pytest.mark.slow) for each in _ALIKE)],
)
def test_diverging_parameters_are_not_a_deviation_and_checks_report_their_limits(monkeypatch, optimizer, reduction):
    """If learning rate times weight decay exceeds 2, parameters and their rounding errors grow without bound."""
    rule = {"kind": optimizer, "weight_decay": 9.0} | ({"momentum": 0.5} if optimizer == "momentum" else {})
    phase = {"noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "poisson", "rate": 0.2}}
    case = {
        **right_runs.drawn(0),
        "options": {"learning_rate": 1.0, "reduction": reduction, "optimizer": rule},
        "phases": [{**phase, "steps": 60}],
        "hidden": 30,
        "canaries": True,
        "looks": None,
        "trials": 2,
    }
    monkeypatch.setattr(right_runs, "drawn", lambda seed: case)
    checks = right_runs.checks_of(7)
    assert not [c for c in checks if rejected(c, len(checks))]
    later = {**case, "phases": [{**phase, "steps": 100, "noise_multiplier": 1e-7}]}
    monkeypatch.setattr(right_runs, "drawn", lambda seed: later)
    checks = right_runs.checks_of(7)
    assert not [c for c in checks if rejected(c, len(checks))]
    silent = {(c.assumption, c.note.partition(", ")[0]) for c in checks if "not tested: the rounding" in c.remark}
    assert all(c.p_value == 1.0 and c.detectable is None for c in checks if c.remark)
    assert {a for a, _ in silent} == {"noise-scale", "per-layer-noise", "update", "independent-noise"}
    # No check of a bounded run is missing.
    monkeypatch.setattr(
        right_runs, "drawn", lambda seed: {**case, "options": {**case["options"], "optimizer": {"kind": "sgd"}}}
    )
    whole = {(c.assumption, c.observed, c.note.partition(", least")[0]) for c in right_runs.checks_of(7)}
    assert {(c.assumption, c.observed, c.note.partition(", not")[0].partition(", least")[0]) for c in checks} == whole
