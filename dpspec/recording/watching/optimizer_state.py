"""What an optimizer remembers between its steps (momentum, second moments): whether anybody else changed it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.recording.side_state.digests import readable_digest
from dpspec.recording.watching.recomputed_updates import STEPS

#: Integers of as many bytes as a number of the state.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: An odd number by which places are multiplied, numbers looked at in one go, and a prime that Python's integers are
#: reduced by.
_ODD, _CHUNK, _PRIME = 0x1E3779B97F4A7C15, 2**20, 2**61 - 1

#: Of a parameter that nothing is remembered of.
_NOTHING = torch.zeros(0, 2, dtype=torch.int64)


#: Options that the schedulers of torch add to each group.
_OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}


class OptimizerState:
    """Counts the steps that begin with another state than the last one left, or the recording began with.

    Parameters that the optimizer has no more are not looked at: what is remembered of them moves nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._left = dict(self._fingerprints())
        self._restated: Tensor | None = None

    @property
    def restated(self) -> int:
        """How many steps did."""
        return 0 if self._restated is None else int(self._restated)

    @property
    def kind(self) -> str:
        """The optimizer's class with its module; empty for classes whose updates are recomputed."""
        kind = type(self._optimizer)
        return "" if kind in STEPS else f"{kind.__module__}.{kind.__qualname__}"[:100]

    def look_before(self) -> None:
        """The optimizer is about to step."""
        pairs = [(now, self._left.get(parameter, _NOTHING)) for parameter, now in self._fingerprints()]
        if any(now.shape != left.shape for now, left in pairs):
            other = torch.ones((), dtype=torch.int64)
        elif pairs:
            device = _device(now for now, _ in pairs)
            now, left = (torch.cat([one.to(device) for one in side]) for side in zip(*pairs, strict=True))
            other = (now != left).any().long()
        else:
            return
        self._restated = other if self._restated is None else self._restated.to(other.device) + other

    def look_after(self) -> None:
        """It has stepped."""
        self._left.update(self._fingerprints())

    @torch.no_grad()
    def _fingerprints(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each parameter two sums over each number or tensor that is remembered of it, (n, 2)."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                sums = list(_sums(self._optimizer.state.get(parameter)))
                device = _device(sums)
                yield parameter, torch.stack([one.to(device) for one in sums]) if sums else _NOTHING


def other_entries(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Digests of what ``state_dict()`` holds other than options and the state of parameters, by name.

    These are the entries of ``state`` under keys that are no parameters, and the names of parameters and options in
    each group. Options that schedulers add are omitted.
    """
    every = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found = {}
    state: dict[Any, Any] = dict(optimizer.state)
    for key, value in state.items():
        if not (id(key) in every or isinstance(key, nn.Parameter)):
            found[f"optimizer.state[{key if isinstance(key, str) else type(key).__name__}]"] = readable_digest(value)
    for number, group in enumerate(optimizer.param_groups):
        for name in group.keys() - _OF_SCHEDULERS:
            found[f"optimizer.param_groups[{number}].{name}"] = (
                readable_digest(group[name]) if name == "param_names" else ""
            )
    return found


def untouched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer remembers nothing, or only what Adagrad does before its first step."""
    if not isinstance(optimizer, torch.optim.Adagrad):
        return not optimizer.state
    first = {p: group["initial_accumulator_value"] for group in optimizer.param_groups for p in group["params"]}
    return all(
        p in first
        and set(kept) == {"step", "sum"}
        and not float(kept["step"])
        and bool((_real(kept["sum"]) == first[p]).all())
        for p, kept in optimizer.state.items()
    )


def _real(value: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _device(tensors: Any) -> torch.device:
    """Where the first of them is that is not in the host's memory."""
    return next((one.device for one in tensors if one.device.type != "cpu"), torch.device("cpu"))


def _sums(value: Any) -> Iterator[Tensor]:
    """Two sums (2,) of each number and tensor in what may be nested."""
    if isinstance(value, Tensor):
        yield _sums_of_bits(value.detach())
    elif isinstance(value, bool | int):
        yield torch.tensor([value % _PRIME, value < 0], dtype=torch.int64)
    elif isinstance(value, float):
        yield torch.tensor([*struct.unpack("<q", struct.pack("<d", value)), 0], dtype=torch.int64)
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _sums(one)


def _sums_of_bits(value: Tensor) -> Tensor:
    """Of each number's bits, as an integer, and of these times the number's place, modulo 2^64: (2,).

    They are the same for every order of the sums, every layout in memory and every number of threads, and others where
    two numbers changed places.
    """
    if value.is_meta:
        return torch.zeros(2, dtype=torch.int64)
    if value.is_quantized:
        value = value.int_repr()
    dense = value if value.layout == torch.strided else value.to_dense()
    found = torch.zeros(2, dtype=torch.int64, device=dense.device)
    for start, part in enumerate(torch.split(_real(dense).resolve_neg().reshape(-1), _CHUNK)):
        bits = part.view(_BITS[part.element_size()]).to(torch.int64)
        places = torch.arange(1, len(bits) + 1, device=bits.device) + start * _CHUNK
        found += torch.stack([bits.sum(), (bits * (places * _ODD)).sum()])
    return found
