"""What a plugin offers and hands over that is not what it should be."""

from __future__ import annotations

from collections.abc import Iterator

from support.misdeeds.calls import (
    CALLS,
    REPORT,
    RUN_CANARIES,
    RUN_COIN,
    RUN_STEPS,
    RUN_TRAINED,
    VALIDATE,
    Misdeed,
    function,
    replaced,
)


def by_shape() -> Iterator[Misdeed]:
    """Attributes that are not what they should be."""
    for name in ("render", "trainer", "pool", "constants", "CoinAudit", "Source", "Factory"):
        owner = {"CoinAudit": "check", "Source": "facts", "Factory": "parameters"}.get(name, name)
        command = CALLS[owner][1]
        for what, value in {"a number": "3", "None": "None", "takes no arguments": "lambda: 3"}.items():
            if (name, what) == ("trainer", "takes no arguments"):
                continue
            yield Misdeed(f"{name} is {what}", "code", f"{name} = {value}", command)
        yield Misdeed(f"{name} is missing", "code", f"del {name}", command)
    yield Misdeed("render takes no internal", "code", function("render(result)", "return 'fine'"), REPORT)
    yield Misdeed("render wants more", "code", function("render(result, *, internal, more)", "return ''"), REPORT)
    for name in ("facts.records", "facts.shape", "facts.digest"):
        for what, value in {"a text": "'x'", "None": "None", "negative": "-3"}.items():
            if (name, what) in (("facts.digest", "None"), ("facts.digest", "a text")):
                continue
            field = name.partition(".")[2]
            body = f"import dataclasses\nreturn dataclasses.replace(honest(self), {field}={value})"
            text = "honest = Source.facts\n" + replaced("facts", body)
            yield Misdeed(f"{name} is {what}", "code", text, VALIDATE)
    for field, value in {"value": "'x'", "at": "3", "scope": "None", "source": "None", "quantity": "[1]"}.items():
        body = (
            f"import dataclasses\nfor f in honest(self, spec, context): yield dataclasses.replace(f, {field}={value})"
        )
        yield Misdeed(
            f"bound: a finding whose {field} is {value}",
            "code",
            "honest = CoinAudit.bound\n" + replaced("bound", body),
            CALLS["bound"][1],
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
            "honest = CoinAudit.plan\n" + replaced("plan", body),
            RUN_COIN,
        )
    for what, value in {
        "another index": "Trial(index=99, evidence=FrozenMap({}))",
        "evidence that is none": "Trial(index=0, evidence=3)",
        "arrays that are none": "Trial(index=0, evidence=FrozenMap({}), arrays=3)",
        "evidence with an object": "Trial(index=0, evidence=FrozenMap({'x': object()}))",
    }.items():
        yield Misdeed(f"trials: {what}", "code", replaced("trials", f"yield {value}"), RUN_COIN)
    body = "x = honest(self)\nimport dataclasses\nreturn dataclasses.replace(x, train_x={})"
    for what, value in {
        "one dimension": "x.train_x[:, 0]",
        "texts": "x.train_x.astype(str)",
        "NaN": "x.train_x * float('nan')",
        "None": "None",
        "fewer rows": "x.train_x[:2]",
    }.items():
        text = "honest = Source.load\n" + replaced("load", body.format(value))
        yield Misdeed(f"load: {what}", "code", text, RUN_TRAINED)
    yield from _attacks()


def _attacks() -> Iterator[Misdeed]:
    """Canaries, directions and scores that are not what was asked for."""
    changes = {
        "records": {
            "fewer": "Records(made.x[1:], made.y[1:])",
            "fewer labels": "Records(made.x, made.y[1:])",
            "of another shape": "Records(made.x[:, :3], made.y)",
            "NaN": "Records(made.x * float('nan'), made.y)",
            "texts": "Records(made.x.astype(str), made.y)",
            "objects": "Records(made.x.astype(object), made.y)",
            "labels of no class": "Records(made.x, made.y + 7)",
            "labels that are fractions": "Records(made.x, made.y / 3)",
            "no arrays": "Records(made.x.tolist(), made.y.tolist())",
            "x alone": "made.x",
        },
        "directions": {
            "fewer": "made[1:]",
            "too long": "2 * made",
            "all the same": "made[:1].repeat(len(made), 0)",
            "NaN": "made * float('nan')",
            "whole numbers": "made.astype(int)",
            "texts": "made.astype(str)",
            "one dimension": "made.ravel()",
        },
        "score": {
            "fewer": "made[1:]",
            "NaN": "made * float('nan')",
            "infinite": "made + float('inf')",
            "texts": "made.astype(str)",
            "complex": "made * 1j",
            "objects": "made.astype(object)",
            "two dimensions": "made[:, None]",
        },
    }
    arguments = {"records": "asked", "directions": "asked", "score": "observed"}
    for call, kinds in changes.items():
        for what, value in kinds.items():
            body = f"from dpspec.contract.attacks import Records\nmade = honest({arguments[call]})\nreturn {value}"
            yield Misdeed(f"{call}: {what}", "code", f"honest = {call}\n" + replaced(call, body), CALLS[call][1])
    written = {
        "features": "observed.canaries.x[:] = 0",
        "coins": "observed.coins[:] = 1",
        "copies": "observed.copies[:] = 0",
        "the training records": "observed.job.x[:] = 0",
    }
    for what, line in written.items():
        text = replaced("score", f"{line}\nreturn observed.after")
        yield Misdeed(f"score writes {what}", "code", text, RUN_CANARIES)
    held = {
        "count is a text": "self.count = 'x'",
        "count is another": "self.count = 3",
        "block is negative": "self.block = -1",
        "parameters are others": "self.parameters = 7",
        "supports are None": "self.supports = lambda indices: None",
        "supports are texts": "self.supports = lambda indices: ('a', 'b')",
        "supports elsewhere": "self.supports = lambda indices: (indices[:, None] + 9**9, torch.ones(len(indices), 1))",
        "supports are too few": "self.supports = lambda indices: (indices[:1, None], torch.ones(1, 1))",
        "supports are the same": "self.supports = lambda indices: (indices[:, None] * 0, torch.ones(len(indices), 1))",
        "supports raise": "self.supports = lambda indices: 1 / 0",
    }
    for what, line in held.items():
        begun = "class Odd(Held):\n    def __init__(self, asked):\n        super().__init__(asked)\n"
        changed = f"{begun}        import torch\n        {line}\n"
        text = changed + replaced("directions", "return Odd(asked)")
        yield Misdeed(f"held directions: {what}", "code", text, RUN_STEPS, harmless="block" in what)
