"""Writes to parameters between the updates of the optimizer.

The mistakes: a second optimizer or an average writes to the weights without noise; a checkpoint is loaded that the loss
on the records chose; or weights of an earlier step are put back::

    if loss < best:
        best, kept = loss, copy.deepcopy(model.state_dict())
    ...
    model.load_state_dict(kept)          # between two steps of the recording
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpspec.contract.rules import MADE_TWICE
from dpspec_recording.folder.merging import Count, Number, join_by
from dpspec_recording.observers.gradient_parameters.passes import OTHER_PARAMETERS
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun


@dataclass(frozen=True, kw_only=True)
class ParameterFacts:
    """Writes that the steps do not show: each step states whether parameters moved before it (``outside``).

    outside: 1 if code other than the optimizer moved a parameter after the last step. loaded: the number of steps
    before which loaded weights moved the parameters; returned: before which weights of an earlier step were put back in
    another way.
    """

    # the parameters of all ranks are equal, so that each rank sees the same writes
    outside: Number = field(metadata=join_by(max))
    loaded: Count = field(metadata=join_by(max, sum))
    returned: Count = field(metadata=join_by(max, sum))


SEVERAL_UPDATES = Fault(
    name="several-updates",
    condition="update",
    title="steps with more or fewer than one update",
    observed="measured",
    source="https://github.com/google-deepmind/jax_privacy/issues/288",
    advice=(
        "Make one update of the optimizer for each drawn batch: a second one from the same noisy sum, or an "
        "update without new noise, costs more than the accountant counts. A plain loop calls run.stepped() "
        "after each."
    ),
)
MOVED = Fault(
    name="moved-parameters",
    condition="update",
    title="parameter changes outside the DP optimizer",
    observed="measured",
    source=MADE_TWICE,
    advice=(
        "A recording cannot distinguish a change that depends on no record (clamping, an average of "
        "weights) from training without noise: if it reads no record, make it after the recorded block; "
        "else remove it."
    ),
)
LOADED = Fault(
    name="loaded-weights",
    condition="update",
    title="weights that load_state_dict put into the model between steps",
    observed="measured",
    source=MADE_TWICE,
    advice=(
        "Loaded weights may depend on the records without noise: a checkpoint that their loss chose, or an "
        "average with other weights. Load them before dpspec.record begins, and record what follows as a "
        "part, with resume=True."
    ),
    explains=(OTHER_PARAMETERS.name,),
)
RETURNED = Fault(
    name="returned-weights",
    condition="update",
    title="weights of an earlier step that were put back between steps",
    observed="measured",
    source=MADE_TWICE,
    advice=(
        "The training went back to weights that it had before: if a loss or an accuracy on the records "
        "chose them (the best of all), the choice has no noise and depends on each record. Go on from the "
        "last weights, or choose by public records and record what follows as a part, with resume=True."
    ),
    explains=(OTHER_PARAMETERS.name,),
)


class Parameters(Observer[ParameterFacts]):
    """Notes the steps before which weights were loaded or put back.

    Weights that are loaded before the first step of a training are its initial ones. A later part has the initial
    weights of the first part, so that they count there.
    """

    name, kind = "parameters", ParameterFacts

    def __init__(self) -> None:
        self._is_loaded = False
        self._begin: Callable[[], None] | None = None
        self._loaded = self._returned = 0

    def start(self, training: Training) -> None:
        """Attach a hook that torch calls after it has loaded weights."""
        from dpspec_recording.model_hook import ModelHook
        from dpspec_recording.recognized import inner_module

        self._training = training
        self._begin = None if training.part > 1 else training.parameters.advance
        hook = ModelHook(lambda *_: training.guarded(self._note))
        module: Any = inner_module(training.script_parts.model)
        training.undo.callback(module.register_load_state_dict_post_hook(hook).remove)

    def before_update(self) -> None:
        """Note why the parameters moved since the last step, if they did."""
        moved = self._training.moved
        self._begin = None
        if self._is_loaded:
            self._is_loaded = False
            self._loaded += bool(moved)
        elif bool(moved):
            self._returned += self._training.parameters.returned()

    def _note(self) -> None:
        if self._begin is None:
            self._is_loaded = True
        else:
            self._begin()

    def facts(self) -> ParameterFacts:
        """The writes until now, with those after the last step."""
        parameters = self._training.parameters
        moved = bool(parameters.moved())
        return ParameterFacts(
            outside=float(moved),
            loaded=self._loaded + (self._is_loaded and moved),
            returned=self._returned + (not self._is_loaded and moved and parameters.returned()),
        )

    @staticmethod
    def judge(facts: ParameterFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """Each step has one update, and nothing else moved the parameters. A write is tested by its kind."""
        updates, internal = run["updates"], run.internal
        if np.isfinite(updates).any():
            yield SEVERAL_UPDATES.none_found(int((updates != 1).sum()), "one update a step")
        if internal is None or not np.isfinite(internal.outside).any():
            return
        moved = int((np.nan_to_num(internal.outside, nan=0.0) > 0.0).sum())
        loaded = returned = 0
        if facts is not None:
            moved += facts.outside > 0.0
            loaded = min(facts.loaded, moved)
            returned = min(facts.returned, moved - loaded)
        note = "between and after the recorded steps"
        yield MOVED.none_found(moved - loaded - returned, note)
        if loaded:
            yield LOADED.none_found(loaded, note)
        if returned:
            yield RETURNED.none_found(returned, note)
