"""All tests accept a run exactly as declared, and reject every change of the evidence."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from support.phases import phase_of

from dpspec.contract import FrozenMap, Phase, thaw
from dpspec.contract.sampling import SCHEMES
from dpspec.results.conformance_status import conformance_of
from dpspec.sampling import sampler_of, scheme_named
from dpspec.stats.conformance import table
from dpspec.stats.conformance.evidence import OF_ROWS, ReportedSteps, RunEvidence, looked, measured_steps, write_run

PHASE = phase_of("poisson", 200, rate=0.05)
ALL = ("iterates", "sampling-log", "noise-log", "norm-log", "gradient-canaries")


def run(*phases, capabilities=ALL, trials=1, groups=None):
    return table.Run(
        phases=phases or (PHASE,),
        records=2000,
        parameters=3000,
        groups={1: 200, 4: 200} if groups is None else groups,
        capabilities=capabilities,
        trials=trials,
    )


def evidence(of):
    return FrozenMap(write_run(table.as_declared(of)))


def test_a_run_as_declared_passes_everything():
    checks = list(table.checks([PHASE], [evidence(run()), evidence(run())]))
    assert len({(c.assumption, c.observed, c.note, c.test) for c in checks}) == len(checks) > 15
    assert min(c.p_value for c in checks) > 0.05
    for check in checks:
        if check.assumption not in ("steps", "update"):
            assert check.measured == pytest.approx(check.declared, abs=0.02)


def changed(path, value, phase=PHASE):
    plain = thaw(evidence(run(phase)))
    *where, last = path
    at = plain["internal"] if path[0] in OF_ROWS else plain
    for key in where:
        at = at[key]
    at[last] = value(at[last]) if callable(value) else value
    return [c for c in table.checks([phase], [FrozenMap(plain)]) if c.p_value < 1e-9]


@pytest.mark.parametrize(
    ("path", "value", "assumption"),
    [
        (["steps"], 201, "steps"),
        (["noise", "statistic"], lambda v: 0.9 * v, "noise-scale"),
        (["noise_log", "statistic"], lambda v: 1.1 * v, "noise-scale"),
        (["noise_log", "lag"], {"lag": 50, "products": -20_000.0}, "independent-noise"),
        (["noise_log", "pair"], 2900.0, "independent-noise"),
        (["noise_log", "twin", "largest"], 2900.0, "independent-noise"),
        (["measured", "coordinates", "least"], 1.0, "per-layer-noise"),
        (["measured", "drift", "total"], 3000.0, "update"),
        (["measured", "lag", "total"], 3000.0, "independent-noise"),
        (["signal", "draws"], 2.0, "sensitivity"),
        (["sampling_log", "batches", 0], {"steps": 200, "total": 22_000, "squares": 2_440_000}, "sampling"),
        (["sampling_log", "batches", 0, "squares"], 200 * 100**2, "sampling"),
        (["sampling_log", "batches", 0, "spread"], lambda v: round(1.1 * v), "sampling"),
        (["sampling_log", "batches", 0, "overlaps"], [[1, 0, 19_000]], "sampling"),
        (["sampling_log", "repeats"], 1, "sampling"),
        (["norm_log", "largest"], 1.01, "clipping"),
        (["norm_log", "missing"], -3, "clipping"),
        (["norm_log", "astray"], 1, "clipping"),
        (["states", "still"], 1, "steps"),
        (["states", "apart"], 1, "steps"),
        (["told", "noise"], 199, "steps"),
    ],
)
def test_every_deviation_is_detected_under_its_assumption(path, value, assumption):
    assert assumption in {check.assumption for check in changed(path, value)}


def test_a_quiet_layer_is_named():
    plain = thaw(evidence(run()))
    plain["internal"]["measured"]["layers"] = {"body": [200_000.0, 200_000], "head": [9_000.0, 20_000]}
    (check,) = [c for c in table.checks([PHASE], [FrozenMap(plain)]) if c.test.endswith("quietest layer, head")]
    assert check.p_value < 1e-9
    assert check.detectable > 0.1


def test_what_rounding_can_have_done_is_taken_off():
    plain = thaw(evidence(run()))
    plain["internal"]["measured"]["drift"] = {"total": 3000.0, "unit": 100.0}
    plain["internal"]["measured"]["rounding"] = 3000.0
    (check,) = [c for c in table.checks([PHASE], [FrozenMap(plain)]) if c.assumption == "update"]
    assert check.p_value == 1.0


@pytest.mark.parametrize(
    ("scheme", "drawn"),
    [
        ({"scheme": "fixed", "batch_size": 100}, ["batch size", "inclusions per record", "independence across steps"]),
        ({"scheme": "full"}, ["batch size"]),
        (
            {"scheme": "shuffled", "batch_size": 100},
            ["batch size", "batches of each epoch", "batches of different epochs"],
        ),
    ],
)
def test_other_schemes_have_exact_sizes(scheme, drawn):
    phase = FrozenMap({**PHASE, "sampling": scheme})
    checks = list(table.checks([phase], [evidence(run(phase))]))
    assert min(c.p_value for c in checks) > 0.05
    assert [c.note.partition(",")[0] for c in checks if c.note.endswith("phase 1")] == drawn
    assert changed(["sampling_log", "batches", 0, "total"], lambda v: v - 1, phase)
    abstained = {(c.assumption, c.detectable) for c in checks if "depends on the epoch's other batches" in c.remark}
    if scheme["scheme"] == "shuffled":  # residuals of such batches are not a martingale
        assert abstained == {("update", None), ("independent-noise", None)}
        assert changed(["sampling_log", "batches", 0, "early"], lambda v: v + 1, phase)
    else:
        assert not abstained


def test_what_is_foreseen_is_what_will_be_seen():
    planned = {(c.assumption, c.note): c for c in table.foresee(run())}
    made = {(c.assumption, c.note): c for c in table.checks([PHASE], [evidence(run())])}
    assert set(planned) == set(made)
    for key, check in planned.items():
        assert check.p_value == 1.0
        assert check.measured is None
        assert check.detectable == made[key].detectable


@pytest.mark.parametrize("sigma", [1e-200, 5e-324])
def test_noise_without_a_variance_is_foreseen_as_none(sigma):
    tiny, none = (list(table.foresee(run(FrozenMap({**PHASE, "noise_multiplier": s})))) for s in (sigma, 0.0))
    assert [(c.assumption, c.test, c.observed) for c in tiny] == [(c.assumption, c.test, c.observed) for c in none]


def test_few_observations_predict_the_checks_of_a_long_run():
    """Every eighth released model is observed; the backend's logs cover all steps."""
    later = FrozenMap({**PHASE, "steps": 600, "noise_multiplier": 2.0})
    few = {(c.assumption, c.note, c.observed): c for c in table.foresee(replace(run(PHASE, later), looks=100))}
    short = [FrozenMap({**phase, "steps": steps}) for phase, steps in ((PHASE, 25), (later, 75))]
    less = {(c.assumption, c.note, c.observed): c for c in table.foresee(run(*short))}
    every = {(c.assumption, c.note, c.observed): c for c in table.foresee(run(PHASE, later))}
    assert set(few) == set(less) == set(every)
    for key, check in few.items():
        assert check.detectable == (less if check.observed == "measured" else every)[key].detectable


@pytest.mark.parametrize(("steps", "looks", "seen"), [(50, 6, [0, 10, 20, 29, 39, 49]), (5, 1, [0]), (2, 9, [0, 1])])
def test_looks_are_spread_evenly(steps, looks, seen):
    assert looked(steps, looks).nonzero()[0].tolist() == seen
    assert looked(steps, None).all()


def test_less_is_foreseen_of_a_backend_that_shows_less():
    names = {c.assumption for c in table.foresee(run(capabilities=("iterates",)))}
    assert names == {"steps", "noise-scale", "per-layer-noise", "update", "independent-noise"}
    assert {c.observed for c in table.foresee(run(capabilities=("sampling-log",)))} == {"reported"}
    assert list(table.foresee(run(capabilities=()))) == []
    quiet = FrozenMap({**PHASE, "noise_multiplier": 0.0})
    assert {c.assumption for c in table.foresee(run(quiet))} == {"steps", "sampling", "clipping", "sensitivity"}


def test_two_phases_are_tested_apart():
    other = FrozenMap({**PHASE, "steps": 100, "sampling": {"scheme": "fixed", "batch_size": 50}})
    found = list(table.checks([PHASE, other], [evidence(run(PHASE, other))]))
    assert {"rate, phase 1", "batch size, phase 2"} <= {c.note for c in found}
    assert min(c.p_value for c in found) > 0.05


def test_what_speaks_of_rows_is_kept_inside_and_marked():
    kept = evidence(run())
    assert set(kept["internal"]) == {"noise", "measured", "signal", "norm_log"}
    assert not set(kept["internal"]) & set(kept)
    private = [c for c in table.checks([PHASE], [FrozenMap(kept)]) if c.privacy == "data-dependent"]
    public = [c for c in table.checks([PHASE], [FrozenMap(kept)]) if c.privacy == "public"]
    assert {c.assumption for c in private} >= {"noise-scale", "update", "sensitivity", "clipping"}
    assert {c.assumption for c in public} == {"steps", "noise-scale", "independent-noise", "sampling"}
    assert all(c.privacy == "public" for c in table.checks([PHASE], [FrozenMap(kept)], privacy="public"))
    without = FrozenMap({key: value for key, value in kept.items() if key != "internal"})
    assert [c.test for c in table.checks([PHASE], [without])] == [c.test for c in public]


THREE = replace(run(trials=3), twin=False)
LOGS = {"batches": "sampling_log", "noise": "noise_log", "norms": "norm_log"}


def status(runs):
    checks = list(table.of_runs([Phase.of(phase) for phase in THREE.phases], runs))
    promised = list(table.foresee(THREE))
    return conformance_of("no-deviation-found", checks, len(checks), promised, executed=True).status


def without(run, what):
    if what == "states":
        return replace(run, steps=None, states=None, noise=None, measured=None, signal=None)
    return replace(run, **{LOGS[what]: None, "told": replace(run.told, **{what: None})})


@pytest.mark.parametrize("what", [*LOGS, "states"])
@pytest.mark.parametrize("number", [0, 2])
def test_one_silent_run_among_three_deviates(what, number):
    runs = [table.as_declared(THREE)] * 3
    assert status(runs) == "no-deviation-found"
    runs[number] = without(runs[number], what)
    assert status(runs) == "deviates"


def test_runs_without_logs_conform_but_runs_with_empty_logs_deviate():
    run = table.as_declared(THREE)
    assert status([run, RunEvidence(told=ReportedSteps()), run]) == "deviates"
    # Of many runs only the first ones are logged; of some, released models are not counted either.
    assert (
        status([run, run, run, RunEvidence(), RunEvidence(steps=run.steps, states=run.states)]) == "no-deviation-found"
    )


def test_a_second_run_that_reports_nothing_is_missing():
    plan = run()
    whole = table.as_declared(plan)
    silent = replace(whole, noise_log=replace(whole.noise_log, twin=None))
    promised = list(table.foresee(plan))
    found = [list(table.of_runs([Phase.of(PHASE)], [one])) for one in (whole, silent)]
    names = [conformance_of("no-deviation-found", made, 20, promised, executed=True).status for made in found]
    assert names == ["no-deviation-found", "checks-missing"]


def test_each_sampling_scheme_has_rows():
    names = {row.name for row in table.TABLE if row.of_batches}
    checks = [scheme_named(name).checks for name in SCHEMES]
    assert all(checks)
    assert set().union(*checks) == names


def test_rows_are_complete_and_have_distinct_names():
    names = [(row.assumption, row.observed, row.compares) for row in table.TABLE]
    assert len(set(names)) == len(names)
    for row in table.TABLE:
        assert all((row.evidence, row.null, row.detects))


def with_steps(sampling: str, steps: int) -> Phase:
    options = {
        "poisson": {"rate": 0.05},
        "truncated-poisson": {"rate": 0.05, "max_batch": 120},
        "random-allocation": {"epoch_steps": 20, "batches_per_epoch": 2},
    }
    return phase_of(sampling, steps, **options.get(sampling, {"batch_size": 150}))


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize("looks", [None, 7, 31])
def test_planned_parts_are_those_of_masks_of_all_steps(scheme: str, looks: int | None) -> None:
    phases = [with_steps(scheme, steps) for steps in (60, 140)]
    masks = np.split(looked(200, looks), [60])
    parts = table._parts(phases, 2000, measured_steps(200, looks))
    for part, mask, phase in zip(parts, masks, phases, strict=True):
        sampler = sampler_of(phase["sampling"], 2000)
        assert part.seen == mask.sum()
        assert part.first == mask[:: sampler.dependent_steps].sum()
        assert part.inclusion == pytest.approx(sampler.inclusion_moments(mask)[1].sum(), rel=1e-12, abs=1e-12)


@pytest.mark.family
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize("looks", [None, 100])
def test_a_plan_needs_no_memory_for_steps(scheme: str, looks: int | None) -> None:
    of = replace(run(with_steps(scheme, 10**9)), looks=looks)
    table.as_declared(replace(of, phases=(with_steps(scheme, 1000),)))
    tracemalloc.start()
    try:
        table.as_declared(of)
        # One byte a step would be 1000e6. The window of a count of inclusions grows with the root of the steps.
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
