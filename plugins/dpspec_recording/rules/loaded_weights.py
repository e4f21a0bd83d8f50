"""Whether the script loads weights into the model within the block, such as earlier ones.

The mistake: a loss of the records, which has no noise, chooses the weights::

    if loss_on(train_loader) > best:
        model.load_state_dict(best_state)
"""

from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.json_records import Count
from dpspec_recording.model_hook import suppressed

#: The number of saved states that loaded ones are compared with, and of calls that are observed.
_MOST_STATES, _MOST_CALLS = 1000, 10_000

RULE = Rule(
    name="loaded-weights",
    summary="load_state_dict changed the weights of the model within the block, for example to earlier ones",
    why="Which weights a loss or an accuracy on the records chooses, without noise, depends on each record.",
    fix="Load nothing within the block; choose by public records, or release the last weights.",
    code="dpspec_recording.rules.loaded_weights:LoadedWeights",
)


@dataclass(frozen=True, kw_only=True)
class WeightChange:
    """A load that changed the weights.

    Attributes:
        step: The last one before the load.
        origin: The step after which the loaded weights were saved; None for weights of another source.
    """

    step: Count
    origin: Count | None


@dataclass(frozen=True, kw_only=True)
class LoadFacts:
    """Loads of weights within the block.

    Attributes:
        loads: Their number.
        changed: The number of those that changed the weights.
        changes: The first of these.
    """

    loads: Count
    changed: Count
    changes: tuple[WeightChange, ...]


class LoadedWeights(TrainingRule[LoadFacts]):
    """Compares the weights after a step with those before the next one, if ``load_state_dict`` was called in between.

    A script may load an average for an evaluation and then go back: only weights with which it trains on count.
    """

    kind = LoadFacts

    def __init__(self) -> None:
        self._undo: list[Any] = []
        self._model: Any = None
        self._optimizer: Any = None
        self._saved: list[tuple[int, list[Any]]] = []  # the step after which weights were saved, and fingerprints
        self._before: list[Any] = []  # the weights before the first load since the last step
        self._before_step: Any = None
        self._steps = self._loads = self._calls = 0
        self._changes: list[WeightChange] = []

    def start(self, setup: RuleSetup) -> None:
        from torch import nn

        from dpspec_recording.recognized import inner_module

        if not isinstance(setup.model, nn.Module):
            return
        self._model, self._optimizer = inner_module(setup.model), setup.optimizer
        self._undo = [
            self._model.register_state_dict_pre_hook(suppressed(self._save)),
            self._model.register_load_state_dict_pre_hook(suppressed(self._load)),
        ]

    def after_step(self, step: RuleStep) -> None:
        self._steps = step.number

    def stop(self) -> None:
        self._note_changed_weights()
        for hook in self._undo:
            hook.remove()
        self._undo = []

    def _fingerprints(self) -> list[Any]:
        from dpspec_recording.fingerprints import fingerprint

        self._calls += 1
        return [fingerprint(parameter) for parameter in self._model.parameters()]

    def _save(self, *_: Any) -> None:
        if self._calls < _MOST_CALLS and (not self._saved or self._saved[-1][0] != self._steps):
            self._saved = [*self._saved[-_MOST_STATES:], (self._steps, self._fingerprints())]

    def _load(self, *_: Any) -> None:
        if not self._steps:  # a start from public weights is usual
            return
        self._loads += 1
        if not self._before and self._calls < _MOST_CALLS:
            self._before = self._fingerprints()
            if self._optimizer is not None:
                self._before_step = self._optimizer.register_step_pre_hook(
                    suppressed(lambda *_: self._note_changed_weights())
                )

    def _note_changed_weights(self) -> None:
        """Note whether the loads since the last step changed the weights."""
        from dpspec_recording.fingerprints import differ

        before, self._before = self._before, []
        if self._before_step is not None:
            self._before_step.remove()
            self._before_step = None
        if before and bool(differ(before, now := self._fingerprints())):
            origin = max((step for step, saved in self._saved if not bool(differ(saved, now))), default=None)
            if origin != self._steps:
                self._changes.append(WeightChange(step=self._steps, origin=origin))

    def facts(self) -> LoadFacts:
        return LoadFacts(loads=self._loads, changed=len(self._changes), changes=tuple(self._changes[:20]))

    @staticmethod
    def caution(facts: LoadFacts, run: RuleRun) -> str:
        if not facts.changes:
            return ""
        named = next((change for change in facts.changes if change.origin is not None), facts.changes[0])
        number = facts.changed
        loads = f"load_state_dict changed the weights {'once' if number == 1 else f'{number} times'} within the block"
        is_earlier = named.origin is not None
        source = f"to the weights after step {named.origin}" if is_earlier else "to weights of another source"
        return f"{loads}, after step {named.step} {source}: did a loss on the records choose them?"
