"""The options of the optimizer and of the private sum at each step.

The mistake: a loss on the records, without noise, decides the learning rate of later steps::

    if validation_loss > best:
        optimizer.param_groups[0]["lr"] *= 0.5

A change by a scheduler of torch or Opacus is fixed in advance. The steps of the folder hold all changes, so that
:class:`~dpspec_recording.probes.option_history.OptionHistory` is made from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpspec_recording.outcomes.outcome import Outcome, Remark
from dpspec_recording.probes.probe import Probe, Training

if TYPE_CHECKING:
    from dpspec_recording.pending_step import PendingStep
    from dpspec_recording.probes.judged_run import JudgedRun


class Options(Probe[None]):
    """Reads all options before each update, and notes who changed them."""

    name = "options"

    def start(self, training: Training) -> None:
        """Observe the schedulers. The saved states of a training need its options, too."""
        from dpspec_recording.watching.options import OptionWatch

        self._audits, self._parts = training.audits, training.script_parts
        self._watch = training.options = OptionWatch(
            training.optimizer, training.private_options, training.guarded, training.accumulates
        )
        training.undo.callback(self._watch.remove)
        if training.part > 1:  # a later part continues the options
            self._watch.read()
            self._watch.changes()

    def before_update(self) -> None:
        """Read the options that the update uses."""
        self._watch.read()

    def after_report(self) -> None:
        """Read the options of a step that no update may show."""
        self._watch.read()

    def after_step(self, step: PendingStep) -> None:
        """State the changes. After one by unknown code, the next step is audited."""
        from dpspec_recording.watching.options import UNKNOWN

        step.learning_rate = self._parts.learning_rate()
        step.options = self._watch.changes()
        if step.options and step.number > 1 and any(change.by == UNKNOWN for change in step.options.values()):
            self._audits.include()

    @staticmethod
    def judge(facts: None, run: JudgedRun) -> Iterator[Outcome]:
        """No record may change an option."""
        yield from run.options.doubts()
        if not run.options.first:
            text = "the recording holds no options of the optimizer: record again with this version of dpspec"
            yield Remark(condition="update-rule", text=text)
