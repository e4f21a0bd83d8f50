"""Warnings about negative controls that a certified bound refutes without the attack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from dpspec.contract import DataError, Diagnostic
from dpspec.contract.catalog import Catalog
from dpspec.engine.judging.inequalities import about_privacy
from dpspec.engine.judging.judge import judge
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import Prepared
from dpspec.engine.running.bounding import compute
from dpspec.engine.running.conclude import Bounded, conclude
from dpspec.errors import PluginError
from dpspec.language.tree import locate

_OTHER_OUTCOMES = {"proved", "supported", "open"}


def controls_decided_by_theory(prepared: Prepared, catalog: Catalog) -> Iterator[Diagnostic]:
    """Yield a warning for each control of a spec with an attack that a certified bound refutes on its own.

    A claim is checked if it expects ``refuted`` and does not set ``refuted_by``. Bounds are computed only for such
    claims; bounds that need rows or cannot be computed give no warning.
    """
    spec = prepared.spec
    claims = spec.document["claims"]
    suspects = {
        claim.id: number
        for number, claim in enumerate(spec.claims)
        if "refuted" in claim.expect
        and not set(claim.expect) & _OTHER_OUTCOMES
        and about_privacy(claim.kind)
        and "refuted_by" not in claims[number]
    }
    # A recording drops the lower bounds of theory.
    if not suspects or spec.audit is None or prepared.recording is not None or prepared.components:
        return
    context = _PublicContext(prepared, catalog, prepared.audit.trial_inputs(spec), device="cpu")
    try:
        bounds, plan, seconds = compute(context, plan=False)
        bounded = Bounded(prepared=prepared, bounds=bounds, plan=plan, seconds=seconds)
        (judged,) = judge([conclude(bounded, ())])
    except (DataError, PluginError, ValueError, ArithmeticError, MemoryError):
        return
    finally:
        context.close()
    for verdict in judged.verdicts:
        if verdict.claim in suspects and verdict.verdict == "refuted":
            reason = verdict.reason[:1].lower() + verdict.reason[1:].rstrip(".")
            warning = Diagnostic(
                code="control-without-attack",
                message=f"claim {verdict.claim!r} is refuted without the attack: {reason}",
                path=("claims", suspects[verdict.claim], "expect"),
                help="add refuted_by: attack, so that only the attack can refute it; refuted_by: any if theory may",
                severity="warning",
            )
            yield locate(warning, spec.origin)


class _PublicContext(RunContext):
    @property
    def data(self) -> NoReturn:
        raise DataError("rows are not read here")
