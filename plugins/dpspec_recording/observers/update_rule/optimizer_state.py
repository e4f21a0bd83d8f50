"""The state of the optimizer between its steps, such as momentum.

The mistake: a script writes to the state, so that gradients without noise enter the next updates::

    for p in model.parameters():
        optimizer.state[p]["momentum_buffer"] += clean_gradient[p]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dpspec_recording.folder.merging import Count, join_by
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.issue import Statement, doubted

if TYPE_CHECKING:
    from torch import Tensor

    from dpspec_recording.fingerprints import TensorSnapshot
    from dpspec_recording.observers.judged_run import JudgedRun


@dataclass(frozen=True, kw_only=True)
class OptimizerStateFacts:
    """restated: the number of steps that begin with another state than the audited step before left. resumed: whether
    the optimizer had made steps at the beginning."""

    restated: Count = field(metadata=join_by(sum))
    # later parts of a training begin with the state of earlier ones
    resumed: bool = field(metadata=join_by(max, itemgetter(0)))


class OptimizerState(Observer[OptimizerStateFacts]):
    """Compares the state after an audited step with the state before the next one."""

    name, kind = "optimizer_state", OptimizerStateFacts | None

    def __init__(self) -> None:
        self._training: Training | None = None
        self._left: dict[int, tuple[tuple[str, ...], TensorSnapshot]] = {}

    def start(self, training: Training) -> None:
        """Keep the state before the first step."""
        if training.optimizer is None:
            return
        from dpspec_recording.fingerprints import Tally
        from dpspec_recording.watching.optimizer_updates import is_fresh

        self._training, self._optimizer = training, training.optimizer
        self._restated, self._resumed = Tally(), not is_fresh(training.optimizer)
        self._keep()

    def before_update(self) -> None:
        """Compare with the kept state; a state that was not kept is not compared."""
        if self._left:
            self._compare()

    def after_update(self) -> None:
        """Keep the state that an audited step leaves."""
        self._left = {}
        if self._training is not None and self._training.audits.audited:
            self._keep()

    def _keep(self) -> None:
        from dpspec_recording.fingerprints import TensorSnapshot

        for p, values in self._state():
            self._left[id(p)] = tuple(values), TensorSnapshot()
            self._left[id(p)][1].keep(values.values())

    def _compare(self) -> None:
        from dpspec_recording.fingerprints import TensorSnapshot, any_event

        empty = TensorSnapshot()  # of a parameter without state
        empty.keep(())
        events: list[bool | Tensor] = []
        for p, values in self._state():
            names, snapshot = self._left.get(id(p), ((), empty))
            events += [names != tuple(values), snapshot.differ(values.values())]
        self._restated.add(any_event(events))

    def _state(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """All parameters with their state."""
        state = {id(p): values for p, values in self._optimizer.state.items()}  # the hash of a tensor is slow
        return [(p, state.get(id(p)) or {}) for group in self._optimizer.param_groups for p in group["params"]]

    def facts(self) -> OptimizerStateFacts | None:
        """None without an optimizer."""
        if self._training is None:
            return None
        return OptimizerStateFacts(restated=int(self._restated), resumed=self._resumed)

    @staticmethod
    def judge(facts: OptimizerStateFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """Writes to the state leave the update rule open, and earlier steps leave the released model open."""
        if facts is None:
            return
        if facts.restated:
            text = f"the optimizer's state (such as momentum) was changed before {facts.restated} of its steps"
            yield doubted("update-rule", text=text)
        if facts.resumed and not run.header.told_before:  # which says so with the number of steps
            yield doubted("released-model", text="its optimizer had made steps when it began")
