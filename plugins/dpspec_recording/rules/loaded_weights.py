"""Whether the script loads weights into the model within the block, such as earlier ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
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


class LoadedWeights(TrainingRule):
    """Compares the weights after a step with those before the next one, if ``load_state_dict`` was called in between.

    A script may load an average for an evaluation and then go back: only weights with which it trains on count.
    """

    def __init__(self) -> None:
        self._undo: list[Any] = []
        self._model: Any = None
        self._optimizer: Any = None
        self._saved: list[tuple[int, list[Any]]] = []  # the step after which weights were saved, and fingerprints
        self._before: list[Any] = []  # the weights before the first load since the last step
        self._before_step: Any = None
        self._steps = self._loads = self._calls = 0
        #: [the last step before the load, the step of the loaded weights or -1], of each change.
        self._changes: list[list[int]] = []

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
        self._settle()
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
                self._before_step = self._optimizer.register_step_pre_hook(suppressed(lambda *_: self._settle()))

    def _settle(self) -> None:
        """Note whether the loads since the last step changed the weights."""
        from dpspec_recording.fingerprints import differ

        before, self._before = self._before, []
        if self._before_step is not None:
            self._before_step.remove()
            self._before_step = None
        if before and bool(differ(before, now := self._fingerprints())):
            origin = max((step for step, saved in self._saved if not bool(differ(saved, now))), default=-1)
            if origin != self._steps:
                self._changes.append([self._steps, origin])

    def facts(self) -> Mapping[str, Any]:
        return {"loads": self._loads, "changes": self._changes[:20], "changed": len(self._changes)}

    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        changes: Sequence[Sequence[int]] = facts["changes"]
        if not changes:
            return ""
        step, origin = next((change for change in changes if change[1] >= 0), changes[0])
        number = int(facts["changed"])
        loads = f"load_state_dict changed the weights {'once' if number == 1 else f'{number} times'} within the block"
        source = f"to the weights after step {int(origin)}" if origin >= 0 else "to weights of another source"
        return f"{loads}, after step {int(step)} {source}: did a loss on the records choose them?"
