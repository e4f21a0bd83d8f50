"""Layers that no per-example gradient exists for: they let one record change what another one computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from dpspec.models import modules

_Rule = tuple[type[nn.Module], Callable[[Any], bool], str, str]

_RULES: tuple[_Rule, ...] = (
    # InstanceNorm derives from BatchNorm in torch but couples nothing unless it tracks running statistics.
    (
        _InstanceNorm,
        lambda m: bool(m.track_running_stats),
        "keeps running statistics over records",
        "set track_running_stats=False",
    ),
    (
        _BatchNorm,
        lambda m: not isinstance(m, _InstanceNorm),
        "mixes the records of a batch",
        "use torch.nn.GroupNorm or torch.nn.LayerNorm",
    ),
    (
        _DropoutNd,
        lambda m: bool(m.p > 0),
        "draws from torch's global generator, so that a seed would not decide the run",
        "remove it: the noise of DP-SGD already regularises",
    ),
    (
        nn.RNNBase,
        lambda m: True,
        "has no rule in torch.func.vmap",
        "write the recurrence with torch.nn.RNNCell, LSTMCell or GRUCell",
    ),
)

#: Layers whose output for a record is a function of that record alone, whatever their options are.
_SEPARATE: frozenset[type[nn.Module]] = frozenset(
    {
        *(nn.Sequential, nn.Identity, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding),
        *(nn.GroupNorm, nn.LayerNorm, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d),
        *(nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
        *(modules.Sum, modules.Subsample, modules.ZeroFirst),
    }
)


def record_by_record(model: nn.Module) -> bool:
    """Whether a model's structure shows that it treats each record by itself, so that a batch needs no ``vmap``.

    True only for layers that are known, of exactly these types and without hooks; a false answer says nothing.
    """
    return all(_separate(module) for module in model.modules())


def _separate(module: nn.Module) -> bool:
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    if type(module) is nn.Flatten:
        return module.start_dim >= 1
    return type(module) in _SEPARATE


def problems(model: nn.Module) -> tuple[str, ...]:
    """One sentence per layer that cannot be trained by example, with its name and what to use instead."""
    found = []
    for name, module in model.named_modules():
        for kind, applies, why, instead in _RULES:
            if isinstance(module, kind) and applies(module):
                where = f"layer {name!r} ({type(module).__name__})" if name else type(module).__name__
                found.append(f"{where} {why}; {instead}")
                break
    return tuple(found)


def require_uncoupled(model: nn.Module) -> None:
    """Raise ``ValueError`` that names every layer of :func:`problems`."""
    found = problems(model)
    if found:
        raise ValueError("the model has no per-example gradients: " + "; ".join(found))
