"""A run that tells nothing, or releases nothing, where other runs of the same audit do is no run that conforms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpspec.contract import FrozenMap, Phase
from dpspec.engine.judging.conformance_status import conformance_of
from dpspec.stats.conformance import expectations, run_checks
from dpspec.stats.conformance.evidence.reported import Told
from dpspec.stats.conformance.evidence.run import RunEvidence

PHASE = {"noise_multiplier": 1.0, "clip_norm": 1.0, "steps": 20, "sampling": {"scheme": "poisson", "rate": 0.1}}

LOGS = {"batches": "sampling_log", "noise": "noise_log", "norms": "norm_log"}

ALL = frozenset({"iterates", "sampling-log", "noise-log", "norm-log"})

THREE = expectations.Run(
    phases=[FrozenMap(PHASE)], records=200, parameters=40, groups={}, capabilities=ALL, trials=3, twin=False
)


def status(runs: list[RunEvidence]) -> str:
    checks = list(run_checks.of_runs([Phase.of(phase) for phase in THREE.phases], runs))
    promised = list(expectations.foresee(THREE))
    return conformance_of("no-deviation-found", checks, len(checks), promised, executed=True).status


def without(run: RunEvidence, what: str) -> RunEvidence:
    """A run that never told of ``what``, or never released a state."""
    if what == "states":
        return replace(run, steps=None, states=None, noise=None, measured=None, signal=None)
    assert run.told is not None
    changes = {LOGS[what]: None, "told": replace(run.told, **{what: None})}
    return replace(run, **changes)


def test_runs_that_tell_all_conform() -> None:
    assert status([expectations.as_declared(THREE)] * 3) == "no-deviation-found"


@pytest.mark.parametrize("what", [*LOGS, "states"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_silent_run_among_three_deviates(what: str, number: int) -> None:
    runs = [expectations.as_declared(THREE)] * 3
    runs[number] = without(runs[number], what)
    assert status(runs) == "deviates"


def test_a_run_of_which_nothing_is_known_deviates() -> None:
    run = expectations.as_declared(THREE)
    assert status([run, RunEvidence(told=Told()), run]) == "deviates"


def test_runs_that_nobody_logged_need_not_tell() -> None:
    # Of many runs the first ones alone are logged; of some, released states are not counted either.
    run = expectations.as_declared(THREE)
    assert (
        status([run, run, run, RunEvidence(), RunEvidence(steps=run.steps, states=run.states)]) == "no-deviation-found"
    )
