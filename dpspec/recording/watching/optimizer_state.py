"""What an optimizer remembers between its steps (momentum, second moments): whether anybody else changed it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.recording.fingerprints import Fingerprint, Tally, differs, fingerprint
from dpspec.recording.side_state.digests import readable_digest
from dpspec.recording.watching.recomputed_updates import STEPS

#: Options that the schedulers of torch add to each group.
_OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}


class OptimizerState:
    """Counts the steps that begin with another state than the last one left, or the recording began with.

    Parameters that the optimizer has no more are not looked at: what is remembered of them moves nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._left: dict[int, tuple[Tensor, Fingerprint]] = {}
        self.look_after()
        self._restated = Tally()

    @property
    def restated(self) -> int:
        """The number of these steps."""
        return int(self._restated)

    @property
    def kind(self) -> str:
        """The optimizer's class with its module; empty for classes whose updates are recomputed."""
        kind = type(self._optimizer)
        return "" if kind in STEPS else f"{kind.__module__}.{kind.__qualname__}"[:100]

    def look_before(self) -> None:
        """The optimizer is about to step."""
        every, nothing = self._fingerprints(), (None, fingerprint(()))
        left = [self._left.get(id(parameter), nothing)[1] for parameter, _ in every]
        self._restated.add(differs(_joined(now for _, now in every), _joined(left)))

    def look_after(self) -> None:
        """It has stepped."""
        self._left.update((id(parameter), (parameter, now)) for parameter, now in self._fingerprints())

    def _fingerprints(self) -> list[tuple[Tensor, Fingerprint]]:
        """Each parameter with the fingerprint of what is remembered of it."""
        state = self._optimizer.state
        every = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        return [(parameter, fingerprint((state.get(parameter),))) for parameter in every]


def _joined(every: Iterable[Fingerprint]) -> Fingerprint:
    """The fingerprints of several parameters as one."""
    host: list[Any] = []
    device: list[Tensor] = []
    for of_host, of_device in every:
        host.append(of_host)
        device += of_device
    return host, device


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
