"""The kinds of calls of torch in each step, which show that a training begins to do something else.

Replays of the first steps do not show a mistake that begins later: another loss after a warm-up, batch statistics after
a schedule, a contrastive term from an epoch on. Such a step calls functions of torch, or with options, that no
replayed step called, so a step with these calls is replayed too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from dpspec.text import joined

_LINALG = torch.linalg

#: Functions that compute singular vectors or eigenvectors, too, if a gradient may need them, by another algorithm. Any
#: dispatch mode makes torch assume this. A wrong assumption changes the last bits of the values.
_WHOLE = frozenset(
    {
        *(_LINALG.svdvals, _LINALG.eigvalsh, _LINALG.eigvals, _LINALG.matrix_norm, _LINALG.norm, _LINALG.cond),
        _LINALG.matrix_rank,
    }
)

#: Replays at most for new calls: for each, and in a training.
_TRIES, _MOST_TRIES = 3, 20

#: The number of calls that a reason names.
_MOST_NAMED = 3


class Pauses:
    """The number of nested calls of the recorder, whose operations belong to no step.

    Attributes:
        calls: The observer of calls while it is active: the recorder's own calls bypass it, which is faster.
    """

    depth = 0
    calls: StepCalls | None = None

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Let operations belong to no step, such as comparisons in a hook of a rule."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


class StepCalls(TorchFunctionMode):
    """Notes the kinds of calls of steps while it is active. It changes no value and draws no number.

    A kind is a function of torch with its options: strings, truth values, the types of other arguments, and whether
    numbers are 0, so that a term with the factor 0 differs from one that counts. Numbers and repetitions do not
    matter: they vary with the batch.

    Attributes:
        active: Whether it sees calls.
    """

    def __init__(self, pauses: Pauses | None = None) -> None:
        super().__init__()
        self.active, self._pauses = False, pauses or Pauses()
        #: Gets each call with its results.
        self.observe: Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], None] | None = None
        self._kinds: set[Any] = set()
        self._replayed: set[Any] = set()
        self._tries: dict[Any, int] = {}  # of kinds that no replayed step called
        self._replays = 0
        self._measured: set[Any] = set()  # by replays that did not abstain
        self._abstained: dict[Any, str] = {}  # the reasons of the others

    @property
    def are_new(self) -> bool:
        """Whether earlier steps had calls that no replayed step had."""
        return bool(self._tries) and self._replays < _MOST_TRIES

    def start(self) -> None:
        """Begin to note calls."""
        enter(self)
        self.active, self._pauses.calls = True, self

    def stop(self) -> None:
        """End; a second call does nothing."""
        if self.active:
            self.active, self._pauses.calls = False, None
            leave(self)

    @property
    def unreplayed(self) -> tuple[str, ...]:
        """Why no step with some calls was replayed, for each reason."""
        by_reason: dict[str, list[str]] = {}
        for kind, reason in self._abstained.items():
            if kind not in self._measured:
                by_reason.setdefault(reason, []).append(getattr(kind[0], "__name__", str(kind[0])))
        return tuple(
            f"steps that call {joined(sorted({*names})[:_MOST_NAMED])}: {reason}" for reason, names in by_reason.items()
        )

    def end_step(self, *, replayed: bool, abstained: str = "") -> None:
        """The step is over. replayed: whether a replay was tried; abstained: why it abstained, if it did."""
        if not (replayed or self._kinds):
            return
        kinds, self._kinds = self._kinds, set()
        if not replayed:
            self._tries |= dict.fromkeys(kinds - self._replayed - self._tries.keys(), 0)
            return
        if abstained:
            self._abstained |= dict.fromkeys(kinds, abstained)
        else:
            self._measured |= kinds
        self._replays += bool(self._tries)
        self._tries = {kind: tries + 1 for kind, tries in self._tries.items() if kind not in kinds}
        failed = {kind for kind, tries in self._tries.items() if tries >= _TRIES}
        self._replayed |= kinds | failed
        self._tries = {kind: tries for kind, tries in self._tries.items() if kind not in failed}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if not self._pauses.depth:
            options = [(name, _option(value)) for name, value in named.items()]
            self._kinds.add((func, *map(_option, args), *options))
        results = func(*args, **named)
        if self.observe is not None and not self._pauses.depth:
            self.observe(func, args, named, results)
        return results


class WholeFunctions(TorchFunctionMode):
    """Gives a dispatch mode some functions of torch as one operation each, so that their values stay as without it."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func in _WHOLE and "input" in named:  # the operation has another name for it
            args = (named.pop("input"), *args)
        operation = _whole_operation(func, args, named) if func in _WHOLE else None
        if operation is None:
            return func(*args, **named)
        with _disable_current_modes():
            return self._mode.__torch_dispatch__(operation, types, args, named)  # type: ignore[no-untyped-call]


def _whole_operation(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """The operation of a call; None if a gradient needs its parts, or it writes its result (``out``)."""
    if needs_gradient((args, named)) is not False:
        return None
    try:
        overload = torch._C._jit_resolve_packet(f"aten::{func.__name__}", *args, **named)
    except RuntimeError:
        return None
    return getattr(getattr(torch.ops.aten, func.__name__), overload)


def needs_gradient(arguments: Any) -> bool | None:
    """Whether a backward pass may need a gradient of the arguments of a call; None if ``torch.func`` transforms them.

    Under a transform, torch computes as under a mode anyway.
    """
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
        return None
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _option(value: Any) -> Any:
    if isinstance(value, bool | str) or value is None:
        return value
    return (type(value), value == 0) if isinstance(value, int | float) else type(value)


def is_script_mode_active() -> bool:
    """Whether a mode of the script is active, except for devices: a replay would call it."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    is_foreign = any(not isinstance(mode, DeviceContext | StepCalls | WholeFunctions) for mode in modes)
    return is_foreign or _get_current_dispatch_mode() is not None


def enter(mode: TorchFunctionMode) -> None:
    """Begin a mode below the modes of the script: the end of ``with torch.device(...)`` ends the topmost mode.

    A default device must stay the lowest one. Torch has set it by ``__enter__``, which keeps the device from before.
    """
    modes = _pop_modes()
    modes.insert(bool(modes) and hasattr(modes[0], "old_device"), mode)
    for active in modes:
        _push_mode(active)  # type: ignore[no-untyped-call]


def leave(mode: TorchFunctionMode) -> None:
    """End a mode, wherever it is in the stack: modes of the script stay."""
    for active in _pop_modes():
        if active is not mode:
            _push_mode(active)  # type: ignore[no-untyped-call]


def _pop_modes() -> list[TorchFunctionMode]:
    """Remove all modes of this thread, and return them from the lowest on."""
    count = len(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]
    return [_pop_mode() for _ in range(count)][::-1]  # type: ignore[no-untyped-call]
