"""``dpspec.replay``: the comparison of values that must not depend on a record, on neighboring datasets.

Noise does not hide a divisor that counts the records, a clip norm that is a quantile of their gradients, or a mean that
was subtracted from all records. Two runs on neighbors with the same random numbers show such a dependence. The even and
the odd records are compared as well: int(rate * records) need not change with one record, and the largest of many norms
is in one of the two halves.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from dpspec.errors import UsageError
from dpspec.text import plain
from dpspec_recording import recognized
from dpspec_recording.fingerprints import digest, tensor_digest
from dpspec_recording.watching.generators import same_randomness

#: The names of parts in the result of ``make``; all others are constants.
PARTS = ("model", "optimizer", "loader", "engine", "scheduler", "loss", "dataset")

#: The names of the model's initial state and of prepared records in the outcome.
WEIGHTS, PREPARED = "initial weights and buffers", "records as prepared"

#: Updates that differ by less than this part of their length are the same, because orders of summation vary.
TOLERANCE = 1e-4

#: The numbers of prepared records that are compared, and that are searched for one that moved.
_RECORDS, _SEARCHED = 8, 2000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that depends on the records: ``whole`` on all records, ``other`` on ``neighbour``."""

    name: str
    neighbour: str
    whole: str
    other: str


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The outcome of :func:`dpspec.replay`.

    Attributes:
        neighbours: The names of the neighboring datasets.
        compared: The names of the compared values.
        differences: Those that differ. Their values may depend on single records.
        unseen: The values that were not compared, with the reason.
    """

    neighbours: tuple[str, ...]
    compared: tuple[str, ...]
    differences: tuple[Difference, ...]
    unseen: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether values were compared and none differs; other neighbors and ``unseen`` values may differ."""
        return bool(self.compared) and not self.differences

    def require_same(self) -> None:
        """Raise ``AssertionError`` with the whole outcome unless :attr:`same`."""
        if not self.same:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        moved = dict.fromkeys(difference.name for difference in self.differences)
        still = [name for name in self.compared if name not in moved]
        lines = [
            f"{difference.name} depends on the records: {difference.whole} on all records, "
            f"{difference.other} on {difference.neighbour}"
            for difference in self.differences
        ]
        if still:
            lines.append(f"the same on all records, {', '.join(self.neighbours)}: {', '.join(still)}")
        lines += [f"not compared: {reason}" for reason in self.unseen]
        return "\n".join(map(plain, lines)) or "nothing was compared"


def replay(
    make: Callable[[Any], Mapping[str, Any]],
    dataset: Any,
    *,
    record: int = -1,
    replacement: Any = None,
    seed: int = 0,
) -> Replay:
    """Set a training up on ``dataset`` and on its neighbors, with equal seeds, and compare all constants.

    Compared are divisor, clip norm, noise multiplier, options of the optimizer, rate and steps of Poisson sampling, the
    schedule, the layers and initial weights, some prepared records, and one step with the same random numbers.

    Args:
        make: A function of a map-style dataset that returns a mapping of parts: ``model``, ``optimizer``, ``loader`` as
            ``make_private`` returned them; ``scheduler``; ``loss``, a function of the model and a batch that returns
            one number or the loss of each record; ``dataset``, the prepared records if they are not the loader's. All
            other entries are constants of the script, such as ``{"steps": 1000}``.
        dataset: A map-style dataset of three records or more.
        record: The index of the record that the first neighbor lacks.
        replacement: A record that neighbors have in the place of removed ones.
        seed: For all generators.

    Raises:
        UsageError: A part cannot be compared. Errors of ``make`` pass through.
    """
    records = length(dataset)
    if records is None:
        raise UsageError(f"dataset must be map-style, with a length, got {type(dataset).__name__}")
    if records < 3:
        raise UsageError(f"dataset must have three records or more, got {records}")
    if isinstance(record, bool) or not isinstance(record, int) or not -records <= record < records:
        raise UsageError(f"record must be the index of one of {records} records, got {record!r}")
    neighbors = neighbors_of(dataset, record % records, replacement)
    first = SetUp(make, dataset, seed)
    comparison = _Comparison(first, records)
    for neighbor in neighbors:
        comparison.add(SetUp(make, neighbor.dataset, seed), neighbor)
    return Replay(
        neighbours=tuple(neighbor.name for neighbor in neighbors),
        compared=tuple(comparison.compared),
        differences=tuple(comparison.differences),
        unseen=tuple(comparison.unseen),
    )


@dataclass(frozen=True)
class Neighbor:
    """A neighboring dataset. place: the index here of each record that both contain."""

    name: str
    dataset: Any
    place: Mapping[int, int]


def neighbors_of(dataset: Any, record: int, replacement: Any = None) -> list[Neighbor]:
    """The dataset without ``record``, and its even and its odd records; or with the replacement in the others' places.

    Tensor datasets, lists, tensors and arrays keep their types, so that scripts find the expected attributes.
    """
    all_indices = range(len(dataset))
    names = [f"those without record {record}", "the even ones", "the odd ones"]
    if replacement is not None:
        names = [f"those with another record {record}", *(f"{name} and replacements" for name in names[1:])]
    neighbors = []
    for name, out in zip(names, ([record], all_indices[1::2], all_indices[0::2]), strict=True):
        gone = set(out)
        remaining = [index for index in all_indices if index not in gone]
        if replacement is None:
            neighbors.append(
                Neighbor(name, _some(dataset, remaining), {index: number for number, index in enumerate(remaining)})
            )
        else:
            neighbors.append(
                Neighbor(name, _replaced(dataset, list(out), replacement), {index: index for index in remaining})
            )
    return neighbors


def _some(dataset: Any, indices: list[int]) -> Any:
    if type(dataset) is TensorDataset:
        return TensorDataset(*(tensor[indices] for tensor in dataset.tensors))
    if isinstance(dataset, Tensor | np.ndarray):
        return dataset[indices]
    return [dataset[index] for index in indices] if isinstance(dataset, list) else Subset(dataset, indices)


def _replaced(dataset: Any, indices: list[int], replacement: Any) -> Any:
    if type(dataset) is TensorDataset:
        pairs = zip(dataset.tensors, replacement, strict=True)
        return TensorDataset(*(_replaced(tensor, indices, value) for tensor, value in pairs))
    if isinstance(dataset, Tensor | np.ndarray):
        rows: Any = dataset.clone() if isinstance(dataset, Tensor) else dataset.copy()
        rows[indices] = replacement
        return rows
    gone = set(indices)
    if isinstance(dataset, list):
        return [replacement if index in gone else record for index, record in enumerate(dataset)]
    size, added = len(dataset), cast("Dataset[Any]", [replacement])
    return Subset(ConcatDataset([dataset, added]), [size if n in gone else n for n in range(size)])


def length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


class _Comparison:
    def __init__(self, first: SetUp, records: int) -> None:
        self._first, self._records = first, records
        self.compared: dict[str, None] = {}
        self.differences: list[Difference] = []
        self.unseen: dict[str, None] = {}
        there = length(first.dataset) if first.loss is not None else None
        self._batch = [first.record(index, first.seed) for index in _spread(range(there or 0))]
        self._step = first.update(first.weights, self._batch)

    def add(self, neighbor_setup: SetUp, neighbor: Neighbor) -> None:
        """Compare with the training on one neighbor."""
        self._constants(neighbor_setup, neighbor.name)
        self._prepared(neighbor_setup, neighbor)
        step = neighbor_setup.update(self._first.weights, self._batch)
        if isinstance(self._step, str) or isinstance(step, str):
            self.unseen[self._step if isinstance(self._step, str) else str(step)] = None
            return
        distance = math.inf
        if self._step.shape == step.shape:  # two rows: relative to the length of each, infinite for a row of zeros
            distances, lengths = (self._step - step).norm(dim=1), self._step.norm(dim=1)
            distance = float(torch.where(distances > 0.0, distances / lengths, 0.0).max())
        moved = "its update" if distance <= TOLERANCE else f"one that is {distance:.3g} of its length away"
        self._compare("one step", neighbor.name, "its update", moved)

    def _constants(self, neighbor_setup: SetUp, neighbor: str) -> None:
        mine, theirs = self._first.constants, neighbor_setup.constants
        for name in {**mine, **theirs}:
            drawn = name == WEIGHTS and not torch.equal(self._first.generator, neighbor_setup.generator)
            if drawn and mine.get(name) != theirs.get(name):
                self.unseen[f"{name}: make draws more random numbers for some datasets than for others"] = None
            else:
                self._compare(name, neighbor, mine.get(name, "none"), theirs.get(name, "none"))

    def _prepared(self, neighbor_setup: SetUp, neighbor: Neighbor) -> None:
        for setup, expected_records in ((self._first, self._records), (neighbor_setup, len(neighbor.dataset))):
            if setup.dataset is None:
                self.unseen[f"{PREPARED}: make returns no loader, and no dataset"] = None
                return
            if (kept_records := length(setup.dataset)) != expected_records:
                self.unseen[f"{PREPARED}: make keeps {kept_records} of {expected_records} records"] = None
                return
        for index in _spread(list(neighbor.place)):
            seed = self._first.seed + index
            mine = digest(self._first.record(index, seed))
            theirs = digest(neighbor_setup.record(neighbor.place[index], seed))
            searched = range(min(len(neighbor.dataset), _SEARCHED)) if mine != theirs else ()
            if any(digest(neighbor_setup.record(neighbor_index, seed)) == mine for neighbor_index in searched):
                self.unseen[f"{PREPARED}: make puts them in another order"] = None
                return
            self._compare(PREPARED, neighbor.name, f"record {index} is {mine[:12]}", f"record {index} is {theirs[:12]}")
            if mine != theirs:
                return

    def _compare(self, name: str, neighbor: str, on_all: str, on_neighbor: str) -> None:
        self.compared[name] = None
        if on_all != on_neighbor:
            self.differences.append(Difference(name=name, neighbour=neighbor, whole=on_all, other=on_neighbor))


def _spread(indices: Sequence[int]) -> Sequence[int]:
    return indices[:: max(1, len(indices) // _RECORDS)][:_RECORDS]


class SetUp:
    """A training that was set up of one dataset with a seed: its parts, constants, weights and one update.

    Attributes:
        constants: By name.
        weights: The initial parameters.
        generator: The state of torch's generator after the set-up.
    """

    def __init__(self, make: Callable[[Any], Mapping[str, Any]], dataset: Any, seed: int) -> None:
        """Raises ``UsageError`` for anything but a mapping, and for parts that the recorder refuses by name."""
        self.seed = seed
        with same_randomness(seed=seed):
            returned = make(dataset)
            if not isinstance(returned, Mapping) or not all(isinstance(key, str) for key in returned):
                raise UsageError(f"make must return a mapping from names to parts, got {type(returned).__name__}")
            self.model: nn.Module | None = returned.get("model")
            self.optimizer: Any = recognized.unwrapped(returned.get("optimizer"))
            self.loss: Any = returned.get("loss")
            self.dataset: Any = returned.get("dataset", getattr(returned.get("loader"), "dataset", None))
            if self.model is not None:
                recognized.refuse_model(self.model)
            self.clipping = None if self.optimizer is None else recognized.clipping_of(self.optimizer)
            self.generator = torch.get_rng_state()
        self.parameters = [] if self.model is None else list(self.model.parameters())
        self.constants = dict(self._constants(returned))
        self.weights = [p.detach().clone() for p in self.parameters]

    def _constants(self, returned: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        optimizer, loader, scheduler = self.optimizer, returned.get("loader"), returned.get("scheduler")
        if self.model is not None:
            tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
            yield "layers", ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors)
            yield WEIGHTS, digest([tensor_digest(tensor) for _, tensor in tensors])[:12]
        if self.clipping is not None:
            yield "divisor", text_of(optimizer.expected_batch_size if optimizer.loss_reduction == "mean" else 1)
            yield "clip norm", text_of(optimizer.max_grad_norm)
            yield "noise multiplier", text_of(optimizer.noise_multiplier)
        groups = [] if optimizer is None else optimizer.param_groups
        for number, group in enumerate(groups):
            group_label = f" of group {number}" if len(groups) > 1 else ""
            for key, value in group.items():
                if key != "params" and is_constant(value):
                    yield f"{'learning rate' if key == 'lr' else key}{group_label}", text_of(value)
        # The number of batches of a loader over all records follows from the number of records.
        if loader is not None:
            sampler = recognized.sampler_of(loader)
            yield "sampling", sampler.scheme
            if sampler.rate is not None:
                yield "rate", text_of(sampler.rate)
                yield "steps of an epoch", text_of(len(loader))
            elif sampler.batch_size is not None:
                yield "batch size", text_of(sampler.batch_size)
        for key, value in sorted(scheduler.state_dict().items()) if scheduler is not None else ():
            if is_constant(value):
                yield f"schedule's {key.lstrip('_')}", text_of(value)
        for key, value in returned.items():
            if key not in PARTS and not is_constant(value):
                raise UsageError(
                    f"make returns {key!r}, a {type(value).__name__}, which is not a constant; parts are "
                    f"{', '.join(PARTS)}, and all else numbers, texts, tensors, or lists of these"
                )
            if key not in PARTS:
                yield key, text_of(value)

    def record(self, index: int, seed: int) -> Any:
        with same_randomness(seed=seed):
            return self.dataset[index]

    def update(self, weights: Sequence[Tensor], records: Sequence[Any]) -> Tensor | str:
        """(2, P) float64 the change of ``weights`` by a step on ``records``, and its gradients; a string if impossible.

        Raises ``UsageError`` if ``loss`` returns neither one number nor one for each record.
        """
        model, optimizer = self.model, self.optimizer
        if [p.shape for p in self.parameters] != [p.shape for p in weights]:
            return "one step: the models are not of one shape"
        with torch.no_grad():
            for p, value in zip(self.parameters, weights, strict=True):
                p.copy_(value)
        if model is None or optimizer is None or self.loss is None or not records:
            return "one step: it needs a model, an optimizer, a loss, and records that all datasets share"
        generator = getattr(optimizer, "generator", None)
        with same_randomness(seed=self.seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            if isinstance(generator, torch.Generator):
                generator.manual_seed(self.seed)
            stepped = [p for group in optimizer.param_groups for p in group["params"]]
            before = _flat(stepped)
            optimizer.zero_grad(set_to_none=True)
            model.train()
            loss = self.loss(model, default_collate(list(records)))
            if self.clipping == "ghost" and isinstance(loss, Tensor):
                return "one step: ghost clipping is done by the criterion of make_private: return its loss"
            self._reduced(loss, len(records)).backward()
            optimizer.step()
            got = [torch.zeros_like(p) if p.grad is None else p.grad for p in stepped]
            return torch.stack([_flat(stepped) - before, _flat(got)])

    def _reduced(self, loss: Any, records: int) -> Any:
        """The loss of a batch: the given one, or the losses of its records, (b,), reduced as Opacus' optimizer expects.

        The loss of ghost clipping's criterion is not a tensor. Raises ``UsageError`` for anything else.
        """
        if not isinstance(loss, Tensor) and self.clipping == "ghost" and callable(getattr(loss, "backward", None)):
            return loss
        if not isinstance(loss, Tensor) or tuple(loss.shape) not in ((), (records,)):
            returned = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise UsageError(
                f"loss(model, batch) must give the mean loss of a batch of {records} records, one number, or the loss "
                f"of each, shape ({records},), got {returned}: keep the reduction of a loss of torch, or give it "
                "reduction='none'"
            )
        if not loss.requires_grad:
            raise UsageError(
                "loss(model, batch) gave a number that does not follow from the model's parameters: compute it with "
                "gradients, from the model that it is given"
            )
        summed = getattr(self.optimizer, "loss_reduction", "mean") == "sum"
        return loss if loss.ndim == 0 else loss.sum() if summed else loss.mean()


def is_constant(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(is_constant(element) for element in value.values())
    if isinstance(value, list | tuple):
        return all(is_constant(element) for element in value)
    return value is None or isinstance(value, bool | int | float | str | Tensor | np.ndarray | np.generic)


def text_of(value: Any) -> str:
    """A string that is equal for constants with equal bits; arrays as a digest."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return text_of(value.item()) if value.ndim == 0 else f"tensor {tuple(value.shape)} {digest(value)[:12]}"
    if isinstance(value, np.generic):
        return text_of(value.item())
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {digest(value)[:12]}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {text_of(element)}" for key, element in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))  # 3 and 3.0 are one constant
    return repr(value)


def _flat(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.detach().cpu().double().reshape(-1) for p in parameters])
