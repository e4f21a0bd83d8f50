"""Rules over the inputs of the model: their widths, and whether they are the drawn records.

The mistakes: the longest record of a batch pads the others, or a row has two records::

    batch = pad_sequence(records, batch_first=True)
    x = 0.7 * x + 0.3 * x[torch.randperm(len(x))]
"""

import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.json_records import Count
from dpspec_recording.model_hook import suppressed
from dpspec_recording.watching.memory_rows import tensors_of

_HOME = "dpspec_recording.observers.sensitivity.model_inputs"

#: Step n is inspected with probability min(1, _STEPS / n), and at most _ROWS rows of it.
_STEPS, _ROWS = 10.0, 8

#: The number of first steps in which the inputs of layers are observed: hooks of layers cost time at each step.
_LAYER_STEPS = 8

#: The largest number of records that are collated one at a time, the number of records that are collated with two sets
#: of others, the size of these batches, and the record's place: a function that packs records keeps the first one.
_MOST_COLLATED, _COLLATIONS, _COLLATED, _PLACE = 12, 4, 8, 3

#: The smallest number of rows whose mean is inspected, and of distinct coordinates that show another record's patch.
_BATCH, _PATCH = 4, 4

#: Relative residual up to which a row is a combination of two records, and the smallest share of the second.
_ROUNDING, _SHARE = 1e-4, 1e-3

VARYING_PADDING = Rule(
    name="varying-padding",
    summary="the width of the inputs of the model, or of a layer, varies with the batch",
    why="If the longest record of a batch sets the padding of all, it changes the gradients of the others.",
    fix="Pad every batch to one fixed length, or accept if the padding changes no output (masked everywhere).",
    source="https://github.com/meta-pytorch/opacus/blob/main/examples/char-lstm-classification.py",
    code=f"{_HOME}:VaryingPadding",
)

CHANGED_INPUTS = Rule(
    name="changed-inputs",
    summary="the model's inputs are mixtures of records (mixup, CutMix, packing), or centered by their batch's mean",
    why="A record is then in several rows, and each row is clipped by itself: it changes the sum by several norms.",
    fix=(
        "Augment and scale each record by itself, within one row of gradients, also in collate functions: scale by "
        "public constants in place of the batch's mean."
    ),
    source="https://github.com/pytorch/vision/pull/7772",
    code=f"{_HOME}:ChangedInputs",
)


F = TypeVar("F")


def _tensors(args: Any, kwargs: Any) -> dict[str, Any]:
    import torch

    named = {**{str(position): value for position, value in enumerate(args)}, **kwargs}
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor) and value.dim() >= 1}


class InputRule(TrainingRule[F]):
    """A forward pre-hook on the model, for passes in training mode with gradients.

    Attributes:
        inspects: Whether the next step is observed.
    """

    inspects = True

    def __init__(self) -> None:
        self._hook: Any = None

    def start(self, setup: RuleSetup) -> None:
        import torch

        if setup.compiled or not hasattr(setup.model, "register_forward_pre_hook"):
            return

        def hook(module: Any, args: Any, kwargs: Any) -> None:
            if self.inspects and module.training and torch.is_grad_enabled():
                self.observe(_tensors(args, kwargs))

        self._hook = setup.model.register_forward_pre_hook(suppressed(hook), with_kwargs=True)

    def observe(self, inputs: Mapping[str, Any]) -> None:
        """Observe the tensors of one forward pass."""

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Several widths: the smallest, the largest, and their number."""

    low: Count
    high: Count
    number: Count


@dataclass(frozen=True, kw_only=True)
class PaddingFacts:
    """Widths that differ; None of equal ones.

    Attributes:
        inputs: Of the inputs of the model, or of the layer.
        layer: The name of the layer whose inputs have these widths; "" for the model.
        collated: Of records that the loader collates one at a time; the number is of these records.
    """

    inputs: Widths | None
    layer: str
    collated: Widths | None


class VaryingPadding(InputRule[PaddingFacts]):
    kind = PaddingFacts

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[dict[str, tuple[int, ...]]] = []
        self._shapes: dict[str, set[tuple[int, ...]]] = {}
        #: By input, the axes whose size was the number of drawn records in each pass.
        self._batch_axes: dict[str, set[int]] = {}
        self._loader: Any = None
        self._collated_widths: Widths | None = None
        self._layer_hooks: list[Any] = []
        self._layer_inputs: dict[str, tuple[int, ...]] = {}  # in the current step
        self._layer_shapes: dict[str, set[tuple[int, ...]]] = {}

    def start(self, setup: RuleSetup) -> None:
        super().start(setup)
        self._loader = setup.loader
        if self._hook is not None:
            self._observe_layers(setup.model)

    def _observe_layers(self, model: Any) -> None:
        """Note inputs of layers in the first steps: a model may cut its inputs to the longest record."""
        modules = dict(model.named_modules())
        if any(getattr(module, "_compiled_call_impl", None) is not None for module in modules.values()):
            return
        for name, module in modules.items():
            if not any(module.children()):

                def hook(layer: Any, args: Any, name: str = name) -> None:
                    if layer.training and (tensors := _tensors(args, {})):
                        self._layer_inputs[name] = tuple(next(iter(tensors.values())).shape)

                self._layer_hooks.append(module.register_forward_pre_hook(suppressed(hook)))

    def _compare_layers(self, step: RuleStep, passes: int) -> None:
        inputs, self._layer_inputs = self._layer_inputs, {}
        if step.number >= _LAYER_STEPS:
            self._remove_layer_hooks()
        if step.drawn is None or passes != 1 or not len(step.drawn):
            return
        for name, shape in inputs.items():
            if len(shape) >= 2 and shape[0] == len(step.drawn):
                self._layer_shapes.setdefault(name.removeprefix("_module."), set()).add(shape[1:])

    def _remove_layer_hooks(self) -> None:
        for hook in self._layer_hooks:
            hook.remove()
        self._layer_hooks = []

    def stop(self) -> None:
        """Collate records one at a time after the training: each batch may have had a record of the largest width."""
        super().stop()
        self._remove_layer_hooks()
        loader, self._loader = self._loader, None
        if loader is not None:
            with contextlib.suppress(Exception):  # the loader does not collate single records
                self._collated_widths = _collated_widths(loader)

    def observe(self, inputs: Mapping[str, Any]) -> None:
        if len(self._waiting) < 64:
            self._waiting.append({name: tuple(value.shape) for name, value in list(inputs.items())[:20]})

    def after_step(self, step: RuleStep) -> None:
        passes, self._waiting = self._waiting, []
        if self._layer_hooks:
            self._compare_layers(step, len(passes))
        rows = None if step.drawn is None else len(step.drawn)
        for shapes in passes:
            for name, shape in shapes.items():
                if rows != 0 and 0 not in shape:
                    axes = {axis for axis, size in enumerate(shape[:2]) if size == rows and len(passes) == 1}
                    self._batch_axes[name] = self._batch_axes.get(name, axes) & axes
                    if len(self._shapes.setdefault(name, set())) < 1000:
                        self._shapes[name].add(shape)

    def facts(self) -> PaddingFacts:
        widths: Widths | None = None
        for name, shapes in self._shapes.items():
            batch = 1 if self._batch_axes[name] == {1} else 0
            ranks = {len(shape) for shape in shapes}
            for axis in range(min(ranks)) if len(ranks) == 1 else ():
                sizes = {shape[axis] for shape in shapes}
                if axis != batch and len(sizes) > 1:
                    widths = Widths(low=min(sizes), high=max(sizes), number=len(sizes))
        layer = ""
        for name, layer_shapes in self._layer_shapes.items() if widths is None else ():
            sizes = next(filter(lambda sizes: len(sizes) > 1, map(set, zip(*layer_shapes, strict=False))), set())
            if sizes and len({len(shape) for shape in layer_shapes}) == 1 and not layer:
                layer, widths = name[:60], Widths(low=min(sizes), high=max(sizes), number=len(sizes))
        return PaddingFacts(inputs=widths, layer=layer, collated=self._collated_widths)

    @staticmethod
    def caution(facts: PaddingFacts, run: RuleRun) -> str:
        widths = facts.inputs or facts.collated
        if widths is None:
            return ""
        low, high, number = widths.low, widths.high, widths.number
        if facts.inputs is None:
            return (
                f"Collated one at a time, {number} records have widths {low} to {high}: does the longest record of a "
                "batch set the padding of the others?"
            )
        if facts.layer:
            return (
                f"In the first steps, the input of layer {facts.layer} has {number} widths, {low} to {high}: does "
                "the longest record of a batch set the width of the others?"
            )
        return (
            f"The model's input has {number} widths, {low} to {high}: does the longest record of a batch set the "
            "padding of the others?"
        )


def _collated_widths(loader: Any) -> Widths | None:
    """The widths of some records that the loader collates one at a time; None if they are equal."""
    import torch

    from dpspec_recording.step_replay.loaded_batch import original_collate, rows_of
    from dpspec_recording.watching.generators import same_randomness

    dataset, collate = loader.dataset, original_collate(loader)
    chosen = random.SystemRandom().sample(range(len(dataset)), min(_MOST_COLLATED, len(dataset)))
    with same_randomness(torch.device("cpu")):
        alone = [rows_of(collate([dataset[index]]), 1) for index in chosen]
    for tensors in zip(*alone, strict=True):
        for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True):
            if len(set(sizes)) > 1:
                return Widths(low=min(sizes), high=max(sizes), number=len(sizes))
    return None


def _is_mixed_by_collate(loader: Any) -> bool:
    """Whether a record has another row if other records are in its batch, with the same random numbers."""
    import torch

    from dpspec_recording.step_replay.loaded_batch import original_collate, rows_of
    from dpspec_recording.watching.generators import same_randomness

    dataset, collate, host = loader.dataset, original_collate(loader), torch.device("cpu")
    size = _COLLATED - 1

    def rows(record: Any, companions: Sequence[Any], seed: int) -> list[Any]:
        batch = [*companions[:_PLACE], record, *companions[_PLACE:]]
        with same_randomness(host, seed):
            return [tensor.detach().clone() for tensor in rows_of(collate(batch), len(batch))]

    for seed in range(_COLLATIONS):
        chosen = random.SystemRandom().sample(range(len(dataset)), 1 + 2 * size)
        with same_randomness(host):
            record, *companions = (dataset[index] for index in chosen)
        first, again = (rows(record, companions[:size], seed) for _ in range(2))
        if _share_rows(first, again) and not _share_rows(first, rows(record, companions[size:], seed)):
            return True  # its random numbers are of no other generator, and it keeps no state
    return False


def _share_rows(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether each tensor has a row that is in both batches; their order may differ, and other widths are padding."""
    return all(
        left.shape != right.shape or _have_common_row(left, right) for left, right in zip(first, second, strict=False)
    )


def _have_common_row(first: Any, second: Any) -> bool:
    """Whether a row is in both batches (b, ...), up to the rounding of sums in another order."""
    left, right = first.reshape(len(first), 1, -1).double(), second.reshape(1, len(second), -1).double()
    largest = left.abs().amax(dim=2) + right.abs().amax(dim=2)
    return bool(((left - right).abs().amax(dim=2) <= _ROUNDING * largest).any())


@dataclass(frozen=True, kw_only=True)
class InputFacts:
    """Inputs of the model that are not the drawn records.

    Attributes:
        inspected, mixed: Rows of the inputs, and those that are mixtures of two records.
        batches, centered: Batches, and those whose inputs have mean 0.
        collated: Whether a record has another row if it is collated with other records.
    """

    inspected: Count
    mixed: Count
    batches: Count
    centered: Count
    collated: bool


class ChangedInputs(InputRule[InputFacts]):
    kind, early = InputFacts, True

    def __init__(self) -> None:
        super().__init__()
        self._records: Any = None
        self._input: Any = None
        self._random = random.SystemRandom()
        self._inspected = self._mixed = self._batches = self._centered = 0
        self._loader: Any = None
        self._collated = False

    def start(self, setup: RuleSetup) -> None:
        tensors = tensors_of(setup.loader)
        if tensors is not None and tensors[0].is_floating_point() and tensors[0][0].numel() >= 4:
            self._records = tensors[0]
        self._loader = setup.loader
        super().start(setup)

    def stop(self) -> None:
        """Collate some records with others after the training."""
        super().stop()
        loader, self._loader = self._loader, None
        if loader is not None:
            with contextlib.suppress(Exception):  # the loader does not collate single records
                self._collated = _is_mixed_by_collate(loader)

    def observe(self, inputs: Mapping[str, Any]) -> None:
        first = next(iter(inputs.values()), None)
        self._input = None if first is None or not first.is_floating_point() else first.detach()

    def after_step(self, step: RuleStep) -> None:
        rows, self._input = self._input, None
        self.inspects = self._random.random() * (step.number + 1) < _STEPS
        if rows is None or step.drawn is None or len(rows) != len(step.drawn) or len(rows) < 2:
            return
        input_rows = rows.reshape(len(rows), -1).double().cpu()
        if len(rows) >= _BATCH:
            self._batches += 1
            self._centered += _is_centered(input_rows)
        if self._records is None or int(step.drawn.max()) >= len(self._records):
            return
        if input_rows.shape[1] != self._records[0].numel():
            return
        drawn = self._records[step.drawn.tolist()].reshape(len(rows), -1).double().cpu()
        for row_index in range(min(_ROWS, len(rows))):
            self._inspected += 1
            self._mixed += _is_mixture(input_rows[row_index], drawn, row_index)

    def facts(self) -> InputFacts:
        return InputFacts(
            inspected=self._inspected,
            mixed=self._mixed,
            batches=self._batches,
            centered=self._centered,
            collated=self._collated,
        )

    @staticmethod
    def caution(facts: InputFacts, run: RuleRun) -> str:
        if facts.mixed:
            rows = f"{facts.mixed} of {facts.inspected} inspected rows of the model's input"
            return f"{rows} are mixtures of two records of the batch."
        if facts.centered >= 2:
            batches = f"{facts.centered} of {facts.batches} inspected batches"
            return f"In {batches} the model's inputs have mean 0 over the batch."
        if facts.collated:
            return "A record has another row if other records are in its batch: does collate_fn mix records?"
        return ""


def _is_centered(rows: Any) -> bool:
    """Whether at least half of the columns of ``rows`` (b, d) have mean 0, and are not constant."""
    deviations = rows.std(0)
    varying = deviations > 1e-6 * deviations.max()
    centered = varying & (rows.mean(0).abs() < 1e-6 * deviations)
    return bool(varying.any()) and int(centered.sum()) >= 0.5 * int(varying.sum())


def _is_mixture(row: Any, records: Any, row_index: int) -> bool:
    """Whether the row (d,) is a x_i + b x_j with another record j, by least squares for all j at once; not a record.

    Or whether the row has some coordinates of another record, and all others of x_i. A batch may be in another order.
    """
    own_record, size = records[row_index], float(row.norm())
    if not size > 0.0 or float((row - records).norm(dim=1).min()) <= _ROUNDING * size:
        return False
    patch = row != own_record
    if len(row[patch].unique()) >= _PATCH and bool((records[:, patch] == row[patch]).all(1).any()):
        return True
    aa, bb, ab = own_record @ own_record, (records * records).sum(1), records @ own_record
    ra, rb = row @ own_record, records @ row
    determinant = aa * bb - ab**2
    usable = determinant > 1e-6 * aa * bb
    share_own = (ra * bb - rb * ab) / determinant.where(usable, determinant.new_tensor(1.0))
    share_other = (rb * aa - ra * ab) / determinant.where(usable, determinant.new_tensor(1.0))
    residual = (row - share_own[:, None] * own_record - share_other[:, None] * records).norm(dim=1)
    return bool((usable & (residual <= _ROUNDING * size) & (share_other.abs() > _SHARE)).any())


RULES = (VARYING_PADDING, CHANGED_INPUTS)
