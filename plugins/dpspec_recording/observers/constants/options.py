"""The options of the optimizer and of the private sum at each step.

The mistake: a loss on the records, without noise, decides the learning rate of later steps::

    if validation_loss > best:
        optimizer.param_groups[0]["lr"] *= 0.5

A change by a scheduler of torch or Opacus is fixed in advance. The steps of the folder hold all changes, so that
:class:`~dpspec_recording.observers.constants.option_history.OptionHistory` is made from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from dpspec.decimals import nearest
from dpspec.text import joined
from dpspec_recording.observers.constants.option_history import public_name
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.observers.update_rule.gradient_map import GradientMap
from dpspec_recording.outcomes.issue import Issue, Statement, asked, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import Array, JudgedRun, Terms
    from dpspec_recording.pending_step import PendingStep


class Options(Observer[None]):
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
    def judge(facts: None, run: JudgedRun) -> Iterator[Statement]:
        """No record may change an option."""
        yield from run.options.doubts()
        if not run.options.first:
            text = "the recording holds no options of the optimizer: record again with this version of dpspec"
            yield doubted("update-rule", text=text)

    @staticmethod
    def ask(facts: None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """All constants must be independent of the records; named with their values, unless they are public."""
        maps, replays = run.fact(GradientMap), run.fact(Replays)
        names = ["features chosen by labels", "classes", "vocabulary", "layer sizes"]
        names.append("frozen, pruned or initial weights")
        if maps is not None and maps.explained:
            names.append("the map of the noisy gradient")
        if replays is not None and replays.projected:
            names.append("the norm to which the loop clips the sum again")
        constants = joined([*names, *_constants(run, terms.public), f"{run.steps} steps"])
        yield asked(
            "data-independent-hyperparameters",
            f"{constants} were not tuned on or computed from them (see how-to/tuning.md)",
        )


def _constants(run: JudgedRun, public: Collection[str]) -> Iterator[str]:
    """The constants that the user does not declare public, with their values or ranges."""
    for name in ("learning_rate", "clip_norm", "noise_multiplier"):
        adaptive = name == "clip_norm" and run.header.clipping == "adaptive"
        text = values_in_words(run[name][:1] if adaptive else run[name])
        if public_name(name) not in public and text:
            yield (
                f"first clip norm {text} and the constants of its adaptation"
                if adaptive
                else f"{name.replace('_', ' ')} {text}"
            )


def values_in_words(values: Array) -> str:
    """The only finite value, or the range of all; empty without one."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    low, high = float(finite.min()), float(finite.max())
    return nearest(low) if low == high else f"{nearest(low)} to {nearest(high)}"
