"""Code of the script that runs in a step: its hooks on the optimizer, and methods of Opacus that it replaced."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

#: Methods that sum, add noise, divide and step, and functions that they call.
_METHODS = ("clip_and_accumulate", "accumulate", "add_noise", "scale_grad", "pre_step", "step")
_FUNCTIONS = ("_generate_noise", "_check_processed_flag", "_mark_as_processed")

#: Packages whose wrappers of ``step`` count calls, measure time or move data, and call the method.
_WRAPPERS = ("torch", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric")

_BEFORE, _AFTER = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"


class StepHooks:
    """Calls ``before`` after all other hooks that precede a step, and ``after`` before all others that follow it.

    Otherwise changes by those hooks would be attributed to the step.

    Attributes:
        ordered: Whether, at the last step, no other hook of the optimizer ran between ``before`` and ``after``.
        disordered: The number of steps at which one did.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._optimizer, self._observe_before, self._observe_after = optimizer, before, after
        self._before = optimizer.register_step_pre_hook(lambda *_: self._begin())
        self._after = optimizer.register_step_post_hook(lambda *_: self._end())
        self._move(_AFTER, self._after, last=False)
        self.ordered, self.disordered = True, 0

    def put_last(self) -> None:
        """Move ``before`` behind all other hooks. Call this before the optimizer runs its hooks."""
        self._move(_BEFORE, self._before, last=True)

    def remove(self) -> None:
        """Remove both hooks."""
        self._before.remove()
        self._after.remove()

    def _begin(self) -> None:
        self.ordered = self._is_at(_BEFORE, self._before, -1)
        self._observe_before()
        # torch iterates over the hooks before a step now, and order can only be changed among those after it
        self._move(_AFTER, self._after, last=False)

    def _end(self) -> None:
        self.ordered = self.ordered and self._is_at(_AFTER, self._after, 0)
        self.disordered += not self.ordered
        self._observe_after()
        self.put_last()

    def _move(self, name: str, handle: Any, *, last: bool) -> None:
        """Move a hook to an end; nothing if it is gone or the optimizer keeps its hooks in another way."""
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            getattr(self._optimizer, name).move_to_end(handle.id, last=last)

    def _is_at(self, name: str, handle: Any, place: int) -> bool:
        ids = list(getattr(self._optimizer, name, ()))
        return bool(ids) and ids[place] == handle.id


class ReplacedMethods:
    """Collects the names of Opacus' methods that a script replaced, on the class, on the instance or in the module."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._modules = {kind.__module__: sys.modules.get(kind.__module__) for kind in type(optimizer).__mro__}
        self._seen: list[Any] = []
        self._names: dict[str, None] = {}

    @property
    def found(self) -> list[str]:
        """The first 20 names."""
        return list(self._names)[:20]

    def check(self, watched: Mapping[str, Any]) -> None:
        """Note the methods that are replaced now. watched: the recorder's, by name."""
        places = list(self._places(watched))
        objects = [thing for _, thing, _ in places]
        if len(objects) == len(self._seen) and all(a is b for a, b in zip(objects, self._seen, strict=True)):
            return
        self._seen = objects
        for name, thing, packages in places:
            if not _is_of(thing, packages):
                self._names.setdefault(name[:100])

    def _places(self, watched: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
        """The name of each method, the function under this name, and the packages that may define it."""
        optimizer, kind = self._optimizer, type(self._optimizer)
        own, inner = vars(optimizer), optimizer.original_optimizer
        for name in _METHODS:
            put, method = own.get(name), getattr(kind, name, None)
            if put is not None and put is not watched.get(name):
                allowed = ("dpspec", *_WRAPPERS) if name == "step" else ("dpspec",)
                yield from ((f"{kind.__name__}.{name}", link, allowed) for link in _links(put, method))
            if method is not None:
                yield f"{kind.__name__}.{name}", method, ("opacus",)
        step = vars(inner).get("step")
        if step is not None:
            yield from ((f"{type(inner).__name__}.step", link, _WRAPPERS) for link in _links(step, type(inner).step))
        for path, module in self._modules.items():
            for name in _FUNCTIONS:
                function = getattr(module, name, None) if path.startswith("opacus.") else None
                if function is not None:
                    yield f"{path}.{name}", function, ("opacus",)


def _links(put: Any, method: Any) -> Iterator[Any]:
    """A wrapper and the functions under it, by ``__wrapped__``, down to the method of the class, which is excluded."""
    link = getattr(put, "__func__", put)
    while link is not None and link is not method:
        yield link
        link = getattr(link, "__wrapped__", None)


def _is_of(method: Any, packages: tuple[str, ...]) -> bool:
    if not isinstance(method, FunctionType):
        return False
    roots = [getattr(sys.modules.get(package), "__file__", None) for package in packages]
    file = Path(method.__code__.co_filename)
    return any(root is not None and Path(root).parent in file.parents for root in roots)
