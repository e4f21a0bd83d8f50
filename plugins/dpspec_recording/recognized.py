"""The parts of a training that the recorder knows by name, and those that it refuses by name.

It never guesses the behavior of an unknown part.
"""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from dpspec.errors import UsageError
from dpspec_recording.folder.events import RAND_ON_EMPTY, Clipping, Scheme

#: Opacus' optimizers by class, and their clipping.
CLIPPING: dict[str, Clipping] = {
    "DPOptimizer": "flat",
    "DPPerLayerOptimizer": "per-layer",
    "AdaClipDPOptimizer": "adaptive",
    "DPOptimizerFastGradientClipping": "ghost",
    "DistributedDPOptimizer": "flat",
    "DistributedDPOptimizerFastGradientClipping": "ghost",
}

#: Opacus' Poisson samplers, and their attribute for the number of records.
_POISSON = {"UniformWithReplacementSampler": "num_samples", "DistributedUniformWithReplacementSampler": "total_size"}

#: Torch's samplers, and their schemes without replacement.
_SCHEMES: dict[type, Scheme] = {
    SequentialSampler: "sequential",
    WeightedRandomSampler: "weighted",
    RandomSampler: "shuffled",
    DistributedSampler: "shuffled",
}

#: Wrappers of a model that is whole on each of several processes, with an attribute ``module``.
_WHOLE = ("DistributedDataParallel", "DifferentiallyPrivateDistributedDataParallel")

#: Classes of trainings in several processes that the recorder cannot compare, and why.
_REFUSED = {
    "FullyShardedDataParallel": "Opacus does not know FSDP1: wrap the model in its FSDP2Wrapper",
    "SimpleDistributedPerLayerOptimizer": "in several processes the recorder knows flat and ghost clipping only",
}

#: The packages of wrappers that delegate ``step`` to the optimizer in their attribute ``optimizer``.
_DELEGATING = {
    "LightningOptimizer": ("lightning", "pytorch_lightning"),
    "AcceleratedOptimizer": ("accelerate",),
}

#: Nested wrappers of a loader's ``collate_fn`` that are looked into.
_WRAPPERS = 3

#: Datasets with more indices, or deeper nesting, are not resolved.
_MOST, _DEEPEST = 2**26, 100


#: The loss of each record of a batch, (b,), under a model.
Loss: TypeAlias = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Sampler:
    """The sampling of a loader: its scheme, the rate of a Poisson sampler, and the object that yields batches."""

    scheme: Scheme
    kind: str
    rate: float | None = None
    records: int | None = None
    batch_size: int | None = None
    batches: Any = None
    note: str = ""


def is_opacus(candidate: Any, name: str) -> bool:
    """Whether an object is of exactly Opacus' class of this name; Opacus is not imported."""
    kind = type(candidate)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == "opacus"


def clipping_of(optimizer: Any) -> Clipping | None:
    """The clipping of Opacus' optimizer; None for an optimizer of torch; ``UsageError`` that names anything else."""
    kind = type(optimizer)
    refuse_parts("optimizer", optimizer)
    if kind.__name__ in CLIPPING and is_opacus(optimizer, kind.__name__):
        return CLIPPING[kind.__name__]
    opacus = sys.modules.get("opacus.optimizers")
    if opacus is not None and isinstance(optimizer, opacus.DPOptimizer):
        raise UsageError(
            f"the recorder does not know {name_of(kind)}, an optimizer derived from Opacus': record a custom loop, "
            "with its original_optimizer for optimizer"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"optimizer must be an optimizer of torch or Opacus, got {name_of(kind)}")
    return None


def refuse_other_loader(engine: Any, loader: Any) -> None:
    """Raise ``UsageError`` if the loader is over another dataset than the one that the engine made private.

    Opacus' engine keeps that dataset. Its steps would be compared with the batches of a loader that no step uses, such
    as the one for validation.
    """
    private, iterated = getattr(engine, "dataset", None), getattr(loader, "dataset", None)
    if not is_opacus(engine, "PrivacyEngine") or private is None or iterated is None or private is iterated:
        return
    sizes = []
    for dataset in (private, iterated):
        try:
            sizes.append(len(dataset))
        except TypeError:  # a stream of records
            return
    if sizes[0] != sizes[1]:
        raise UsageError(
            f"loader is over a dataset of {sizes[1]} records ({name_of(type(iterated))}), and the engine's first "
            f"make_private got one of {sizes[0]} ({name_of(type(private))}): give the loader that make_private "
            "returned for the training, not one for validation; an engine accounts for one dataset, so make another "
            "engine for a training on other records"
        )


def refuse_engine(engine: Any, optimizer: Any) -> None:
    """Raise ``UsageError`` for an engine that the recorder has no bound for, or that does not fit the optimizer."""
    if is_opacus(engine, "PrivacyEngineAdaptiveClipping"):
        raise UsageError(
            "engine is Opacus' PrivacyEngineAdaptiveClipping: its clip norm has no bound; use PrivacyEngine"
        )
    if is_opacus(engine, "PrivacyEngine") and not is_opacus(optimizer, type(optimizer).__name__):
        mismatch = f"optimizer is {name_of(type(optimizer))}, which is not Opacus'"
        raise UsageError(
            f"{'no optimizer was given' if optimizer is None else mismatch}, and engine is Opacus' PrivacyEngine: give "
            "the optimizer that make_private returned, or, for a custom loop, engine=engine.accountant"
        )


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside a wrapper of Lightning or accelerate. Its own steps are observed."""
    for kind in type(optimizer).__mro__:  # Lightning's wrapper derives from the class of the optimizer inside
        if kind.__module__.partition(".")[0] in _DELEGATING.get(kind.__name__, ()):
            return unwrapped(optimizer.optimizer)
    return optimizer


def refuse_wrapped_inside(optimizer: Any) -> None:
    """Raise ``UsageError`` if Opacus' optimizer steps a wrapper, which may skip steps and takes no hooks."""
    inner = getattr(optimizer, "original_optimizer", None)
    if unwrapped(inner) is not inner:
        raise UsageError(
            f"Opacus' optimizer steps {type(inner).__name__}: call make_private first, and give its results to prepare"
        )


def uncompiled(model: Any) -> Any:
    """The model inside the result of ``torch.compile``, which runs its code and holds the same parameters."""
    kind = type(model)
    compiled = kind.__name__ == "OptimizedModule" and kind.__module__ == "torch._dynamo.eval_frame"
    return uncompiled(model._orig_mod) if compiled else model


def hooked(model: Any) -> tuple[Any, Any]:
    """Opacus' hooks, as of ``make_private(wrap_model=False)``, and their model; None and the model without hooks."""
    of_opacus = [kind.__name__ for kind in type(model).__mro__ if kind.__module__.partition(".")[0] == "opacus"]
    is_hooks = "GradSampleHooks" in of_opacus and not isinstance(model, nn.Module)  # wrappers derive from both
    return (model, model._module) if is_hooks else (None, model)


def refuse_parts(role: str, part: Any) -> None:
    """Raise ``UsageError`` for a part of a training in several processes that the recorder cannot compare."""
    for kind in type(part).__mro__:
        if kind.__name__ in _REFUSED:
            raise UsageError(f"{role} is {kind.__name__}: {_REFUSED[kind.__name__]}")


def is_distributed(optimizer: Any) -> bool:
    """Whether Opacus' optimizer sums gradients of whole models over several processes."""
    return type(optimizer).__name__.startswith("Distributed")


def refuse_processes(optimizer: Any, loader: Any) -> None:
    """Raise ``UsageError`` if several processes train together, and the optimizer sums over one."""
    distributed, distribution = torch.distributed, ""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        distribution = f"torch.distributed runs {distributed.get_world_size()} processes"
    elif getattr(loader, "distributed", False) is True:
        distribution = "loader is a distributed DPDataLoader"
    if distribution and not is_distributed(optimizer):
        kind = "None" if optimizer is None else name_of(type(optimizer))
        raise UsageError(
            f"{distribution}, and optimizer is {kind}, which sums over one: give make_private a model in "
            "DifferentiallyPrivateDistributedDataParallel or DistributedDataParallel, or use one process"
        )


def sampler_of(loader: Any) -> Sampler:
    """The sampling of a loader; ``unknown`` unless its class is known by name."""
    batches: Any = getattr(loader, "batch_sampler", None)
    if type(batches).__name__ == "BatchSplittingSampler":
        batches = batches.sampler
    kind = type(loader).__name__
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        note = f"loader {kind} reads an IterableDataset, which has no indices: the drawn records are not observed"
        return Sampler("unknown", kind, note=note)
    if batches is None:
        return Sampler("unknown", kind, note=f"loader {kind} draws no batches of indices: who is drawn is not seen")
    try:
        records = max(1, len(loader.dataset))
    except (AttributeError, TypeError, NotImplementedError):
        records = None
    for class_name, size in _POISSON.items():
        if is_opacus(batches, class_name):
            rate, drawn_from = float(batches.sample_rate), int(getattr(batches, size))
            return Sampler("poisson", name_of(type(batches)), rate, drawn_from, batches=batches)
    if type(batches) is BatchSampler:
        inner: Any = batches.sampler
        scheme = _SCHEMES.get(type(inner), "unknown")
        if scheme == "shuffled" and getattr(inner, "replacement", False):
            scheme = "weighted"
        return Sampler(scheme, name_of(type(inner)), None, records, int(batches.batch_size), batches)
    note = f"sampler {name_of(type(batches))} is not known: which batches are likely is not"
    return Sampler("unknown", name_of(type(batches)), None, records, batches=batches, note=note)


def filling_collate(collate_fn: Any) -> Any:
    """Opacus' function that may replace an empty batch by a random row; None in other loaders and older versions.

    Scripts may wrap it, for example to give batches names.

    Args:
        collate_fn: The function that the loader calls.
    """
    visited, waiting = set[int](), [(collate_fn, _WRAPPERS)]
    while waiting:
        collate, depth = waiting.pop()
        if not callable(collate) or id(collate) in visited:
            continue
        visited.add(id(collate))
        if getattr(collate, RAND_ON_EMPTY, None) is not None:
            return collate
        if depth:
            waiting += [(inner, depth - 1) for inner in _called_by(collate)]
    return None


def _called_by(function: Any) -> Iterator[Any]:
    """The objects that a wrapper of a function holds, and those that a function of Python names."""
    if isinstance(function, partial):
        yield from (function.func, *function.args, *function.keywords.values())
    yield from getattr(function, "__dict__", {}).values()
    yield getattr(function, "__self__", None)
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it has no value yet
            yield cell.cell_contents
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    yield from (function.__globals__.get(name) for name in names)


def refuse_model(model: Any) -> None:
    """Raise ``UsageError`` unless the model is a module of torch."""
    for module in (model, getattr(model, "_module", None)):
        refuse_parts("model", module)
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, got {name_of(type(model))}")


def refuse_pieces(model: nn.Module) -> None:
    """Raise ``UsageError`` unless the model is whole in this process."""
    name = next((name for name, p in model.named_parameters() if type(p.data).__name__ == "DTensor"), None)
    if name is not None:
        raise UsageError(
            f"parameter {name} of the model is a DTensor, as tensor parallelism makes: Opacus computes no gradients of "
            "single records of it; train whole models in DifferentiallyPrivateDistributedDataParallel"
        )


def inner_module(model: Any) -> nn.Module:
    """The user's module in Opacus' wrapper, and in the wrapper for several processes."""
    inner: Any = uncompiled(getattr(model, "_module", model))
    while type(inner).__name__ in _WHOLE:
        inner = uncompiled(inner.module)
    module: nn.Module = inner
    return module


class AccountantWatch:
    """Reads ``history``, a list of (noise multiplier, sampling rate, steps), of an accountant or an engine's."""

    def __init__(self, engine: Any) -> None:
        accountant = getattr(engine, "accountant", engine)
        if not isinstance(getattr(accountant, "history", None), list):
            kind = type(engine).__name__
            raise UsageError(f"engine must be Opacus' PrivacyEngine or one of its accountants, got {kind}")
        self._accountant = accountant
        mechanism = getattr(accountant, "mechanism", None)
        self.mechanism = str(mechanism()) if callable(mechanism) else type(accountant).__name__

    def told(self) -> tuple[float, float, int]:
        """The last noise multiplier and rate, and the number of all steps; NaN and 0 before the first."""
        history = self._accountant.history
        if not history:
            return math.nan, math.nan, 0
        noise, rate, _ = history[-1]
        return float(noise), float(rate), sum(int(steps) for _, _, steps in history)

    def history(self) -> list[list[float]]:
        return [[float(noise), float(rate), int(steps)] for noise, rate, steps in self._accountant.history]


def losses_of(loss: Loss, model: Any, batch: Any, records: int) -> Tensor:
    """The loss of each record of a batch; ``UsageError`` if ``loss`` returns anything else."""
    losses: Any = loss(model, batch)
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (records,):
        returned = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise UsageError(
            f"loss(model, batch) must give the loss of each of {records} records, shape ({records},), got {returned}: "
            "give a loss of torch reduction='none'"
        )
    return losses


def largest_multiplicity(dataset: Any) -> int:
    """The largest number of indices that lead to one record through ``Subset`` and ``ConcatDataset``, 1 for others.

    Two datasets are the same if they are one object, or ``TensorDataset`` over the same memory.
    """
    try:
        size = len(dataset)
    except (TypeError, NotImplementedError):
        return 1
    if not isinstance(dataset, Subset | ConcatDataset) or not 0 < size <= _MOST:
        return 1
    resolved = _resolved(dataset, np.arange(size, dtype=np.int64), {}, _DEEPEST)
    if resolved is None:
        return 1
    _, counts = np.unique(resolved, axis=1, return_counts=True)
    return int(counts.max())


def have_common_records(first: Any, second: Any) -> bool | None:
    """Whether two datasets have a record in common; None if they are over different objects, whose rows may agree."""
    sources: dict[Any, int] = {}
    indices = []
    for dataset in (first, second):
        try:
            size = len(dataset)
        except (TypeError, NotImplementedError):
            return True if first is second else None
        resolved = _resolved(dataset, np.arange(size, dtype=np.int64), sources, _DEEPEST) if 0 < size <= _MOST else None
        if resolved is None:
            return True if first is second else None
        indices.append(np.unique(resolved, axis=1))
    if len(np.unique(np.concatenate(indices, axis=1), axis=1).T) < sum(unique.shape[1] for unique in indices):
        return True
    return False if set(indices[0][0]) == set(indices[1][0]) else None


def _resolved(dataset: Any, indices: Any, sources: dict[Any, int], depth: int) -> Any:
    """(2, n) the number of the innermost dataset of each index, and the index in it; None if that is not known."""
    if depth == 0:
        return None
    if type(dataset) is Subset:
        within = np.asarray(dataset.indices, dtype=np.int64)
        return _resolved(dataset.dataset, within[indices], sources, depth - 1)
    if type(dataset) is ConcatDataset:
        ends = np.asarray(dataset.cumulative_sizes, dtype=np.int64)
        part = np.searchsorted(ends, indices, side="right")
        origins = np.zeros((2, len(indices)), dtype=np.int64)
        for number, inner in enumerate(dataset.datasets):
            in_part = part == number
            start = ends[number - 1] if number else 0
            resolved = _resolved(inner, indices[in_part] - start, sources, depth - 1)
            if resolved is None:
                return None
            origins[:, in_part] = resolved
        return origins
    # Negative indices count from the end, as in a list.
    indices = np.where(indices < 0, indices + len(dataset), indices)
    identity: Any = id(dataset)
    if type(dataset) is TensorDataset:
        identity = tuple((tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) for tensor in dataset.tensors)
    return np.stack([np.full(len(indices), sources.setdefault(identity, len(sources))), indices])


def name_of(kind: type) -> str:
    """A class with the first part of its module; without it if it is built in or the script's."""
    root = kind.__module__.partition(".")[0]
    return kind.__name__ if root in ("builtins", "__main__") else f"{root}.{kind.__name__}"
