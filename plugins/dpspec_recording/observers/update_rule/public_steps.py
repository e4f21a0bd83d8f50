"""Gradients of declared public data, and steps of other optimizers that make them.

The mistake: the data that ``public=`` declares is public, and the loss of the other optimizer also reads a record::

    with dpspec.record("run", model=model, optimizer=optimizer, loader=loader, public=public_loader):
        ...
        (loss(public_batch) + loss(private_batch)).backward()
        public_optimizer.step()

A step that moves parameters of the private model by public data alone is a post-processing. Replayed steps, whose facts
the rule ``second-optimizer`` has, show whether its gradients read other tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpspec.text import several
from dpspec_recording.folder.merging import Count, join_by
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.observers.rules import Rules
from dpspec_recording.observers.update_rule import second_optimizer
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue, Statement, asked

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """Public data. is_declared: whether the script declares some; is_compared: whether its rows were compared with the
    private ones; inspected, near_copies: the rows that were compared by their distance, and those that nearly equal a
    record; steps: the number of steps of other optimizers that moved parameters of the private model."""

    is_declared: bool = field(metadata=join_by(any))
    is_compared: bool = field(metadata=join_by(all))
    inspected: Count = field(default=0, metadata=join_by(sum))
    near_copies: Count = field(default=0, metadata=join_by(sum))
    steps: Count = field(metadata=join_by(max, sum))

    @property
    def comparison(self) -> str:
        """Whether its rows were compared with the records, in words."""
        if not self.is_compared:
            return "its rows were not compared with the records"
        if 2 * self.near_copies >= self.inspected > 0:
            text = f"{self.near_copies} of {self.inspected} inspected ones nearly equal one: copies with noise?"
            return f"none of its rows is a record, but {text}"
        return "none of its rows is a record"


UNVERIFIED = Fault(
    name="unverified-public-steps",
    condition="update",
    title="steps of other optimizers on the private model that replays did not find to be of public data",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/634",
    advice=(
        "Compute the gradients of the public optimizer from the batches of public= alone, in a fixed number of rows, "
        "and let it step after the private optimizer, before the next private batch is loaded."
    ),
)


class PublicSteps(Observer[PublicFacts]):
    """Counts the public steps, whose writes to the parameters do not count as writes outside of the optimizer."""

    name, kind = "public_steps", PublicFacts

    def __init__(self) -> None:
        self._steps = 0
        self._training: Training | None = None
        self._is_moved = True

    def start(self, training: Training) -> None:
        """Attach hooks of all optimizers, if the script declares public data."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        from dpspec_recording.model_hook import ModelHook

        if training.script_parts.public is None:
            return
        self._training = training
        private = training.script_parts.optimizer, training.optimizer
        trained = {id(p) for p in training.trained}

        def is_public(optimizer: Any) -> bool:
            steps_on = (id(p) for group in optimizer.param_groups for p in group["params"])
            return not any(optimizer is part for part in private) and not trained.isdisjoint(steps_on)

        def begin(optimizer: Any, *_: Any) -> None:
            if is_public(optimizer):
                training.guarded(self._begin)

        def end(optimizer: Any, *_: Any) -> None:
            if is_public(optimizer):
                training.guarded(self._end)

        training.undo.callback(register_optimizer_step_pre_hook(ModelHook(begin)).remove)
        training.undo.callback(register_optimizer_step_post_hook(ModelHook(end)).remove)

    def _begin(self) -> None:
        assert self._training is not None
        self._is_moved = bool(self._training.parameters.moved())

    def _end(self) -> None:
        assert self._training is not None
        if not self._is_moved and bool(self._training.parameters.moved()):
            self._training.parameters.advance()
            self._steps += 1

    def facts(self) -> PublicFacts:
        """The public steps until now."""
        public = None if self._training is None else self._training.script_parts.public
        if public is None:
            return PublicFacts(is_declared=False, is_compared=False, steps=self._steps)
        return PublicFacts(
            is_declared=True,
            is_compared=public.is_compared,
            inspected=public.inspected,
            near_copies=public.near_copies,
            steps=self._steps,
        )

    @staticmethod
    def judge(facts: PublicFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """The declared data is assumed public, and no replayed public step may read other tensors."""
        if facts is None or not facts.is_declared:
            return
        yield stated("public-data", f": {facts.comparison}")
        if facts.steps:
            rules = run.fact(Rules)
            observed = () if rules is None else rules.of(second_optimizer.RULE, second_optimizer.OtherOptimizers)
            optimizers = [optimizer for fact in observed if fact is not None for optimizer in fact.optimizers]
            is_doubted = not optimizers or any(optimizer.inside and optimizer.doubt for optimizer in optimizers)
            note = f"{several(facts.steps, 'step')} of other optimizers with public data"
            yield UNVERIFIED.none_found(facts.steps if is_doubted else 0, note)

    @staticmethod
    def ask(facts: PublicFacts | None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """Declared data must be public."""
        if facts is not None and facts.is_declared:
            yield asked(
                "public-data",
                "the data that public= declares holds no record, no copy of one, and nothing computed from one, such "
                f"as labels or rows of a model that read records ({facts.comparison})",
            )
