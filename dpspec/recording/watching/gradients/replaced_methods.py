"""Methods of Opacus that a script replaces by its own, on the class, on the instance or in the module."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

#: Methods that sum, add noise, divide and step, and functions that they call.
_METHODS = ("clip_and_accumulate", "accumulate", "add_noise", "scale_grad", "pre_step", "step")
_FUNCTIONS = ("_generate_noise", "_check_processed_flag", "_mark_as_processed")

#: Packages whose wrappers of ``step`` count calls, measure time or move data, and call the method.
_WRAPPERS = ("torch", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric")

#: One method: its name, the function found under it, and the packages that may define it.
_Place = tuple[str, Any, tuple[str, ...]]


class ReplacedMethods:
    """Collects the names of methods that a script replaced."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._modules = {kind.__module__: sys.modules.get(kind.__module__) for kind in type(optimizer).__mro__}
        self._seen: list[Any] = []
        self._names: dict[str, None] = {}

    def look(self, watched: Mapping[str, Any]) -> None:
        """Note the methods that are replaced now. watched: by name, those that the recorder put there."""
        places = list(self._places(watched))
        objects = [thing for _, thing, _ in places]
        if len(objects) == len(self._seen) and all(a is b for a, b in zip(objects, self._seen, strict=True)):
            return
        self._seen = objects
        for name, thing, packages in places:
            if not _is_of(thing, packages):
                self._names.setdefault(name[:100])

    @property
    def found(self) -> list[str]:
        """The first 20 names."""
        return list(self._names)[:20]

    def _places(self, watched: Mapping[str, Any]) -> Iterator[_Place]:
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
    """Whether a function's code is in a file of one of these packages."""
    if not isinstance(method, FunctionType):
        return False
    roots = [getattr(sys.modules.get(package), "__file__", None) for package in packages]
    file = Path(method.__code__.co_filename)
    return any(root is not None and Path(root).parent in file.parents for root in roots)
