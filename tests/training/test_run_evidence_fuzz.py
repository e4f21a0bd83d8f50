"""Evidence with one leaf replaced is refused, with the place named, or tested: nothing else happens, and quickly."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
import torch
from support.forger.leaves import put
from support.phases import phase_of

from dpspec.contract import FrozenMap, TrainingJob, thaw
from dpspec.stats.conformance import table
from dpspec.stats.conformance.evidence import read_run, write_run
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.run_evidence import RunLogs, WatchedRun, reported_evidence
from dpspec.training.measure.scores import ProjectionObserver

#: Replacements of a leaf.
OTHERS: tuple[Any, ...] = (
    None,
    "x",
    True,
    -1,
    0,
    0.5,
    -0.5,
    10**400,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    {},
    [],
)

#: Seconds that one reading may take, far more than it does.
LIMIT = 5.0

Place = tuple[str | int, ...]

POISSON = phase_of("poisson", 24, 1.5, rate=0.3)
PHASES = (POISSON, phase_of("fixed", 7, 1.5, batch_size=12))

_RUNS: list[dict[str, Any]] = []


def run_of(job: TrainingJob, seed: int) -> dict[str, Any]:
    """The evidence of a run with gradient canaries and of a canary-free run."""
    directions, coins = SignBlocks(63, 24, seed=0), np.arange(24) % 2
    canaries = CanaryGroups.planted(directions, torch.from_numpy(coins) == 1, 1, 10.0)
    job = replace(job, seed=seed, canaries=canaries)
    watched, twin = WatchedRun(job, ProjectionObserver(job, directions)), RunLogs(job)
    NativeTrainer().train(replace(job, seed=seed + 100, observers=twin.observers))
    NativeTrainer().train(replace(job, observers=watched.observers))
    evidence = watched.evidence(twin, np.ones(24, dtype=np.int64), coins)
    read: dict[str, Any] = json.loads(json.dumps(evidence))
    return read


@pytest.fixture
def runs(make_job: Any) -> list[dict[str, Any]]:
    if not _RUNS:
        job = make_job(phases=PHASES)
        _RUNS.extend(run_of(job, seed) for seed in (1, 2))
    return _RUNS


def leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in a value but those deep in long lists of numbers: of those the first two."""
    if place:
        yield place
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*place, key))
    elif isinstance(value, list):
        numbers = all(isinstance(inner, int | float) for inner in value)
        for i, inner in enumerate(value[:2] if numbers and len(value) > 5 else value):
            yield from leaves(inner, (*place, i))


def outcomes(
    evidence: dict[str, Any], others: list[dict[str, Any]], few: int = len(OTHERS)
) -> Iterator[tuple[Place, Any, str]]:
    """For each leaf and ``few`` other values: the message of the ``ValueError``, or nothing where checks are made."""
    beside, values = [FrozenMap(other) for other in others], cycle(OTHERS)
    for place in leaves(evidence):
        for value in islice(values, few):
            began, message = time.process_time(), ""
            try:
                made = list(table.checks(PHASES, [FrozenMap(put(evidence, place, value)), *beside]))
                assert all(0.0 <= check.p_value <= 1.0 for check in made), (place, value)
            except ValueError as error:
                message = str(error)
            assert time.process_time() - began < LIMIT, (place, value)
            yield place, value, message


@pytest.mark.ci
@pytest.mark.parametrize("few", [2, pytest.param(len(OTHERS), marks=pytest.mark.slow)])
def test_each_leaf_of_real_evidence(runs: list[dict[str, Any]], few: int) -> None:
    assert list(table.checks(PHASES, [FrozenMap(run) for run in runs]))
    tested, refused = 0, 0
    for place, value, message in outcomes(runs[0], runs[1:], few):
        tested, refused = tested + (not message), refused + bool(message)
        never = value is None or value == "x" or (isinstance(value, int | float) and not abs(value) < 1e305)
        if never:
            spelled = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)
            assert message.startswith(f"evidence of trial 1{spelled} must be "), (place, value, message)
        elif message:
            assert message.startswith("evidence of trial 1."), (place, value, message)
    assert refused > 8 * tested > 0


@pytest.mark.ci
def test_evidence_is_written_as_it_was_read(runs: list[dict[str, Any]]) -> None:
    for evidence in runs:
        assert json.dumps(write_run(read_run(evidence))) == json.dumps(evidence)


@pytest.mark.parametrize(
    ("place", "value", "rule"),
    [
        (("noise_log", "steps"), 30, "noise_log.degrees must be a multiple of 30 steps"),
        (("sampling_log", "batches"), [], "sampling_log.batches must be of 2 phases, got 0"),
        (("sampling_log", "records"), 10, "total must be at most 10 times the steps"),
        (("sampling_log", "batches", 0, "steps"), 25, "sizes.steps must be 25, got 24"),
        (("internal", "measured", "steps"), 0, "drift and lag must be present exactly if there are steps"),
        (("internal", "measured", "drift", "total"), float("nan"), "drift.total must be a number from -1e+304"),
        (("internal", "signal", "moments"), [], "signal.moments must have each size"),
        (("internal", "signal", "moments", 0, 1), 1, "signal.moments must have each size"),
        (("internal", "signal", "moments", 0, 0), 10**6, "signal.moments must have each size"),
        (("internal", "signal", "by_step", "steps"), 40, "signal.by_step must be of at most 31 steps, got 40"),
        (("internal", "signal", "by_step", "products", 0), [0.0, 1.0], "by_step.products must be a triangle"),
        (
            ("internal", "signal", "by_step", "products", 1, 0),
            1e300,
            "products must be at most the products of the norms",
        ),
        (("internal", "measured", "shared", "squares"), {"a": 1e6, "b": 1e6}, "shared.squares must name two of"),
        (("internal", "measured", "shared", "count"), 7, "of the smaller layer in 31 steps, got 7"),
        (("internal", "measured", "shared", "pairs"), 2**60, "shared.pairs must be 15, got"),
        (("internal", "measured", "shared", "planned"), 2**62, "for each of at most 31 steps, got"),
        (("internal",), None, "internal must be a mapping, got None"),
        (("steps",), 10**100, "steps must be an integer from 0 to 9.223e+18, got a huge number"),
        (("internal", "measured", "layers"), {"\x1b[2J": "x"}, "layers.'\\x1b[2J' must be a list of 2: total, degrees"),
        (("states", "blind"), 1, "states.blind must be true or false, got 1"),
    ],
)
def test_what_contradicts_itself_is_refused(runs: list[dict[str, Any]], place: Place, value: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=r"^evidence of trial 2") as caught:
        list(table.checks(PHASES, [FrozenMap(runs[0]), FrozenMap(put(runs[1], place, value))]))
    assert rule in str(caught.value)


def test_trials_of_different_models_are_refused(runs: list[dict[str, Any]]) -> None:
    other = thaw(runs[1])
    other["internal"]["measured"]["layers"] = {"a": [90.0, 1]}
    del other["internal"]["measured"]["shared"]
    with pytest.raises(
        ValueError, match=r"trial 2\.internal\.measured\.layers must equal the layers of the other trials"
    ):
        list(table.checks(PHASES, [FrozenMap(runs[0]), FrozenMap(other)]))


def test_a_sampler_that_draws_everything_twice_is_detected_and_not_rejected(make_job: Any) -> None:
    logs = RunLogs(make_job(phases=(POISSON,)))
    for step in range(1, 25):
        logs.sampling.sampled(step, torch.arange(40).repeat(2))
    made = list(table.checks((POISSON,), [FrozenMap(write_run(reported_evidence(logs)))]))
    assert max(check.p_value for check in made if check.test.startswith(("binomial,", "records drawn"))) < 1e-9


def test_a_model_that_diverged_is_tested(runs: list[dict[str, Any]]) -> None:
    """Measurements that are not finite are stored as 1e300: no test overflows or reports too little noise."""
    wild = thaw(runs[0])
    wild["internal"]["measured"] |= {"variance": 1e300, "least": 1e-10, "rounding": 1e300}
    wild["internal"]["measured"]["drift"] = {"total": 1e300, "unit": 1e300}
    wild["internal"]["noise"]["statistic"] = 1e300
    made = list(table.checks(PHASES, [FrozenMap(wild)]))
    assert all(check.p_value > 1e-6 for check in made if check.assumption in ("update", "noise-scale"))
