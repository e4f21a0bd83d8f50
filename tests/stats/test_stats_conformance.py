"""A run exactly as declared is put to all tests: none is rejected, and every change of the evidence is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpspec import json_records
from dpspec.contract import FrozenMap, thaw
from dpspec.stats.conformance import expectations, run_checks
from dpspec.stats.conformance.evidence.steps import looked

PHASE = FrozenMap(
    {"steps": 200, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "poisson", "rate": 0.05}}
)
ALL = ("iterates", "sampling-log", "noise-log", "norm-log", "gradient-canaries")


def run(*phases, capabilities=ALL, trials=1, groups=None):
    return expectations.Run(
        phases=phases or (PHASE,),
        records=2000,
        parameters=3000,
        groups={1: 200, 4: 200} if groups is None else groups,
        capabilities=capabilities,
        trials=trials,
    )


def evidence(of):
    return FrozenMap(json_records.write(expectations.as_declared(of)))


def judged(phases, evidence):
    return run_checks.checks(phases, [FrozenMap(run_checks.arranged(one)) for one in evidence])


def test_a_run_as_declared_passes_everything():
    checks = list(judged([PHASE], [evidence(run()), evidence(run())]))
    assert len({(c.assumption, c.observed, c.note, c.test) for c in checks}) == len(checks) > 20
    assert min(c.p_value for c in checks) > 0.05
    for check in checks:
        if check.assumption not in ("steps", "update"):
            assert check.measured == pytest.approx(check.declared, abs=0.02)


def changed(path, value, phase=PHASE):
    plain = thaw(evidence(run(phase)))
    *where, last = path
    at = plain
    for key in where:
        at = at[key]
    at[last] = value(at[last]) if callable(value) else value
    return [c for c in judged([phase], [FrozenMap(plain)]) if c.p_value < 1e-9]


@pytest.mark.parametrize(
    ("path", "value", "assumption"),
    [
        (["steps"], 201, "steps"),
        (["noise", "statistic"], lambda v: 0.9 * v, "noise-scale"),
        (["noise_log", "statistic"], lambda v: 1.1 * v, "noise-scale"),
        (["noise_log", "quietest"], 0.0, "per-layer-noise"),
        (["noise_log", "halves"], 20_000.0, "per-layer-noise"),
        (["noise_log", "products"], 20_000.0, "independent-noise"),
        (["noise_log", "lag"], {"lag": 50, "products": -20_000.0}, "independent-noise"),
        (["noise_log", "pair"], 2900.0, "independent-noise"),
        (["noise_log", "twin", "aligned"], 20_000.0, "independent-noise"),
        (["noise_log", "twin", "largest"], 2900.0, "independent-noise"),
        (["measured", "coordinates", "least"], 1.0, "per-layer-noise"),
        (["measured", "drift", "total"], 3000.0, "update"),
        (["measured", "lag", "total"], 3000.0, "independent-noise"),
        (["measured", "pair", "total"], 300.0, "independent-noise"),
        (["signal", "draws"], 2.0, "sensitivity"),
        (["sampling_log", "batches", 0], {"steps": 200, "total": 22_000, "squares": 2_440_000}, "sampling"),
        (["sampling_log", "batches", 0, "squares"], lambda v: round(1.1 * v), "sampling"),
        (["sampling_log", "batches", 0, "spread"], lambda v: round(1.1 * v), "sampling"),
        (["sampling_log", "batches", 0, "overlaps"], [[1, 0, 19_000]], "sampling"),
        (["sampling_log", "repeats"], 1, "sampling"),
        (["norm_log", "largest"], 1.01, "clipping"),
        (["norm_log", "missing"], -3, "clipping"),
    ],
)
def test_every_deviation_is_told_by_its_assumption(path, value, assumption):
    assert assumption in {check.assumption for check in changed(path, value)}


def test_layers_are_tested_where_they_are_told():
    plain = thaw(evidence(run()))
    plain["measured"]["quietest"] = {"body": [1000.0, 1000], "head": [100.0, 100]}
    plain["measured"]["layers"] = {"body": [200_000.0, 200_000], "head": [9_000.0, 20_000]}
    (check,) = [c for c in judged([PHASE], [FrozenMap(plain)]) if c.test.endswith("quietest layer")]
    assert check.p_value < 1e-9
    assert check.note.endswith("head")


def test_what_rounding_can_have_done_is_taken_off():
    plain = thaw(evidence(run()))
    plain["measured"]["drift"] = {"total": 3000.0, "unit": 100.0}
    plain["measured"]["rounding"] = 3000.0
    check, _ = [c for c in judged([PHASE], [FrozenMap(plain)]) if c.assumption == "update"]
    assert check.p_value == 1.0


def test_the_same_first_step_in_two_trials_is_noticed():
    one, other = thaw(evidence(run())), thaw(evidence(run()))
    row = [2.0 * (-1.0) ** i for i in range(1024)]
    for plain in (one, other):
        plain["noise_log"]["first"] = row
        plain["measured"]["first"] = {"row": row, "least": 4.0, "variance": 20.0}
    found = judged([PHASE], [FrozenMap(one), FrozenMap(other)])
    again = [c for c in found if c.note == "first steps of different trials"]
    assert {c.observed for c in again} == {"measured", "reported"}
    assert all(c.p_value < 1e-9 for c in again)


@pytest.mark.parametrize("scheme", [{"scheme": "fixed", "batch_size": 100}, {"scheme": "full"}])
def test_other_schemes_have_exact_sizes(scheme):
    phase = FrozenMap({**PHASE, "sampling": scheme})
    checks = list(judged([phase], [evidence(run(phase))]))
    assert min(c.p_value for c in checks) > 0.05
    assert any(c.test == "batch sizes, exact" for c in checks)
    assert any("in common" in c.test for c in checks) == (scheme["scheme"] == "fixed")
    assert changed(["sampling_log", "batches", 0, "total"], lambda v: v - 1, phase)


def test_shuffled_batches_are_held_against_their_epochs():
    """As promised; and what is no martingale is not tested, which says so."""
    phase = FrozenMap({**PHASE, "sampling": {"scheme": "shuffled", "batch_size": 100}})
    checks = list(judged([phase], [evidence(run(phase))]))
    assert min(c.p_value for c in checks) > 0.05
    drawn = [c.note.partition(",")[0] for c in checks if c.note.endswith("phase 1")]
    assert drawn == ["batch size", "once an epoch", "batches of different epochs"]
    left = {(c.assumption, c.detectable) for c in checks if "follows from the epoch's others" in c.note}
    assert left == {("update", None), ("independent-noise", None)}
    assert changed(["sampling_log", "batches", 0, "total"], lambda v: v - 1, phase)
    assert changed(["sampling_log", "batches", 0, "early"], lambda v: v + 1, phase)


def test_what_is_foreseen_is_what_will_be_seen():
    """The detectable deviations of a run as declared are those that the plan names."""
    planned = {(c.assumption, c.note): c for c in expectations.foresee(run())}
    made = {(c.assumption, c.note): c for c in judged([PHASE], [evidence(run())])}
    assert set(planned) == set(made)
    for key, check in planned.items():
        assert check.p_value == 1.0
        assert check.measured is None
        if "layer" in check.note:  # how large the smallest layer is, no plan knows
            assert check.detectable is None
        elif check.assumption != "update":
            assert check.detectable == made[key].detectable


@pytest.mark.parametrize("sigma", [1e-200, 5e-324])
def test_noise_without_a_variance_is_foreseen_as_none(sigma):
    """The variance of so little noise is 0 in floating point: there is nothing to measure."""
    tiny, none = (list(expectations.foresee(run(FrozenMap({**PHASE, "noise_multiplier": s})))) for s in (sigma, 0.0))
    assert [(c.assumption, c.test, c.observed) for c in tiny] == [(c.assumption, c.test, c.observed) for c in none]


def test_few_looks_foresee_what_a_run_of_so_many_steps_would_see():
    """Of the released models every eighth is looked at; what the backend reports is of all steps as ever."""
    later = FrozenMap({**PHASE, "steps": 600, "noise_multiplier": 2.0})
    few = {(c.assumption, c.note, c.observed): c for c in expectations.foresee(replace(run(PHASE, later), looks=100))}
    short = [FrozenMap({**phase, "steps": steps}) for phase, steps in ((PHASE, 25), (later, 75))]
    less = {(c.assumption, c.note, c.observed): c for c in expectations.foresee(run(*short))}
    every = {(c.assumption, c.note, c.observed): c for c in expectations.foresee(run(PHASE, later))}
    assert set(few) == set(less) == set(every)
    for key, check in few.items():
        assert check.detectable == (less if check.observed == "measured" else every)[key].detectable


@pytest.mark.parametrize(("steps", "looks", "seen"), [(50, 6, [0, 10, 20, 29, 39, 49]), (5, 1, [0]), (2, 9, [0, 1])])
def test_looks_are_spread_evenly(steps, looks, seen):
    assert looked(steps, looks).nonzero()[0].tolist() == seen
    assert looked(steps, None).all()


def test_less_is_foreseen_of_a_backend_that_shows_less():
    names = {c.assumption for c in expectations.foresee(run(capabilities=("iterates",)))}
    assert names == {"steps", "noise-scale", "per-layer-noise", "update", "independent-noise"}
    assert {c.observed for c in expectations.foresee(run(capabilities=("sampling-log",)))} == {"reported"}
    assert list(expectations.foresee(run(capabilities=()))) == []
    quiet = FrozenMap({**PHASE, "noise_multiplier": 0.0})
    assert {c.assumption for c in expectations.foresee(run(quiet))} == {"steps", "sampling", "clipping", "sensitivity"}


def test_two_phases_are_tested_apart():
    other = FrozenMap({**PHASE, "steps": 100, "sampling": {"scheme": "fixed", "batch_size": 50}})
    found = list(run_checks.checks([PHASE, other], [evidence(run(PHASE, other))]))
    assert {"rate, phase 1", "batch size, phase 2"} <= {c.note for c in found}
    assert min(c.p_value for c in found) > 0.05


def test_what_speaks_of_rows_is_kept_inside_and_marked():
    kept = run_checks.arranged(evidence(run()))
    assert set(kept["internal"]) == {"noise", "measured", "signal", "norm_log"}
    assert not set(kept["internal"]) & set(kept)
    private = [c for c in run_checks.checks([PHASE], [FrozenMap(kept)]) if c.privacy == "data-dependent"]
    public = [c for c in run_checks.checks([PHASE], [FrozenMap(kept)]) if c.privacy == "public"]
    assert {c.assumption for c in private} >= {"noise-scale", "update", "sensitivity", "clipping"}
    assert {c.assumption for c in public} == {
        "steps",
        "noise-scale",
        "per-layer-noise",
        "independent-noise",
        "sampling",
    }
    assert all(c.privacy == "public" for c in run_checks.checks([PHASE], [FrozenMap(kept)], privacy="public"))
    without = FrozenMap({key: value for key, value in kept.items() if key != "internal"})
    assert [c.test for c in run_checks.checks([PHASE], [without])] == [c.test for c in public]
