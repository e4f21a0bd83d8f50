"""What the recorder knows by name, and what it refuses by name: it never guesses what an unknown part does."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from dpspec.errors import UsageError

#: Optimizers of Opacus by class, and how they clip.
CLIPPING = {
    "DPOptimizer": "flat",
    "DPPerLayerOptimizer": "per-layer",
    "AdaClipDPOptimizer": "adaptive",
    "DPOptimizerFastGradientClipping": "ghost",
}

#: What spreads one step over several processes: each sees a part, and no recorder sees the whole.
_DISTRIBUTED = (
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "FSDPModule",
    "DifferentiallyPrivateDistributedDataParallel",
    "DistributedDPOptimizer",
    "DistributedDPOptimizerFastGradientClipping",
    "SimpleDistributedPerLayerOptimizer",
    "FSDPOptimizerFastGradientClipping",
    "DistributedUniformWithReplacementSampler",
    "DistributedSampler",
)

#: What wraps an optimizer, and where the one inside is.
_WRAPPERS = {
    "LightningOptimizer": "optimizer.optimizer",
    "AcceleratedOptimizer": "optimizer.optimizer",
    "GradScaler": "the optimizer that it scales for",
}


@dataclass(frozen=True)
class Sampler:
    """How a loader draws: its scheme, the rate of a Poisson sampler, and the object that yields batches of indices."""

    scheme: str
    kind: str
    rate: float | None = None
    records: int | None = None
    batch_size: int | None = None
    batches: Any = None
    note: str = ""


def is_opacus(thing: Any, name: str) -> bool:
    """Whether an object is of exactly Opacus' class of this name; Opacus is not imported."""
    kind = type(thing)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == "opacus" and is_registered(kind)


def is_registered(kind: type) -> bool:
    """Whether the module that a class names holds this class, and no other, under its name."""
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def clipping_of(optimizer: Any) -> str | None:
    """How Opacus' optimizer clips; None for an optimizer of torch; ``UsageError`` that names anything else."""
    kind = type(optimizer)
    refuse_distributed("optimizer", optimizer)
    if kind.__name__ in _WRAPPERS:
        inner = _WRAPPERS[kind.__name__]
        raise UsageError(f"the recorder does not know what {kind.__name__} does: give {inner} for optimizer")
    if kind.__name__ in CLIPPING and is_opacus(optimizer, kind.__name__):
        return CLIPPING[kind.__name__]
    opacus = sys.modules.get("opacus.optimizers")
    if opacus is not None and isinstance(optimizer, opacus.DPOptimizer):
        raise UsageError(
            f"the recorder does not know {_name(kind)}, an optimizer derived from Opacus': it may clip and add noise "
            "in a way of its own; record such a loop by run.sampled, run.clipped, run.noised and run.stepped, with its "
            "original_optimizer for optimizer"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"optimizer must be an optimizer of torch or Opacus, got {_name(kind)}")
    return None


def refuse_engine(engine: Any, optimizer: Any) -> None:
    """Raise ``UsageError`` for Opacus' engine beside an optimizer that is none of Opacus'.

    Such an optimizer would be taken for that of a loop of one's own, and the one that clips would go unseen.
    """
    if is_opacus(engine, "PrivacyEngine"):
        given = f"optimizer is {_name(type(optimizer))}, which is none of Opacus'"
        what = "no optimizer was given" if optimizer is None else given
        raise UsageError(
            f"{what}, and engine is Opacus' PrivacyEngine: give the optimizer that make_private returned; a loop that "
            "clips and adds noise itself gives its accountant alone, engine=engine.accountant"
        )


def unwrapped(optimizer: Any) -> Any:
    """The optimizer that Lightning's own wrapper steps, told by its class: the wrapper adds callbacks alone."""
    kind = type(optimizer)
    lightning = kind.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")
    return optimizer.optimizer if lightning and kind.__name__ == "LightningOptimizer" else optimizer


def refuse_distributed(what: str, thing: Any) -> None:
    """Raise ``UsageError`` for what spreads a step over processes."""
    names = [kind.__name__ for kind in type(thing).__mro__]
    found = next((name for name in names if name in _DISTRIBUTED), None)
    if found is not None or (what == "loader" and getattr(thing, "distributed", False) is True):
        raise UsageError(
            f"{what} is {found or 'a distributed DPDataLoader'}: each process sees a part of a step, and the recorder "
            "is not made for several; record a run on one process"
        )


def refuse_processes() -> None:
    """Raise ``UsageError`` where this process is one of several that train together."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        size = distributed.get_world_size()
        raise UsageError(f"torch.distributed runs {size} processes: the recorder is not made for several")


def sampler_of(loader: Any) -> Sampler:
    """How a loader draws its batches; what is not known by name is ``unknown``."""
    refuse_distributed("loader", loader)
    batches: Any = getattr(loader, "batch_sampler", None)
    if type(batches).__name__ == "BatchSplittingSampler":
        batches = batches.sampler
    if batches is None:
        kind = type(loader).__name__
        return Sampler("unknown", kind, note=f"loader {kind} draws no batches of indices: who is drawn is not seen")
    refuse_distributed("loader", batches)
    records = _length(getattr(loader, "dataset", None))
    if is_opacus(batches, "UniformWithReplacementSampler"):
        rate = float(batches.sample_rate)
        return Sampler("poisson", _name(type(batches)), rate, int(batches.num_samples), batches=batches)
    if type(batches) is BatchSampler:
        inner: Any = batches.sampler
        of: type = type(inner)
        size = int(batches.batch_size)
        scheme = "unknown"
        if of is RandomSampler:
            scheme = "weighted" if inner.replacement else "shuffled"
        elif of is SequentialSampler:
            scheme = "sequential"
        elif of is WeightedRandomSampler:
            scheme = "weighted"
        else:
            refuse_distributed("loader", inner)
        return Sampler(scheme, _name(of), None, records, size, batches)
    note = f"sampler {_name(type(batches))} is not known: which batches are likely is not"
    return Sampler("unknown", _name(type(batches)), None, records, batches=batches, note=note)


def refuse_model(model: Any) -> None:
    """Raise ``UsageError`` for what is no module of torch, and for modules that are spread over processes."""
    refuse_distributed("model", model)
    inner = getattr(model, "_module", None)
    if isinstance(inner, nn.Module):
        refuse_distributed("model", inner)
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, got {_name(type(model))}")


def _length(dataset: Any) -> int | None:
    try:
        return max(1, len(dataset))
    except TypeError:
        return None


def _name(kind: type) -> str:
    root = kind.__module__.partition(".")[0]
    return kind.__name__ if root in ("builtins", "__main__") else f"{root}.{kind.__name__}"
