"""The meanings of names in reports: checks, assumptions, channels and rules."""

from collections.abc import Iterator
from typing import Any

from dpspec.contract import Assumption
from dpspec.contract.catalog import Catalog
from dpspec.registry.loader import resolve
from dpspec.reporters.names import CHECKED
from dpspec.reporters.words import sentence

#: Core's modules with assumptions as values, or with their texts by name in TEXTS.
_MODULES = (
    "dpspec.kit.findings",
    "dpspec.kit.users",
    "dpspec.kit.scores_elsewhere",
    "dpspec.engine.preparing.assumptions",
    "dpspec.engine.selection",
)


def printed_names(catalog: Catalog) -> dict[str, list[str]]:
    """By name, one block per meaning: a line with kind and name, then lines of text."""
    blocks: dict[str, list[str]] = {}
    for module in _modules(catalog):
        for name, text in module.get("MEANINGS", {}).items():
            blocks.setdefault(name, []).append(text)
    for name, text in CHECKED.items():
        blocks.setdefault(name, []).append(f"check {name}\n{sentence(text)}.")
    for name, offered in catalog.rules.items():
        rule = offered.provider
        text = f"Caution about a recorded run: {rule.summary}.\n{rule.why}\nFix: {rule.fix}"
        blocks.setdefault(name, []).append(f"rule {name}\n{text}")
    for name, text in dict.fromkeys(_assumptions(catalog)):
        blocks.setdefault(name, []).append(f"assumption {name}\n{sentence(text)}.")
    for module in _modules(catalog):
        for name, text in module.get("CHECKS", {}).items():
            blocks.setdefault(name, [f"check {name}\n{text}"])
    return blocks


def _modules(catalog: Catalog) -> Iterator[Any]:
    """The names in the modules of core and of mechanisms whose texts are printed."""
    of_plugins = (name for offered in catalog.mechanisms.values() for name in offered.provider.assumptions)
    return (resolve(f"{name}:__dict__") for name in (*_MODULES, *of_plugins))


def _assumptions(catalog: Catalog) -> Iterator[tuple[str, str]]:
    from dpspec.accounting import library_accuracy

    for module in _modules(catalog):
        yield from module.get("TEXTS", {}).items()
        for value in module.values():
            for member in value if isinstance(value, tuple) else (value,):
                if isinstance(member, Assumption):
                    yield member.name, member.text
    stated = library_accuracy()
    yield stated.name, stated.text
