"""Calls when a library has been imported, without importing it: a script sets variables and seeds before it does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Imported(MetaPathFinder):
    """A finder that finds nothing itself, and calls a function once a library's package is loaded."""

    def __init__(self, calls: dict[str, Callable[[ModuleType], None]]) -> None:
        """calls: by the name of a package. A package that is loaded already is called for by :meth:`start`."""
        self._calls = dict(calls)

    def start(self) -> None:
        """Call for each loaded library, after another thread's import of it ends; later ones are found."""
        sys.meta_path.insert(0, self)
        for name in list(self._calls):
            if name in sys.modules:
                try:
                    module = import_module(name)  # waits for its lock
                except Exception:  # the script's own import raises it, too
                    continue
                self._call(module)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a library by the other finders, and call when its code has run."""
        if fullname not in self._calls:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                self._call_after(spec)
                library: ModuleSpec = spec
                return library
        return None

    def _call_after(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._call(module)

        loader.exec_module = exec_module

    def _call(self, module: ModuleType) -> None:
        if (call := self._calls.pop(module.__name__, None)) is not None:
            call(module)
