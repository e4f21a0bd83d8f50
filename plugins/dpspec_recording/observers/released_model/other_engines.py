"""Steps of other private optimizers in the recorded block.

The mistake: a second engine trains in the block, and the recorder counts the steps of the first one alone::

    with dpspec.record("run", model=model, optimizer=optimizer, loader=loader):
        train(model, optimizer, loader)
        model, optimizer, loader = PrivacyEngine().make_private(...)  # the second round
        train(model, optimizer, loader)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpspec_recording.folder.merging import Count, join_by
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.issue import Statement, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun


@dataclass(frozen=True, kw_only=True)
class OtherEngineFacts:
    """Steps of other optimizers of torch on tensors that Opacus prepared."""

    # each rank sees its own optimizers make the same steps
    steps: Count = field(metadata=join_by(max, sum))


class OtherEngines(Observer[OtherEngineFacts]):
    """Counts the steps of all optimizers of this process but the recorded one.

    Tensors have ``grad_sample`` if Opacus prepared them: an optimizer of a part without privacy, such as a generator's,
    does not count. Opacus' own optimizer calls the one inside it, so that only this one counts.
    """

    name, kind = "other_engines", OtherEngineFacts

    def __init__(self) -> None:
        self._steps = 0

    def start(self, training: Training) -> None:
        """Attach a hook of all optimizers."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from dpspec_recording.model_hook import suppressed

        self._recorded = (training.script_parts.optimizer, training.optimizer)
        is_public = training.script_parts.public is not None
        #: Steps on these tensors are of public data, which another observer tests.
        self._public = {id(p) for p in training.trained} if is_public else set[int]()
        training.undo.callback(register_optimizer_step_post_hook(suppressed(self._observe)).remove)

    def _observe(self, optimizer: Any, *_: Any) -> None:
        if any(optimizer is recorded for recorded in self._recorded) or hasattr(optimizer, "original_optimizer"):
            return
        tensors = (p for group in optimizer.param_groups for p in group["params"])
        self._steps += any(hasattr(p, "grad_sample") and id(p) not in self._public for p in tensors)

    def facts(self) -> OtherEngineFacts:
        """The steps until now."""
        return OtherEngineFacts(steps=self._steps)

    @staticmethod
    def judge(facts: OtherEngineFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """The model is not the recorded steps' alone if others made some."""
        if facts is not None and facts.steps:
            text = (
                f"other private optimizers made {facts.steps} steps in the block, which are not in this recording: "
                "record the steps of each engine in a separate part, with resume=True"
            )
            yield doubted("released-model", text=text)
