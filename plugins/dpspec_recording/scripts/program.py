"""A script or a module that runs as ``__main__``, as under ``python SCRIPT`` and ``python -m MODULE``."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from dpspec.errors import UsageError


class Program:
    """A program of the user.

    Attributes:
        error: The exception that ended it; None if it ended at its last line, or still runs.
    """

    def __init__(self, target: str, arguments: Sequence[str], *, is_module: bool) -> None:
        """Read a script, or note the name of a module, which is imported when it runs.

        Raises:
            UsageError: The script cannot be read.
        """
        self._target, self._arguments, self._is_module = target, list(arguments), is_module
        self.error: BaseException | None = None
        self._source = b""
        if not is_module:
            if Path(target).is_dir():
                raise UsageError(f"{target} is a folder: give a script, or -m and a module")
            try:
                with io.open_code(os.path.join(os.getcwd(), target)) as file:
                    self._source = file.read()
            except OSError as error:
                raise UsageError(f"cannot read the script {target}: {error.strerror or error}") from error

    @property
    def exit_code(self) -> int:
        """The exit code of the process, if the program is over."""
        error = self.error
        if error is None:
            return 0
        if not isinstance(error, SystemExit):
            return 1
        return 0 if error.code is None else error.code if isinstance(error.code, int) else 1

    def run(self) -> None:
        """Run the program; its exceptions leave this method, and their traceback begins in its first line."""
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as the command line leaves it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code: CodeType | None = None
        try:
            main, code = self._module() if self._is_module else self._script()
            sys.modules["__main__"] = main
            exec(code, main.__dict__)  # noqa: S102 - the user's own program
        except BaseException as error:
            self.error = error
            _hide_frames(code)
            raise

    def _script(self) -> tuple[ModuleType, CodeType]:
        path = os.path.join(os.getcwd(), self._target)
        _put_first(os.path.dirname(os.path.realpath(path)))
        sys.argv[:] = [self._target, *self._arguments]
        main = _main(__file__=path, __loader__=SourceFileLoader("__main__", path), __package__=None, __cached__=None)
        return main, compile(self._source, path, "exec", dont_inherit=True)

    def _module(self) -> tuple[ModuleType, CodeType]:
        name = self._target
        _put_first(os.getcwd())
        sys.argv[:] = ["-m", *self._arguments]
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            spec = None
        code = None if spec is None else _code_of(spec)
        if spec is None or code is None:
            raise SystemExit(f"{sys.executable}: No module named {name}")
        sys.argv[0] = spec.origin or name
        main = _main(__file__=spec.origin, __loader__=spec.loader, __package__=spec.parent, __cached__=spec.cached)
        main.__spec__ = spec
        return main, code


def _code_of(spec: ModuleSpec) -> CodeType | None:
    get_code = getattr(spec.loader, "get_code", None)
    code: CodeType | None = None if get_code is None else get_code(spec.name)
    return code


def _main(**attributes: Any) -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(attributes, __builtins__=sys.modules["builtins"])
    return main


def _put_first(folder: str) -> None:
    """Let the program's folder be the first that imports search, in place of the folder of the command."""
    if sys.flags.safe_path:
        return
    if sys.path and sys.path[0] == os.path.dirname(os.path.realpath(sys.argv[0])):
        del sys.path[0]
    sys.path.insert(0, folder)


def _hide_frames(code: CodeType | None) -> None:
    """Let tracebacks that are printed begin with the program: omit the frames of the command."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        inner = trace
        while inner is not None and inner.tb_frame.f_code is not code:
            inner = inner.tb_next
        if inner is not None or isinstance(error, SyntaxError):
            error, trace = error.with_traceback(inner), inner
        show(kind, error, trace)

    sys.excepthook = hook
