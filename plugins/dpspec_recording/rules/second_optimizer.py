"""Whether another optimizer steps while the training is recorded, and whether its modules read records.

The mistake: a part of the model learns from the records without clipping and noise::

    encoder_optimizer.step()
    optimizer.step()                       # private

The generator of a GAN learns from the private discriminator, which costs nothing, unless it reads real records itself
or its loss does.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.json_records import Count
from dpspec_recording.model_hook import suppressed
from dpspec_recording.rules.memory_rows import attributes_with_rows, is_row_of, tensors_of

#: The number of optimizers that the rule observes, and of forward passes whose inputs it compares with the records.
_MOST_OPTIMIZERS, _MOST_PASSES = 20, 100

#: The smallest number of values of a row that does not equal a record by chance.
_FEWEST_VALUES = 4

RULE = Rule(
    name="second-optimizer",
    summary="another optimizer stepped in the block, on tensors of the model or outside it",
    why="Its gradients were neither clipped nor noised: if they come from the records, its tensors reveal them.",
    fix="Train all tensors with the private optimizer, or train the others on public records in a separate script. "
    "Accept the optimizer of a generator if its loss reads records only through the weights of the private model.",
    code="dpspec_recording.rules.second_optimizer:SecondOptimizer",
)


@dataclass(frozen=True, kw_only=True)
class OtherOptimizer:
    """An optimizer of this class, and the numbers of its tensors in the model and outside it, and of its steps."""

    name: str
    inside: Count
    outside: Count
    steps: Count


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


class SecondOptimizer(TrainingRule[OtherOptimizers]):
    kind, early = OtherOptimizers, True

    def __init__(self) -> None:
        self._hook: Any = None
        self._steps: dict[int, list[Any]] = {}
        self._inputs: RecordInputs | None = None

    def start(self, setup: RuleSetup) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        columns = [*(tensors_of(setup.loader) or attributes_with_rows(setup.loader))]

        expected = {id(setup.optimizer), id(setup.private_optimizer)}
        of_model = {id(p) for p in setup.model.parameters()} if hasattr(setup.model, "parameters") else set()

        def observe(optimizer: Any, args: Any, kwargs: Any) -> None:
            if id(optimizer) in expected or hasattr(optimizer, "original_optimizer"):
                return
            if id(optimizer) not in self._steps and len(self._steps) < _MOST_OPTIMIZERS:
                tensors = [id(p) for group in optimizer.param_groups for p in group["params"]]
                inside = sum(number in of_model for number in tensors)
                # the optimizer itself is kept, so that its id stays unique
                self._steps[id(optimizer)] = [optimizer, inside, len(tensors) - inside, 0]
                if columns and inside < len(tensors):
                    self._inputs = self._inputs or RecordInputs(setup.model, columns)
                    self._inputs.trained.update(tensors)
            if self._inputs is not None:
                self._inputs.end_other_step()
            if id(optimizer) in self._steps:
                self._steps[id(optimizer)][3] += 1

        self._hook = register_optimizer_step_post_hook(suppressed(observe))

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        if self._inputs is not None:
            self._inputs.stop()

    def after_step(self, step: RuleStep) -> None:
        if self._inputs is not None:
            self._inputs.read_by_model = False

    def facts(self) -> OtherOptimizers:
        inputs = self._inputs
        return OtherOptimizers(
            optimizers=tuple(
                OtherOptimizer(name=type(optimizer).__name__[:60], inside=inside, outside=outside, steps=steps)
                for optimizer, inside, outside, steps in self._steps.values()
            ),
            readers=() if inputs is None else tuple(name[:60] for name in inputs.readers),
            before_steps=0 if inputs is None else inputs.other_steps,
        )

    @staticmethod
    def caution(facts: OtherOptimizers, run: RuleRun) -> str:
        texts, end = [], "."
        kinds = Counter(facts.optimizers).items()
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
        if texts and (readers := ", ".join(facts.readers)):
            texts = [*texts[:2], f"{readers} outside the model read records of the dataset, which its tensors may show"]
        elif texts and facts.before_steps:
            between = "the model read records of the dataset between a private step and"
            texts = [*texts[:2], f"{between} {facts.before_steps} of these steps: does their loss depend on records"]
            end = "?"
        text = "; ".join(texts[:3])
        return f"{text[:1].upper()}{text[1:]}{end}" if text else ""


class RecordInputs:
    """Forward passes that read records of a dataset in memory, outside of private steps.

    Attributes:
        trained: The ids of the tensors that other optimizers train.
        readers: The classes of modules with such tensors that read records.
        read_by_model: Whether the recorded model read records since its last private step, with gradients.
        other_steps: The number of steps of other optimizers before which it did.
    """

    def __init__(self, model: Any, columns: list[Any]) -> None:
        """columns: tensors (n, ...) of the n records."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        self.trained: set[int] = set()
        self.readers: dict[str, None] = {}
        self.read_by_model, self.other_steps = False, 0
        self._skipped = {id(module) for module in model.modules()} if hasattr(model, "modules") else set()
        self._columns = [column for column in columns if column[0].numel() >= _FEWEST_VALUES]
        self._root, self._passes = model, 0
        self._hook: Any = register_module_forward_pre_hook(suppressed(self._observe))

    def _observe(self, module: Any, inputs: Any) -> None:
        import torch

        if not torch.is_grad_enabled() or (id(module) in self._skipped and module is not self._root):
            return
        if module is not self._root and self.trained.isdisjoint(map(id, module.parameters())):
            return
        self._passes += 1
        if any(isinstance(value, torch.Tensor) and self._is_record(value) for value in inputs):
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
