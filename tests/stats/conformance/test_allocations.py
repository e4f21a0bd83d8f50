"""Random allocation: the distribution of sizes by enumeration, faults, and false alarms. Fixed seeds."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.phases import phase_of

from dpspec.contract import Check, FrozenMap, Phase
from dpspec.sampling import SamplingScheme
from dpspec.sampling.poisson import Poisson
from dpspec.sampling.random_allocation import RandomAllocation
from dpspec.sampling.shuffled import Shuffled
from dpspec.stats.conformance import table
from dpspec.stats.conformance.epochs import evenness
from dpspec.stats.conformance.evidence import RunEvidence, looked, write_run
from dpspec.stats.conformance.table import Run, as_declared, foresee
from dpspec.training.device import generator
from dpspec.training.measure.logs import SamplingLog

Array = np.ndarray[Any, Any]

RECORDS, EPOCH, EPOCHS = 240, 8, 20

TIMES = 2

PHASE = phase_of("random-allocation", EPOCH * EPOCHS, epoch_steps=EPOCH)
SEVERAL = phase_of("random-allocation", EPOCH * EPOCHS, epoch_steps=EPOCH, batches_per_epoch=TIMES)


def spread_law(records: int, epoch_steps: int) -> dict[float, float]:
    """The probabilities of S_1, by all ways to allocate the records."""
    law: dict[float, float] = {}
    for steps in itertools.product(range(epoch_steps), repeat=records):
        sizes = np.bincount(steps, minlength=epoch_steps)
        spread = round(float(np.square(sizes - records / epoch_steps).sum()), 9)
        law[spread] = law.get(spread, 0.0) + epoch_steps**-records
    return law


@pytest.mark.parametrize(("records", "epoch_steps"), [(6, 3), (9, 2), (3, 5), (1, 4)])
def test_the_tail_is_above_that_of_all_allocations(records: int, epoch_steps: int) -> None:
    law = spread_law(records, epoch_steps)
    mean = sum(chance * spread for spread, chance in law.items())
    for spread in law:
        found = evenness(1, spread, records, epoch_steps)
        assert found.measured == pytest.approx(spread / mean)
        assert found.p_value >= sum(chance for s, chance in law.items() if s <= spread) * (1.0 - 1e-9)


@pytest.mark.family
@pytest.mark.parametrize(("records", "epoch_steps", "epochs"), [(200, 10, 5), (90, 2, 20), (40, 40, 6)])
def test_sizes_as_declared_pass_and_even_ones_do_not(records: int, epoch_steps: int, epochs: int) -> None:
    rng = np.random.default_rng(1)
    sizes = rng.multinomial(records, [1.0 / epoch_steps] * epoch_steps, size=(200, epochs))
    spreads = np.square(sizes - records / epoch_steps).sum(axis=(1, 2))
    found = [evenness(epochs, float(s), records, epoch_steps) for s in spreads]
    assert np.mean([one.p_value <= 0.1 for one in found]) <= 0.1
    even = epochs * epoch_steps * (records // epoch_steps - records / epoch_steps) ** 2
    assert evenness(epochs, even, records, epoch_steps).p_value < 1e-6
    detectable, half = found[0].detectable, 0.5 * epochs * (epoch_steps - 1)
    assert detectable is not None
    mean = epochs * records * (1.0 - 1.0 / epoch_steps)
    less = mean * (1.0 - detectable) * rng.gamma(half, 1.0 / half, 200)
    assert np.mean([evenness(epochs, float(s), records, epoch_steps).p_value <= 1e-6 for s in less]) >= 0.95


# --- a run's batches, logged as a run logs them


def evidence_of(batches: Iterator[Array], phases: tuple[Phase, ...] = (PHASE,)) -> RunEvidence:
    log = SamplingLog(phases, RECORDS)
    for step, batch in enumerate(batches, start=1):
        log.sampled(step, torch.from_numpy(np.asarray(batch, dtype=np.int64)))
    return RunEvidence(sampling_log=log.evidence())


def checks_of(batches: Iterator[Array], phases: tuple[Phase, ...] = (PHASE,)) -> list[Check]:
    found = table.of_runs(phases, [evidence_of(batches, phases)])
    return [check for check in found if check.assumption == "sampling"]


def drawn(sampler: SamplingScheme, seed: int, steps: int = EPOCH * EPOCHS) -> Iterator[Array]:
    source = generator(seed, "test")
    return (sampler.draw(source).numpy() for _ in range(steps))


def allocated(steps: Array) -> Iterator[Array]:
    return (np.flatnonzero(epoch == step) for epoch in steps for step in range(EPOCH))


def sticky(rng: np.random.Generator) -> Iterator[Array]:
    return allocated(np.tile(rng.integers(EPOCH, size=RECORDS), (EPOCHS, 1)))


def half_sticky(rng: np.random.Generator) -> Iterator[Array]:
    steps = rng.integers(EPOCH, size=(EPOCHS, RECORDS))
    steps[:, ::2] = steps[0, ::2]
    return allocated(steps)


def early(rng: np.random.Generator) -> Iterator[Array]:
    return allocated(np.maximum(0, rng.integers(-1, EPOCH, size=(EPOCHS, RECORDS))))


def twice(rng: np.random.Generator) -> Iterator[Array]:
    steps = rng.integers(EPOCH, size=(EPOCHS, RECORDS))
    batches = list(allocated(steps))
    other = 7 * EPOCH + (int(steps[7, 3]) + 1) % EPOCH
    batches[other] = np.append(batches[other], 3)
    return iter(batches)


def left_out(rng: np.random.Generator) -> Iterator[Array]:
    batches = list(allocated(rng.integers(EPOCH, size=(EPOCHS, RECORDS))))
    return iter([*batches[:-EPOCH], *(batch[batch != 5] for batch in batches[-EPOCH:])])


def chosen(steps: Array) -> Iterator[Array]:
    return (np.flatnonzero((epoch == step).any(axis=1)) for epoch in steps for step in range(EPOCH))


def sets(rng: np.random.Generator, times: int = TIMES, epochs: int = EPOCHS) -> Array:
    return rng.random((epochs, RECORDS, EPOCH)).argsort(axis=2)[:, :, :times]


def one_less(rng: np.random.Generator) -> Iterator[Array]:
    steps = sets(rng)
    steps[3, 5, 1] = steps[3, 5, 0]
    return chosen(steps)


#: A fault, its batches, the declared phase and the check that finds it.
FAULTS: dict[str, tuple[Callable[[np.random.Generator], Iterator[Array]], FrozenMap, str]] = {
    "the same step in every epoch": (sticky, PHASE, "independence across steps"),
    "half of the records keep their steps": (half_sticky, PHASE, "independence across steps"),
    "first steps are twice as likely": (early, PHASE, "rate at each step"),
    "one record twice in one epoch": (twice, PHASE, "batches of each epoch"),
    "one record in no batch of an epoch": (left_out, PHASE, "batches of each epoch"),
    "Poisson samples": (lambda rng: drawn(Poisson(RECORDS, 1.0 / EPOCH), 3), PHASE, "batches of each epoch"),
    "a shuffled order cut into equal pieces": (
        lambda rng: drawn(Shuffled(RECORDS, RECORDS // EPOCH), 3),
        PHASE,
        "variance of the batch size",
    ),
    "once instead of twice": (lambda rng: chosen(sets(rng, 1)), SEVERAL, "batches of each epoch"),
    "one record once too seldom": (one_less, SEVERAL, "batches of each epoch"),
    "the same steps in every epoch": (
        lambda rng: chosen(np.repeat(sets(rng, epochs=1), EPOCHS, axis=0)),
        SEVERAL,
        "independence across steps",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_check(fault: str) -> None:
    made, phase, by = FAULTS[fault]
    found = checks_of(made(np.random.default_rng(2)), (phase,))
    rejected = [check.note for check in found if check.p_value <= 1e-6 / len(found)]
    assert any(by in note for note in rejected), rejected


@pytest.mark.family
@pytest.mark.parametrize(("phase", "times", "checks"), [(PHASE, 1, 5), (SEVERAL, TIMES, 4)])
def test_runs_as_declared_are_not_rejected_and_make_the_planned_checks(phase, times, checks):
    sampler = RandomAllocation(RECORDS, EPOCH, times)
    made = [checks_of(drawn(sampler, seed), (phase,)) for seed in range(10)]
    found = np.array([[check.p_value for check in run] for run in made])
    assert found.shape[1] == checks
    assert np.sum(found.min(axis=1) <= 0.01) <= 4
    assert found.min() > 1e-6
    run = Run(phases=[phase], records=RECORDS, parameters=50, groups={}, capabilities=("sampling-log", "iterates"))
    assert {c.note for c in foresee(run) if c.assumption == "sampling"} == {check.note for check in made[0]}


def test_batches_are_not_compared_within_an_epoch() -> None:
    """Within an epoch none has anything in common with another, which no test takes for a surprise."""
    found = checks_of(drawn(RandomAllocation(RECORDS, EPOCH), 1, EPOCH), (PHASE.replace(steps=EPOCH),))
    assert not any("independence" in check.note for check in found)
    assert not any(check.remark for check in found)
    assert min(check.p_value for check in found) > 1e-3


@pytest.mark.parametrize("rest", [0, 3])
def test_a_run_that_was_cut_short_is_tested_as_far_as_it_went(rest: int) -> None:
    steps = 6 * EPOCH + rest
    found = checks_of(itertools.islice(drawn(RandomAllocation(RECORDS, EPOCH), 4), steps))
    assert min(check.p_value for check in found) > 1e-4
    few = checks_of(itertools.islice(drawn(RandomAllocation(RECORDS, EPOCH), 4), 3))
    assert any("batches of each epoch" in c.note and "not tested" in c.remark for c in few)


@pytest.mark.parametrize("epochs", [None, {"whole": 3, "astray": 0, "spread": 1.0}])
def test_evidence_that_hides_epochs_is_no_run_s(epochs: Any) -> None:
    evidence = write_run(evidence_of(drawn(RandomAllocation(RECORDS, EPOCH), 1)))
    (batch,) = evidence["sampling_log"]["batches"]
    other = {key: value for key, value in {**batch, "epochs": epochs}.items() if value is not None}
    log = {**evidence["sampling_log"], "batches": [other]}
    with pytest.raises(ValueError, match=f"epochs must be of {EPOCHS} whole epochs"):
        list(table.checks([PHASE], [FrozenMap({**evidence, "sampling_log": log})]))


@pytest.mark.ci
def test_an_epoch_is_compared_with_earlier_poisson_batches() -> None:
    """A record may be in several earlier batches: the p-value of the overlap still holds."""
    before, one = phase_of("poisson", EPOCH, rate=0.6), PHASE.replace(steps=EPOCH)
    surprising = 0
    for seed in range(8):
        batches = itertools.chain(
            drawn(Poisson(RECORDS, 0.6), seed, EPOCH), drawn(RandomAllocation(RECORDS, EPOCH), seed, EPOCH)
        )
        found = checks_of(batches, (before, one))
        surprising += min(check.p_value for check in found) <= 0.01
    assert surprising <= 3


@pytest.mark.parametrize("looks", [None, 16, 1])
def test_of_what_rests_on_the_past_first_steps_alone_are_foreseen(looks: int | None) -> None:
    first = int(looked(EPOCH * EPOCHS, looks)[::EPOCH].sum())
    assert 1 <= first <= EPOCHS
    given = {"phases": [PHASE], "records": RECORDS, "parameters": 50, "groups": {1: 40}, "capabilities": ("iterates",)}
    run = Run(**given, looks=looks)  # type: ignore[arg-type]
    measured = as_declared(run).measured
    assert measured is not None
    assert (measured.seen, measured.steps) == (looks or EPOCH * EPOCHS, first)
    assert {"noise-scale", "per-layer-noise", "update"} <= {check.assumption for check in foresee(run)}
