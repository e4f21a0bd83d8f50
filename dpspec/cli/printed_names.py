"""The meanings of names in reports: checks, assumptions, channels and rules."""

from collections.abc import Iterator
from typing import Any

from dpspec.contract import Assumption
from dpspec.contract.catalog import Catalog
from dpspec.registry.loader import resolve
from dpspec.reporters.names import CHECKED
from dpspec.reporters.words import sentence
from dpspec.text import joined

#: Core's modules with assumptions as values, or with their texts by name in TEXTS.
_MODULES = (
    "dpspec.engine.recorded.conditions",
    "dpspec.kit.findings",
    "dpspec.kit.users",
    "dpspec.kit.scores_elsewhere",
    "dpspec.engine.preparing.assumptions",
    "dpspec.engine.selection",
)


def printed_names(catalog: Catalog) -> dict[str, list[str]]:
    """By name, one block per meaning: a line with kind and name, then lines of text."""
    from dpspec.engine.recorded.channels import KINDS
    from dpspec.engine.recorded.conditions import CONDITIONS

    blocks: dict[str, list[str]] = {}
    for name, kind in KINDS.items():
        conditions = [
            condition.name for condition in CONDITIONS.values() if condition.channel == name != condition.name
        ]
        of_channel = joined(conditions) or f"all called {name}"
        text = f"Channel by which records can reach a recorded model; requirement: {kind.text}"
        blocks.setdefault(name, []).append(f"channel {name}\n{text}.\nIts checks and assumptions: {of_channel}.")
    for name, text in CHECKED.items():
        blocks.setdefault(name, []).append(f"check {name}\n{sentence(text)}.")
    for name, offered in catalog.rules.items():
        rule = offered.provider
        text = f"Caution about a recorded run: {rule.summary}.\n{rule.why}\nFix: {rule.fix}"
        blocks.setdefault(name, []).append(f"rule {name}\n{text}")
    for name, text in dict.fromkeys(_assumptions(catalog)):
        blocks.setdefault(name, []).append(f"assumption {name}\n{sentence(text)}.")
    for name, condition in CONDITIONS.items():
        if name not in blocks and condition.channel is not None:
            blocks[name] = [f"check {name}\nA check of recorded runs, in the channel {condition.channel}."]
    return blocks


def _assumptions(catalog: Catalog) -> Iterator[tuple[str, str]]:
    from dpspec.accounting import library_accuracy

    of_plugins = (name for offered in catalog.mechanisms.values() for name in offered.provider.assumptions)
    for name in (*_MODULES, *of_plugins):
        module: Any = resolve(f"{name}:__dict__")
        yield from module.get("TEXTS", {}).items()
        for value in module.values():
            for member in value if isinstance(value, tuple) else (value,):
                if isinstance(member, Assumption):
                    yield member.name, member.text
    stated = library_accuracy()
    yield stated.name, stated.text
