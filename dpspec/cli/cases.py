"""For which kinds a key exists, in as few words as say it: one text in place of one key for every pair of kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from dpspec.cli.keys import Key

_Case = tuple[str, ...]


def alike(keys: Iterable[Key]) -> list[list[Key]]:
    """Keys that say the same under the same path, together; in the order of their first ones."""
    groups: dict[tuple[str, str, str], list[Key]] = {}
    for key in keys:
        groups.setdefault((key.path, key.type, key.description), []).append(key)
    return list(groups.values())


def when(keys: Sequence[Key], known: Sequence[Key]) -> list[_Case]:
    """When one of ``keys`` exists: alternatives, each a tuple of conditions that hold together, empty for always.

    known: every key of every kind. A choice that makes no difference among them is not mentioned.
    """
    found: list[_Case] = []
    for choosers in dict.fromkeys(_choosers(key) for key in keys):
        cases = dict.fromkeys(_values(key) for key in keys if _choosers(key) == choosers)
        every = {_values(key) for key in known if _choosers(key) == choosers}
        found += _said(choosers, list(cases), every)
    return found


def _said(choosers: _Case, cases: list[_Case], every: set[_Case]) -> list[_Case]:
    """The conditions of cases, less those that hold for each of them whatever the kind."""
    for at in range(len(choosers)):
        kept = dict.fromkeys(_without(case, at) for case in cases)
        if {case for case in every if _without(case, at) in kept} == set(cases):
            return _said(_without(choosers, at), list(kept), {_without(case, at) for case in every})
    options = [list(dict.fromkeys(case[at] for case in cases)) for at in range(len(choosers))]
    if every & set(product(*options)) == set(cases):
        return [tuple(f"{name} is {_listed(values)}" for name, values in zip(choosers, options, strict=True))]
    return [tuple(f"{name} is {value}" for name, value in zip(choosers, case, strict=True)) for case in cases]


def _choosers(key: Key) -> _Case:
    return tuple(condition.partition(" is ")[0] for condition in key.conditions)


def _values(key: Key) -> _Case:
    return tuple(condition.partition(" is ")[2] for condition in key.conditions)


def _without(case: _Case, at: int) -> _Case:
    return (*case[:at], *case[at + 1 :])


def _listed(values: Sequence[str]) -> str:
    *first, last = values
    return f"{', '.join(first)} or {last}" if first else last
