"""Recorded runs that hold facts of probes, and no training: what a judge says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np

from dpspec.stats.conformance.batch_checks import SamplingSums
from dpspec_recording.folder.audit_facts import AuditFacts
from dpspec_recording.folder.events import COLUMNS, Header, OptionChange
from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.part import Part
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.folder.recording import Recording
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.constants.option_history import OptionHistory
from dpspec_recording.observers.judged_run import InternalSums
from dpspec_recording.observers.observer import Observer
from dpspec_recording.outcomes.issue import Issue, Statement

#: The origin of options at the first step.
START = "start"

#: Values of each step of an honest run; others were not observed.
STEP = {"updates": 1.0, "rows": 10.0, "drawn": 10.0, "batches": 1.0, "noise_multiplier": 1.0, "clip_norm": 1.0}
STEP |= {"deviation": 1.0, "divisor": 10.0, "measured_divisor": 10.0, "rate": 0.1, "noise_squares": 5.0}


def run_with(
    facts: Mapping[type[Observer[Any]], Any],
    *,
    steps: int = 100,
    audited: int | None = None,
    ended: bool = True,
    columns: Mapping[str, Any] | None = None,
    changes: Sequence[Mapping[str, OptionChange]] = (),
    **header: Any,
) -> RecordedRun:
    """Return a run of Opacus' optimizer with these facts alone. changes: of options, from the second step on."""
    made = Header(**{"source": "opacus", "optimizer": "DPOptimizer", "scheme": "poisson", "records": 100, **header})
    audits = AuditFacts(steps=steps, audited=steps if audited is None else audited, share=0.1)
    values = {name: np.full(steps, {**STEP, **(columns or {})}.get(name, np.nan)) for name in COLUMNS}
    zeros = np.zeros(steps)
    seen = InternalSums(
        largest=zeros + 1.0,
        lower=zeros,
        sum_norm=zeros + 2.0,
        reported=zeros + 10.0,
        outside=zeros,
        sampling=SamplingSums(records=100, repeats=0, batches=()),
        most_often=None,
    )
    run = RecordedRun(
        folder=Recording((Part(Path("run"), (RunFolder(Path("run"), made, "", OBSERVERS),), made),), made),
        columns=values,
        layers=np.zeros(0),
        quietest=np.zeros(0),
        rows=np.zeros((0, 1)),
        end=end_with(facts, audits) if ended else None,
        options=history_of({"lr": OptionChange(START, (0.1,))}, *changes),
    )
    vars(run)["internal"] = seen
    return run


def history_of(*changes: Mapping[str, OptionChange]) -> OptionHistory:
    """Return the options of a run with these changes at its first steps."""
    history = OptionHistory()
    for number, change in enumerate(changes, start=1):
        history.add(number, change)
    return history


def end_with(facts: Mapping[type[Observer[Any]], Any], audits: AuditFacts) -> Facts:
    """Return the facts of an end record."""
    unseen: dict[str, Any] = {each.name: None for each in fields(Facts) if each.default is MISSING}
    unseen |= {"audits": audits, "seconds": 1.0}
    return Facts(**{**unseen, "observed": {probe.name: fact for probe, fact in facts.items()}})


def said(outcome: Statement) -> tuple[str, bool]:
    """Return the name of the fault or the condition, and whether the outcome is an alarm."""
    if isinstance(outcome, Issue):
        if outcome.test is None:
            return outcome.condition, outcome.level == "open"
        return outcome.name, outcome.test.p_value < 1e-6
    return outcome.name, outcome.status in ("unchecked", "false")


def alarms(probe: type[Observer[Any]], fact: Any, run: RecordedRun | None = None, **made: Any) -> set[str]:
    """Return the faults and open conditions that a judge finds in a fact."""
    run = run_with({probe: fact}, **made) if run is None else run
    return {name for name, is_alarm in map(said, probe.judge(run.fact(probe), run)) if is_alarm}
