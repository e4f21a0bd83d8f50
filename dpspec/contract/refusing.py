"""What several mechanisms refuse alike, located in the spec: an adjacency, and values inside phases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpspec.contract.diagnostics import Diagnostic, Path

if TYPE_CHECKING:
    from dpspec.contract.spec import Spec


def other_adjacencies(spec: Spec, covered: str, theory: str, help: str | None = None) -> Iterator[Diagnostic]:
    """An ``unsupported`` error at every adjacency other than ``covered``, of the threat model and of claims.

    theory: who covers it, as the beginning of a sentence: ``the group theory``.
    """
    own = spec.threat_model.adjacency
    named: list[tuple[Path, str]] = [(("threat_model", "adjacency"), own)]
    named += [(("claims", i, "adjacency"), c.adjacency) for i, c in enumerate(spec.claims) if c.adjacency != own]
    for path, adjacency in named:
        if adjacency != covered:
            message = f"{theory} covers {covered} adjacency only, not {adjacency}"
            yield Diagnostic(code="unsupported", message=message, path=path, help=help)


def in_phase(spec: Spec, number: int, *keys: str) -> Path:
    """Where a value of phase ``number`` stands: in that phase, or in the mechanism block that all phases share."""
    phases = spec.mechanism.get("phases")
    here = phases is not None and keys[0] in phases[number]
    return ("mechanism", "phases", number, *keys) if here else ("mechanism", *keys)
