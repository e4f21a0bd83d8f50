"""Comparisons: published formulas alongside the bounds of a mechanism, by the hook ``dpspec_comparisons``.

A comparison decides no verdict. The judge never receives its findings, and trials never receive its keys. It can thus
state a formula that is wrong as printed, an approximation or a looser bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dpspec.contract.findings import Facts, Finding, Series
from dpspec.contract.providers import Schema, no_keys
from dpspec.contract.spec import Spec

__all__ = ["Compare", "Comparison"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Published formulas and baselines alongside the bounds of a mechanism.

    Attributes:
        name: Lower-case letters, digits and hyphens.
        mechanism: The kind of the mechanism.
        summary: The compared formulas, for ``dpspec plugins``.
        compare: Names a function of type :class:`Compare`.
        check: Names a function ``(spec, facts) -> Iterable[Diagnostic]`` of errors that the schema cannot express.
        schema: Keys that it adds to the mechanism block. Trials do not receive them.
        assumptions: Modules whose top-level assumptions ``dpspec explain`` prints.
    """

    name: str
    mechanism: str
    summary: str
    compare: str
    check: str = ""
    schema: Schema = field(default_factory=no_keys)
    assumptions: tuple[str, ...] = ()


class Compare(Protocol):
    """The code of a comparison."""

    def __call__(self, spec: Spec, facts: Facts, bounds: Sequence[Finding | Series]) -> Iterable[Finding | Series]:
        """Findings and series to show alongside the mechanism's ``bounds``. It reads no rows.

        A series with the name of one of ``bounds`` replaces it, and keeps its columns.
        """
