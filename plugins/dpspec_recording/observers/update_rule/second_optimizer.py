"""Whether another optimizer steps while the training is recorded, and whether its modules read records.

The mistake: a part of the model learns from the records without clipping and noise::

    encoder_optimizer.step()
    optimizer.step()                       # private

The generator of a GAN learns from the private discriminator, which costs nothing, unless it reads real records itself
or its loss does. Replayed steps (:mod:`dpspec_recording.step_replay.other_optimizers`) show what its gradients read.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep
from dpspec.json_records import Count
from dpspec.text import joined, several
from dpspec_recording.model_hook import suppressed
from dpspec_recording.observers.own_rule import OwnRule
from dpspec_recording.outcomes.issue import Issue, asked
from dpspec_recording.watching.memory_rows import attributes_with_rows, is_row_of, tensors_of

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms

#: The number of optimizers that the rule observes, and of forward passes whose inputs it compares with the records.
_MOST_OPTIMIZERS, _MOST_PASSES = 20, 100

#: The smallest number of values of a row that does not equal a record by chance.
_FEWEST_VALUES = 4

RULE = Rule(
    name="second-optimizer",
    summary="another optimizer stepped in the block, on tensors of the model or outside it",
    why="Its gradients were neither clipped nor noised: if they come from the records, its tensors reveal them.",
    fix="Train all tensors with the private optimizer, or the others on public records: declare these by public= of "
    "dpspec.record or --public-data, or train in a separate script. Let the loss of a generator read records through "
    "the weights of the private model alone, with a fixed number of rows.",
    source="https://github.com/Team-TUD/CTAB-GAN-Plus/issues/2",
    code="dpspec_recording.observers.update_rule.second_optimizer:SecondOptimizer",
)


@dataclass(frozen=True, kw_only=True)
class ReplayedGradients:
    """Replayed steps of an optimizer.

    Attributes:
        steps: Their number.
        moved: The number of those whose gradients moved with other records in the batch.
        sizes: The number of different batch sizes.
        follows_size: Whether operations or shapes differ between batches of different sizes.
        public: The number of those that read declared public data.
        unknown: The shapes of tensors that the gradients read, and whose source is not known; empty without.
        reads: Whether the script read a number in Python before the optimizer's step.
        varying: Whether numbers of Python in the operations of its gradients differ between steps.
        failure: Why the last step that was not replayed was not; empty if none.
    """

    steps: Count
    moved: Count
    sizes: Count
    follows_size: bool
    public: Count
    unknown: str
    reads: bool
    varying: bool
    failure: str


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """Why the gradients of an optimizer may depend on records.

    Attributes:
        text: Without a final mark; empty if no replayed step shows their sources.
        is_question: Whether the text is a question.
    """

    text: str = ""
    is_question: bool = False


@dataclass(frozen=True, kw_only=True)
class OtherOptimizer:
    """An optimizer of this class.

    Attributes:
        name: Its class.
        inside: The number of its tensors in the model.
        outside: The number of its other tensors.
        steps: The number of its steps.
        is_regular: Whether it always makes the same number of steps after the same number of private steps.
        replayed: Of its steps; None if no step of the training can be replayed.
    """

    name: str
    inside: Count
    outside: Count
    steps: Count
    is_regular: bool
    replayed: ReplayedGradients | None = None

    @property
    def doubt(self) -> Doubt | None:
        """Why its gradients may depend on records; None if replayed steps show that they do not.

        Gradients that read the private model, their own tensors and random numbers alone are a post-processing.
        """
        replayed = self.replayed
        if replayed is None or not (replayed.steps or replayed.failure) or (self.inside and not replayed.public):
            return Doubt()
        if replayed.moved:
            number = f"{replayed.moved} of {several(replayed.steps, 'replayed step')}"
            return Doubt(text=f"its gradients moved with other records in the batch, at {number}")
        if replayed.unknown:
            text = f"its gradients also read tensors of shape {replayed.unknown}: do these depend on records"
            return Doubt(text=text, is_question=True)
        if replayed.follows_size:
            return Doubt(
                text="its loss has more rows in larger batches, which shows the number of drawn records: the "
                "accounting keeps it secret; give the loss a fixed number of rows"
            )
        if replayed.varying:
            text = "numbers in the operations of its gradients change from step to step: do these depend on records"
            return Doubt(text=text, is_question=True)
        if replayed.reads and not self.is_regular:
            text = "it steps after varying numbers of private steps: do numbers that the script read decide when"
            return Doubt(text=text, is_question=True)
        if replayed.failure:
            return Doubt(text=f"a step of it was not replayed: {replayed.failure}")
        return Doubt() if replayed.sizes < 2 else None


@dataclass(frozen=True, kw_only=True)
class OtherOptimizers:
    """Optimizers other than the recorded one that stepped in the block.

    Attributes:
        optimizers: The first twenty.
        readers: The classes of modules with their tensors that read records.
        before_steps: The number of their steps before which the recorded model read records.
    """

    optimizers: tuple[OtherOptimizer, ...]
    readers: tuple[str, ...]
    before_steps: Count

    @property
    def changes_model(self) -> bool:
        """Whether tensors of the recorded model are among theirs."""
        return any(optimizer.inside > 0 for optimizer in self.optimizers)


class ObservedOptimizer:
    """An optimizer, which is kept so that its id stays unique, and its steps between private steps.

    Attributes:
        optimizer: The optimizer.
        inside, outside: The numbers of its tensors in the recorded model, and of its others.
        steps: The number of its steps.
    """

    def __init__(self, optimizer: Any, inside: int, outside: int) -> None:
        self.optimizer, self.inside, self.outside, self.steps = optimizer, inside, outside, 0
        self._private = self._in_run = 0
        self._gaps: set[int] = set()
        self._runs: set[int] = set()

    def add(self, private: int) -> None:
        """Note a step. private: the number of private steps before it."""
        if self._in_run and private != self._private:
            if self._gaps:  # the recording may have begun within the first run
                self._runs.add(self._in_run)
            self._gaps.add(private - self._private)
            self._in_run = 0
        self._private, self._in_run, self.steps = private, self._in_run + 1, self.steps + 1

    @property
    def is_regular(self) -> bool:
        """Whether the numbers of private steps in between, and of steps one after another, never change."""
        return len(self._gaps) <= 1 and len(self._runs) <= 1


class SecondOptimizer(OwnRule[OtherOptimizers]):
    kind, early = OtherOptimizers, True

    def __init__(self) -> None:
        self._hook: Any = None
        self._observed: dict[int, ObservedOptimizer] = {}
        self._inputs: RecordInputs | None = None
        self._replayer: Any = None
        self._private = 0  # the number of private steps

    def start(self, setup: RuleSetup) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        columns = [*(tensors_of(setup.loader) or attributes_with_rows(setup.loader))]
        self._replayer = setup.replayer

        expected = {id(setup.optimizer), id(setup.private_optimizer)}
        of_model = {id(p) for p in setup.model.parameters()} if hasattr(setup.model, "parameters") else set()

        def observe(optimizer: Any, args: Any, kwargs: Any) -> None:
            if id(optimizer) in expected or hasattr(optimizer, "original_optimizer"):
                return
            if id(optimizer) not in self._observed and len(self._observed) < _MOST_OPTIMIZERS:
                tensors = [id(p) for group in optimizer.param_groups for p in group["params"]]
                inside = sum(number in of_model for number in tensors)
                self._observed[id(optimizer)] = ObservedOptimizer(optimizer, inside, len(tensors) - inside)
                if columns and inside < len(tensors):
                    self._inputs = self._inputs or RecordInputs(setup.model, columns, setup.replayer)
                    self._inputs.trained.update(tensors)
            if self._inputs is not None:
                self._inputs.end_other_step()
            if id(optimizer) in self._observed:
                self._observed[id(optimizer)].add(self._private)

        self._hook = register_optimizer_step_post_hook(suppressed(observe))

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        if self._inputs is not None:
            self._inputs.stop()

    def after_step(self, step: RuleStep) -> None:
        self._private = step.number
        if self._inputs is not None:
            self._inputs.read_by_model = False

    def facts(self) -> OtherOptimizers:
        inputs = self._inputs
        return OtherOptimizers(
            optimizers=tuple(
                OtherOptimizer(
                    name=type(observed.optimizer).__name__[:60],
                    inside=observed.inside,
                    outside=observed.outside,
                    steps=observed.steps,
                    is_regular=observed.is_regular,
                    replayed=self._replayed(observed.optimizer),
                )
                for observed in self._observed.values()
            ),
            readers=() if inputs is None else tuple(name[:60] for name in inputs.readers),
            before_steps=0 if inputs is None else inputs.other_steps,
        )

    def _replayed(self, optimizer: Any) -> ReplayedGradients | None:
        replays = None if self._replayer is None else self._replayer.others.replays.get(id(optimizer))
        if replays is None:
            return None
        return ReplayedGradients(
            steps=replays.replayed,
            moved=replays.moved,
            sizes=replays.sizes,
            follows_size=replays.follows_size,
            public=replays.public,
            unknown=replays.unknown,
            reads=replays.reads,
            varying=replays.varying,
            failure=replays.failure,
        )

    @staticmethod
    def caution(facts: OtherOptimizers, run: RuleRun) -> str:
        texts, end = [], "."
        doubted = [optimizer for optimizer in facts.optimizers if facts.readers or optimizer.doubt]
        kinds = Counter(replace(optimizer, is_regular=True, replayed=None) for optimizer in doubted).items()
        # the model's first, as three are printed
        for kind, optimizers in sorted(kinds, key=lambda counted: not counted[0].inside):
            if run.own_loop and not kind.inside and optimizers >= _MOST_OPTIMIZERS:
                continue  # of clients, whose clipped changes are the contributions of a federated training
            targets = [f"{kind.inside} tensors of the model"] if kind.inside else []
            targets += [f"{kind.outside} tensors outside the model"] if kind.outside else []
            stepped = f"{kind.steps} time{'' if kind.steps == 1 else 's'}{'' if optimizers == 1 else ' each'}"
            number = f"at least {optimizers}" if optimizers >= _MOST_OPTIMIZERS else str(optimizers)
            who = "another optimizer" if optimizers == 1 else f"{number} other optimizers"
            texts.append(f"{who} ({kind.name}) stepped {stepped} on {' and '.join(targets) or 'nothing'}")
        doubts = [doubt for optimizer in doubted if (doubt := optimizer.doubt) is not None and doubt.text]
        if texts and (readers := ", ".join(facts.readers)):
            texts = [*texts[:2], f"{readers} outside the model read records of the dataset, which its tensors may show"]
        elif texts and doubts:
            texts, end = [*texts[:2], doubts[0].text], "?" if doubts[0].is_question else "."
        elif texts and facts.before_steps:
            between = "the model read records of the dataset between a private step and"
            texts = [*texts[:2], f"{between} {facts.before_steps} of these steps: does their loss depend on records"]
            end = "?"
        text = "; ".join(texts[:3])
        return f"{text[:1].upper()}{text[1:]}{end}" if text else ""

    @staticmethod
    def ask(noted: Sequence[OtherOptimizers | None], run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """Numbers that a replay repeats may come from records."""
        observed = (optimizer for facts in noted if facts is not None for optimizer in facts.optimizers)
        if stepped := dict.fromkeys(optimizer.name for optimizer in observed):
            text = "no number that the script reads from tensors (item, tolist) enters the loss or options of"
            yield asked("update", f"{text} {joined([*stepped])}")

    @staticmethod
    def explains(noted: Sequence[OtherOptimizers | None]) -> tuple[str, ...]:
        """Tests of the parameters, which it moves between the steps; its caution is of the first part that has one."""
        from dpspec_recording.observers.gradient_parameters.passes import OTHER_PARAMETERS
        from dpspec_recording.observers.update_rule.parameters import MOVED

        first = next((facts for facts in noted if facts is not None and facts.optimizers), None)
        return (MOVED.name, OTHER_PARAMETERS.name) if first is not None and first.changes_model else ()


class RecordInputs:
    """Forward passes that read records of a dataset in memory, outside of private steps.

    Attributes:
        trained: The ids of the tensors that other optimizers train.
        readers: The classes of modules with such tensors that read records.
        read_by_model: Whether the recorded model read records since its last private step, with gradients.
        other_steps: The number of steps of other optimizers before which it did.
    """

    def __init__(self, model: Any, columns: list[Any], replayer: Any = None) -> None:
        """columns: tensors (n, ...) of the n records. replayer: of the training, which ignores comparisons."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        self.trained: set[int] = set()
        self.readers: dict[str, None] = {}
        self.read_by_model, self.other_steps = False, 0
        self._skipped = {id(module) for module in model.modules()} if hasattr(model, "modules") else set()
        self._columns = [column for column in columns if column[0].numel() >= _FEWEST_VALUES]
        self._root, self._passes = model, 0
        self._pause = contextlib.nullcontext if replayer is None else replayer.pauses.pause
        self._hook: Any = register_module_forward_pre_hook(suppressed(self._observe))

    def _observe(self, module: Any, inputs: Any) -> None:
        import torch

        if not torch.is_grad_enabled() or (id(module) in self._skipped and module is not self._root):
            return
        if module is not self._root and self.trained.isdisjoint(map(id, module.parameters())):
            return
        self._passes += 1
        with self._pause():
            reads = any(isinstance(value, torch.Tensor) and self._is_record(value) for value in inputs)
        if reads:
            if module is self._root:
                self.read_by_model = True
            else:
                self.readers[type(module).__name__] = None
                self._skipped.update(id(part) for part in module.modules())  # they read the same records
        if self._passes >= _MOST_PASSES:
            self.stop()

    def _is_record(self, rows: Any) -> bool:
        """Whether the first of the rows (b, ...) is a record."""
        return bool(rows.dim()) and len(rows) > 0 and any(is_row_of(rows[0], column) for column in self._columns)

    def end_other_step(self) -> None:
        self.other_steps += self.read_by_model
        self.read_by_model = False

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
