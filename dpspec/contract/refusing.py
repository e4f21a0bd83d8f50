"""What several mechanisms refuse alike, located in the spec: an adjacency, values inside phases, what cannot train."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dpspec.contract.diagnostics import Diagnostic, Path

if TYPE_CHECKING:
    from dpspec.contract.audit import Facts
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


def untrainable(spec: Spec, facts: Facts, needs: Iterable[str] = ()) -> Iterator[Diagnostic]:
    """Why an audit of ``spec`` has nothing to train: no rows, no model, or a backend that lacks what it ``needs``."""
    if facts.digest is None:
        yield Diagnostic(
            code="data-not-at-hand",
            message="data that is only declared can be bounded, not trained on",
            path=("audit",),
            help="leave audit out, or name the data",
        )
    if facts.parameters is None:
        yield Diagnostic(code="no-model", message="an audit trains a model, and the spec names none", path=("audit",))
    for need in needs:
        if need not in facts.capabilities:
            yield Diagnostic(
                code="missing-capability",
                message=f"backend {spec.training.kind!r} lacks {need!r}, which this attack needs",
                path=("training", "backend"),
            )
