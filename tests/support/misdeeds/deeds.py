"""What a plugin can do wrong: when it is imported, when it is asked what it offers, and when what it offers is used."""

from __future__ import annotations

from collections.abc import Iterator

from support.misdeeds.calls import CALLS, Misdeed, function, replaced
from support.misdeeds.shapes import by_shape

#: Ways to end a process, or not to come back.
_EXITS = {
    "sys.exit": "import sys; sys.exit(0)",
    "sys.exit with a text": "import sys; sys.exit('bye')",
    "os._exit": "import os; os._exit(0)",
    "os._exit 3": "import os; os._exit(3)",
    "SystemExit raised": "raise SystemExit(0)",
    "GeneratorExit raised": "raise GeneratorExit",
    "abort": "import os; os.abort()",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
}
_HANGS = {
    "sleeps": "import time; time.sleep(1000)",
    "loops": "while True: pass",
    "waits for a lock": "import threading; l = threading.Lock(); l.acquire(); l.acquire()",
    "reads stdin": "import os; r, w = os.pipe(); os.read(r, 1)",
}
_RAISES = {
    "ValueError": "raise ValueError('bad')",
    "escapes": "raise RuntimeError('\\x1b]0;owned\\x07\\x1b[31mred\\u202e ##vso[task.x]y ::error::z')",
    "an exception without a text": "raise type('Odd', (Exception,), {'__str__': lambda s: 1/0})()",
    "BaseException": "raise BaseException('base')",
    "KeyError": "{}['x']",
    "RecursionError": "f = lambda: f()\nf()",
    "AssertionError": "assert False",
    "OSError": "open('/nowhere/at/all')",
    "PermissionError": "raise PermissionError(13, 'Permission denied', 'x')",
    "StopIteration": "raise StopIteration",
    "a lone surrogate": "raise ValueError('\\ud800')",
    "a very long text": "raise ValueError('x' * 1000000)",
    "typer's exit": "import typer; raise typer.Exit(0)",
}
_PRINTS = {
    "prints": "print('owned')",
    "writes to descriptor 1": "import os; os.write(1, b'owned\\n')",
    "has a child that prints": "import subprocess; subprocess.run(['echo', 'owned'])",
    "writes to sys.__stdout__": "import sys; sys.__stdout__.write('owned\\n'); sys.__stdout__.flush()",
    "closes stdout": "import sys; sys.stdout.close()",
}
_JUNK = {
    "None": "None",
    "bytes": "b'x'",
    "an integer": "3",
    "a mapping": "{1: 2}",
    "a text": "'\\x1b[31mtext'",
    "an object": "object()",
    "NaN": "float('nan')",
}


def misdeeds() -> Iterator[Misdeed]:
    """All of them, in a fixed order."""
    yield from _when_imported()
    yield from _when_asked()
    yield from _when_used()
    yield from by_shape()


def _when_imported() -> Iterator[Misdeed]:
    plugins = ("plugins",)
    for name, text in {**_EXITS, **_HANGS}.items():
        ends = name in _HANGS or name in ("os._exit", "os._exit 3", "abort", "segmentation fault")
        yield Misdeed(f"import: {name}", "plugin", text, plugins, ends=ends)
    for name, text in _RAISES.items():
        yield Misdeed(f"import: {name}", "plugin", text, plugins)
    for name, text in _PRINTS.items():
        yield Misdeed(f"import: {name}", "plugin", text, plugins, harmless=True)
    yield Misdeed("import: API of the future", "plugin", "DPSPEC_API = 99", plugins)
    yield Misdeed("import: API is escapes", "plugin", "DPSPEC_API = '\\x1b[31m'", plugins)
    yield Misdeed("import: no API", "plugin", "del DPSPEC_API", plugins)
    yield Misdeed("import: a misspelt hook", "plugin", "@hookimpl\ndef dpspec_modles():\n    return ()", plugins)
    yield Misdeed(
        "import: __getattr__ hangs", "plugin", function("__getattr__(name)", "raise ValueError(name)"), plugins
    )


def _when_asked() -> Iterator[Misdeed]:
    for name, text in {**_RAISES, **_EXITS, **_HANGS}.items():
        ends = name in _HANGS or name in ("os._exit", "os._exit 3", "abort", "segmentation fault")
        body = f"@hookimpl\n{function('dpspec_reporters()', text)}"
        yield Misdeed(f"hook: {name}", "plugin", body, ("plugins",), ends=ends)
    for name, value in _JUNK.items():
        body = f"@hookimpl\n{function('dpspec_models()', f'return {value}')}"
        yield Misdeed(f"hook returns {name}", "plugin", body, ("plugins",))
        body = f"@hookimpl\n{function('dpspec_models()', f'return [{value}]')}"
        yield Misdeed(f"hook offers {name}", "plugin", body, ("plugins",))
    body = function("dpspec_models()", "while True: yield 3")
    yield Misdeed("hook without an end", "plugin", f"@hookimpl\n{body}", ("plugins",))
    for name, value in {"audit": "'x'", "claims": "3", "schemas": "None", "summary": "'\\x1b[31m'"}.items():
        body = function("dpspec_mechanisms()", f"yield mechanism({name}={value})")
        yield Misdeed(f"mechanism with odd {name}", "plugin", f"@hookimpl\n{body}", ("plugins",), name == "summary")


def _when_used() -> Iterator[Misdeed]:
    for call, (_, command) in CALLS.items():
        for name in ("ValueError", "escapes", "BaseException", "OSError", "StopIteration"):
            yield Misdeed(f"{call}: {name}", "code", replaced(call, _RAISES[name]), command, harmless=call == "check")
        for name in ("sys.exit", "SystemExit raised", "os._exit"):
            yield Misdeed(f"{call}: {name}", "code", replaced(call, _EXITS[name]), command)
        for name, value in _JUNK.items():
            if (call, name) in (("render", "a text"), ("limit", "None")):
                continue
            yield Misdeed(f"{call} returns {name}", "code", replaced(call, f"return {value}"), command)
        if call in ("check", "bound", "trials", "conclude"):
            for name, value in _JUNK.items():
                yield Misdeed(f"{call} yields {name}", "code", replaced(call, f"yield {value}"), command)
