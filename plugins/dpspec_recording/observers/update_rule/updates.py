"""The updates that the optimizer makes of its gradients.

The mistake: code within ``step()`` adds to the parameters what has no noise::

    class Warm(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                p.data -= 0.01 * clean[p]

An audited update is made again, on copies of parameters, gradients, state and options, by the method of torch's class,
and its result is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpspec.text import several
from dpspec_recording.folder.merging import Count, Names, join_by, union, word
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue, Statement, asked, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms

_SUM = join_by(sum)

#: Relative differences that a comparison finds: of an update of torch, which may differ by two units in the last place,
#: and of one of optax, which fuses operations.
_OF_TORCH, _OF_ARRAYS = 2.0**-22, 2.0**-16

#: Name of a class.
_CLASS = re.compile(r"[A-Za-z_][\w.<>]{0,99}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class UpdateFacts:
    """Updates. recomputed: on copies; different: of these, with another result; failed: that cannot be recomputed.

    optimizer: the class whose updates are not recomputed, empty otherwise. replayed: its updates that were replayed
    with other records in the batch; moved: of these, that the records move. step_hooks: names of functions of the
    script that a step calls, if it changes gradients.
    """

    steps: Count = field(metadata=_SUM)
    recomputed: Count = field(metadata=_SUM)
    different: Count = field(metadata=_SUM)
    failed: Count = field(metadata=_SUM)
    optimizer: str = field(metadata=join_by(word))
    replayed: Count = field(metadata=_SUM)
    moved: Count = field(metadata=_SUM)
    step_hooks: Names = field(metadata=join_by(union))


UPDATES = Fault(
    name="other-updates",
    condition="update-rule",
    title="updates that differ from the recomputed update",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/820",
    advice="Remove hooks from the optimizer, and change no parameter or state in its step. A loop with arrays moves "
    "its parameters by these updates alone: it puts no earlier weights back, and changes no number in the state of the "
    "optimizer, such as a learning rate by a loss.",
)

WITH_RECORDS = Fault(
    name="updates-with-records",
    condition="update-rule",
    title="updates that other records in the batch move, with the noisy gradients as executed",
    observed="measured",
    source="package dp-lora 0.1.0",
    advice="The optimizer's step may read the noisy gradients, its parameters and its own state only: no token, mask, "
    "loss or length of the batch.",
)


class Updates(Observer[UpdateFacts]):
    """Recomputes the updates of audited steps."""

    name, kind = "updates", UpdateFacts | None

    def __init__(self) -> None:
        self._training: Training | None = None

    def start(self, training: Training) -> None:
        """Find how the optimizer's updates are recomputed."""
        if training.optimizer is None:
            return
        from dpspec_recording.watching.optimizer_updates import recomputed_updates

        self._training, self._updates = training, recomputed_updates(training.optimizer, training.trained)
        self._replayer: Any = training.replayer

    def before_update(self) -> None:
        """Copy parameters, gradients, options and state."""
        if self._training is not None:
            self._updates.before_step(audited=self._training.audits.audited)

    def after_update(self) -> None:
        """Compare the result."""
        if self._training is not None:
            self._updates.after_step(compared=self._training.is_gradient_compared)

    def facts(self) -> UpdateFacts | None:
        """None without an optimizer. Without steps for fused updates in half precision, which are not recomputed."""
        if self._training is None:
            return None
        updates = self._updates
        if not updates.is_recomputed:
            counts = {"steps": 0, "recomputed": 0, "different": 0, "failed": 0}
        else:
            recomputed = {"recomputed": updates.recomputed, "different": updates.different}
            counts = {"steps": updates.steps, "failed": updates.failed, **recomputed}
        if self._replayer is None:
            counts |= {"replayed": 0, "moved": 0}
        else:
            counts |= {"replayed": self._replayer.own_updates.replayed, "moved": self._replayer.own_updates.moved}
        return UpdateFacts(**counts, optimizer=updates.kind, step_hooks=tuple(updates.hooks))

    @staticmethod
    def judge(facts: UpdateFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """Recomputed updates must be equal. Others leave the update rule open, or are stated by their class."""
        if facts is None or run.audits is None:
            return
        audits = run.audits
        if not facts.optimizer and facts.steps < audits.steps * max(1, run.header.world):
            text = "the recording does not show whether each update is the one that the optimizer computes"
            yield doubted("update-rule", text=text)
        if facts.recomputed:
            note, whole = f"at {facts.recomputed} of {facts.steps} steps", facts.recomputed == facts.steps
            limit = _OF_ARRAYS if run.has_arrays else _OF_TORCH
            yield UPDATES.none_found(facts.different, note, limit if whole else audits.limit, whole=whole)
        if facts.failed:
            text = (
                f"{facts.failed} updates could not be recomputed: {_changes_in_step(facts)}, or an option or a part of "
                "the state cannot be copied"
            )
            yield doubted("update-rule", text=text)
        if facts.replayed:
            note = f"at {facts.replayed} replayed updates of {facts.optimizer}"
            yield WITH_RECORDS.none_found(facts.moved, note, None, whole=False)
        if _CLASS.fullmatch(facts.optimizer):
            text = f"{facts.optimizer}, whose updates are not recomputed, steps with the noisy gradients only"
            yield stated("update-rule", text=text)

    @staticmethod
    def ask(facts: UpdateFacts | None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """An update that is not recomputed may read records."""
        if facts is not None and facts.optimizer:
            replayed = "no update was replayed"
            if facts.replayed:
                replayed = f"{several(facts.replayed, 'update')} stayed in replays with other records"
            yield asked(
                "update-rule",
                f"the step of {facts.optimizer} reads the noisy gradients and its own state only: no batch, token, "
                f"mask or loss, also not of earlier batches ({replayed})",
            )


def _changes_in_step(facts: UpdateFacts) -> str:
    """What may have changed gradients within the steps of the optimizer, by the names of its hooks."""
    if not facts.step_hooks:
        return "gradients changed during step()"
    named = ", ".join(facts.step_hooks[:5])
    return f"gradients changed during step(), which calls the optimizer's hooks {named}: change them before step()"
