"""What a plugin can do wrong: when it is imported, when it is asked what it offers, and when what it offers is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Misdeed:
    """One thing done wrong.

    module: whose text is changed, ``plugin`` or ``code``; text: what is put behind the honest one.
    command: what comes across it, with ``{place}`` for the folder of specs; harmless: dpspec may put up with it.
    ends: whether nothing can be done but name it and say how to leave it out, because the process ends or hangs.
    """

    name: str
    module: str
    text: str
    command: tuple[str, ...]
    harmless: bool = False
    ends: bool = False


def _function(head: str, body: str) -> str:
    return f"def {head}:\n" + "".join(f"    {line}\n" for line in body.splitlines())


#: What is used how: the head of the function that replaces it, and the command that calls it.
_REPORT = ("report", "{place}/result.json", "--format", "misdeed")
_RUN_COIN = ("run", "{place}/coin.yaml", "--store", "{place}/store")
_RUN_TRAINED = ("run", "{place}/trained.yaml", "--store", "{place}/store")
_VALIDATE = ("validate", "{place}/coin.yaml")
_CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "render": ("render(result, *, internal=False)", _REPORT),
    "facts": ("facts(self)", _VALIDATE),
    "load": ("load(self)", _RUN_TRAINED),
    "parameters": ("parameters(self)", ("validate", "{place}/trained.yaml")),
    "build": ("build(self, seed)", _RUN_TRAINED),
    "trainer": ("trainer()", _RUN_TRAINED),
    "constants": ("constants(spec)", _RUN_TRAINED),
    "check": ("check(self, spec, facts)", _VALIDATE),
    "bound": ("bound(self, spec, context)", ("run", "{place}/coin.yaml", "--bounds-only")),
    "plan": ("plan(self, spec, facts)", ("plan", "{place}/coin.yaml")),
    "trial_inputs": ("trial_inputs(self, spec)", _RUN_COIN),
    "trials": ("trials(self, inputs, context, indices)", _RUN_COIN),
    "conclude": ("conclude(self, spec, trials)", _RUN_COIN),
    "pool": ("pool(demand)", ("run", "{place}/coin.yaml", "--store", "{place}/store", "--executor", "misdeed")),
}
_OWNERS = {"facts": "Source", "load": "Source", "parameters": "Factory", "build": "Factory"} | dict.fromkeys(
    ("check", "bound", "plan", "trial_inputs", "trials", "conclude"), "CoinAudit"
)


def _replaced(name: str, body: str) -> str:
    """The text that puts another function in the place of one."""
    head, _ = _CALLS[name]
    owner = _OWNERS.get(name)
    made = _function(head, body)
    return f"{made}{owner}.{name} = {name}\n" if owner else made


def misdeeds() -> Iterator[Misdeed]:
    """All of them, in a fixed order."""
    yield from _when_imported()
    yield from _when_asked()
    yield from _when_used()
    yield from _by_shape()


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
        "import: __getattr__ hangs", "plugin", _function("__getattr__(name)", "raise ValueError(name)"), plugins
    )


def _when_asked() -> Iterator[Misdeed]:
    for name, text in {**_RAISES, **_EXITS, **_HANGS}.items():
        ends = name in _HANGS or name in ("os._exit", "os._exit 3", "abort", "segmentation fault")
        body = f"@hookimpl\n{_function('dpspec_reporters()', text)}"
        yield Misdeed(f"hook: {name}", "plugin", body, ("plugins",), ends=ends)
    for name, value in _JUNK.items():
        body = f"@hookimpl\n{_function('dpspec_models()', f'return {value}')}"
        yield Misdeed(f"hook returns {name}", "plugin", body, ("plugins",))
        body = f"@hookimpl\n{_function('dpspec_models()', f'return [{value}]')}"
        yield Misdeed(f"hook offers {name}", "plugin", body, ("plugins",))
    body = _function("dpspec_models()", "while True: yield 3")
    yield Misdeed("hook without an end", "plugin", f"@hookimpl\n{body}", ("plugins",))
    for name, value in {"audit": "'x'", "claims": "3", "schemas": "None", "summary": "'\\x1b[31m'"}.items():
        body = _function("dpspec_mechanisms()", f"yield mechanism({name}={value})")
        yield Misdeed(f"mechanism with odd {name}", "plugin", f"@hookimpl\n{body}", ("plugins",), name == "summary")


def _when_used() -> Iterator[Misdeed]:
    for call, (_, command) in _CALLS.items():
        for name in ("ValueError", "escapes", "BaseException", "OSError", "StopIteration"):
            yield Misdeed(f"{call}: {name}", "code", _replaced(call, _RAISES[name]), command, harmless=call == "check")
        for name in ("sys.exit", "SystemExit raised", "os._exit"):
            yield Misdeed(f"{call}: {name}", "code", _replaced(call, _EXITS[name]), command)
        for name, value in _JUNK.items():
            if (call, name) == ("render", "a text"):
                continue
            yield Misdeed(f"{call} returns {name}", "code", _replaced(call, f"return {value}"), command)
        if call in ("check", "bound", "trials", "conclude"):
            for name, value in _JUNK.items():
                yield Misdeed(f"{call} yields {name}", "code", _replaced(call, f"yield {value}"), command)


def _by_shape() -> Iterator[Misdeed]:
    """Attributes that are not what they should be."""
    for name in ("render", "trainer", "pool", "constants", "CoinAudit", "Source", "Factory"):
        owner = {"CoinAudit": "check", "Source": "facts", "Factory": "parameters"}.get(name, name)
        command = _CALLS[owner][1]
        for what, value in {"a number": "3", "None": "None", "takes no arguments": "lambda: 3"}.items():
            if (name, what) == ("trainer", "takes no arguments"):
                continue
            yield Misdeed(f"{name} is {what}", "code", f"{name} = {value}", command)
        yield Misdeed(f"{name} is missing", "code", f"del {name}", command)
    yield Misdeed("render takes no internal", "code", _function("render(result)", "return 'fine'"), _REPORT)
    yield Misdeed("render wants more", "code", _function("render(result, *, internal, more)", "return ''"), _REPORT)
    for name in ("facts.records", "facts.shape", "facts.digest"):
        for what, value in {"a text": "'x'", "None": "None", "negative": "-3"}.items():
            if (name, what) in (("facts.digest", "None"), ("facts.digest", "a text")):
                continue
            field = name.partition(".")[2]
            body = f"import dataclasses\nreturn dataclasses.replace(honest(self), {field}={value})"
            text = "honest = Source.facts\n" + _replaced("facts", body)
            yield Misdeed(f"{name} is {what}", "code", text, _VALIDATE)
    for field, value in {"value": "'x'", "at": "3", "scope": "None", "source": "None", "quantity": "[1]"}.items():
        body = (
            f"import dataclasses\nfor f in honest(self, spec, context): yield dataclasses.replace(f, {field}={value})"
        )
        yield Misdeed(
            f"bound: a finding whose {field} is {value}",
            "code",
            "honest = CoinAudit.bound\n" + _replaced("bound", body),
            _CALLS["bound"][1],
        )
    for field, value in {
        "chunks": "3",
        "chunks ": "((0, 0),)",
        "seconds": "'x'",
        "checks": "(3,)",
        "power": "(3,)",
    }.items():
        body = f"import dataclasses\nreturn dataclasses.replace(honest(self, spec, facts), {field.strip()}={value})"
        yield Misdeed(
            f"plan: {field.strip()} is {value}",
            "code",
            "honest = CoinAudit.plan\n" + _replaced("plan", body),
            _RUN_COIN,
        )
    for what, value in {
        "another index": "Trial(index=99, evidence=FrozenMap({}))",
        "evidence that is none": "Trial(index=0, evidence=3)",
        "arrays that are none": "Trial(index=0, evidence=FrozenMap({}), arrays=3)",
        "evidence with an object": "Trial(index=0, evidence=FrozenMap({'x': object()}))",
    }.items():
        yield Misdeed(f"trials: {what}", "code", _replaced("trials", f"yield {value}"), _RUN_COIN)
    body = "x = honest(self)\nimport dataclasses\nreturn dataclasses.replace(x, train_x={})"
    for what, value in {
        "one dimension": "x.train_x[:, 0]",
        "texts": "x.train_x.astype(str)",
        "NaN": "x.train_x * float('nan')",
        "None": "None",
        "fewer rows": "x.train_x[:2]",
    }.items():
        text = "honest = Source.load\n" + _replaced("load", body.format(value))
        yield Misdeed(f"load: {what}", "code", text, _RUN_TRAINED)
