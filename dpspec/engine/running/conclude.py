"""Conclusions from the bounds and the trials of an audit, by type and validated for the judge.

Evidence holds for pairs of datasets of certain sizes and missing entries. A claim may cover datasets of a minimum
number of records. An attack refutes it only if both neighbors were as large. If a plugin does not state the sizes, core
derives them from the data.
"""

import math
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar, get_args

from dpspec.contract import Check, Evidence, Finding, Outcome, Plan, Power, Series, Trial
from dpspec.contract.findings import Rigor
from dpspec.contract.results import REJECTED
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import judge
from dpspec.engine.preparing.assumptions import with_assumptions
from dpspec.engine.preparing.prepare import Prepared
from dpspec.engine.storage.stored_trials import AuditState
from dpspec.errors import PluginError
from dpspec.json_records import read, write
from dpspec.registry.loader import is_foreign, misbehaved
from dpspec.results.codec import flaws_of
from dpspec.results.evidence_weight import trade_off
from dpspec.results.inequalities import PRIVACY_KINDS, statement

#: Data whose number of records follows from the declared rows.
_AT_HAND = ("this", "planted", "collection")

T = TypeVar("T")


def with_data_size(outcome: T, prepared: Prepared) -> T:
    """Add size and missing values of the data to the scope of an executed outcome, unless it states them."""
    if not isinstance(outcome, Evidence | Finding):
        return outcome
    scope = outcome.scope
    if scope.pipeline != "executed" or scope.data not in _AT_HAND:
        return outcome
    if scope.min_records == 0:
        # Canaries are additional records. The smaller neighbor of this dataset lacks the records that may leave.
        leaves = scope.data != "planted" and scope.adjacency == "add-remove"
        leaving = int(outcome.at.get("group_size", 1)) * prepared.spec.records_per_unit if leaves else 0
        scope = replace(scope, min_records=max(0, prepared.facts.records - leaving))
    # Where the data block does not say how missing values are written no record misses any, but one that was planted
    # for a mechanism that takes such records may.
    full = not prepared.spec.data.get("missing") and (scope.data == "this" or not prepared.missing)
    if scope.neighbours == "all" and full:
        scope = replace(scope, neighbours="same-missing-values")
    return replace(outcome, scope=scope)


def conclude(audit: AuditState, trials: Sequence[Trial]) -> Concluded:
    """The audit's bounds and the conclusions from its trials."""
    began, prepared, plan = time.monotonic(), audit.prepared, audit.plan
    spec = prepared.spec
    quantities = {part.quantity for claim in spec.claims for part in statement(claim).parts}
    quantities |= {bound.quantity for bound in audit.bounds if isinstance(bound, Finding)}
    from_trials = prepared.audit.conclude(spec, trials) if trials else ()
    yielded = chain(audit.bounds, (with_data_size(outcome, prepared) for outcome in from_trials))
    foreign = bool(trials) or audit.recording is not None or is_foreign(prepared.offers["mechanism"][1])
    outcomes: list[Outcome] = []
    if audit.recording is None:
        assumed = with_assumptions(yielded, spec, prepared.constants, prepared.offers)
    else:
        assumed = with_assumptions(audit.recording.joined(yielded), spec, None, {})
    for outcome in assumed:
        if flaw := _flaw(outcome, quantities, stored=foreign):
            kind = spec.mechanism.kind
            raise PluginError(f"mechanism {kind!r} yields {flaw}: tell its authors, or see `dpspec plugins --check`")
        outcomes.append(outcome)
    findings = tuple(outcome for outcome in outcomes if isinstance(outcome, Finding))
    comparisons = tuple(finding for finding in _compared(audit, quantities) if finding not in findings)
    series = tuple(outcome for outcome in outcomes if isinstance(outcome, Series))
    curve = trade_off(findings, series)
    return Concluded(
        spec=spec,
        findings=(*findings, *comparisons),
        comparisons=comparisons,
        series=series if curve is None else (*series, curve),
        checks=tuple(outcome for outcome in outcomes if isinstance(outcome, Check)),
        evidence=tuple(outcome for outcome in outcomes if isinstance(outcome, Evidence)),
        trials=len(trials),
        needed=plan.trials,
        tests=planned_tests([claim.kind for claim in spec.claims], plan.trials, plan.power),
        promised=plan.checks,
        recording=None if audit.recording is None else audit.recording.section,
        seconds=time.monotonic() - began,
    )


def _compared(audit: AuditState, quantities: Container[str]) -> Iterator[Finding]:
    """The findings of comparisons with core's assumptions. None of a recorded run: they are about the declared one."""
    prepared = audit.prepared
    for offered, findings in audit.comparisons if audit.recording is None else ():
        offers = {"mechanism": (offered.provider.name, offered)}
        for finding in with_assumptions(findings, prepared.spec, prepared.constants, offers):
            if flaw := _flaw(finding, quantities, stored=is_foreign(offered)):
                raise misbehaved(offered, f"it yields {flaw}")
            assert isinstance(finding, Finding)
            if finding.rigor == "certified" and is_foreign(offered):  # no attack tests it, and reports print it
                raise misbehaved(
                    offered, 'it yields a finding of rigor "certified", which only a mechanism states: use "theorem"'
                )
            yield finding


def planned_tests(claim_kinds: Iterable[str], planned_trials: int, power: Sequence[Power]) -> int:
    """Maximum number of privacy tests: one for each attack (without ``power`` one) and privacy claim."""
    attacks = max(1, len(power)) if planned_trials else 0
    return attacks * sum(kind in PRIVACY_KINDS for kind in claim_kinds)


def stopped_plan(audit: AuditState, trials: Mapping[int, Trial], tests: int, *, judged_chunks: int = 0) -> Plan:
    """The plan up to the first chunk after which all privacy claims are proved or refuted, at least one by the attack.

    The whole plan if no chunk decides, or if its tests need a fixed number of trials. Chunks count in the order of
    the plan, so that neither the executor nor stored trials matter.

    Args:
        audit: The audit, with its whole plan.
        trials: The available trials by index.
        tests: The maximum number of privacy tests of all audits of the invocation.
        judged_chunks: The number of chunks that are known to be too few.
    """
    plan = audit.plan
    # If only theory refutes a claim, the trials test whether the attack detects it.
    bounds = [bound for bound in audit.bounds if not (isinstance(bound, Finding) and bound.bound == "lower")]
    for number in range(judged_chunks + 1, len(plan.chunks) if plan.sequential else 0):
        indices = sorted(chain.from_iterable(plan.chunks[:number]))
        if not all(index in trials for index in indices):
            break
        concluded = conclude(replace(audit, bounds=bounds), [trials[index] for index in indices])
        (judged,) = judge([replace(concluded, checks=(), promised=(), tests=tests)])
        names = [verdict.verdict for verdict in judged.verdicts if verdict.kind in PRIVACY_KINDS]
        if any(name in REJECTED for name in names) and all(name in ("proved", *REJECTED) for name in names):
            note = f"stopped after {len(indices)} of {plan.trials} trials, which decide all privacy claims"
            return replace(plan, chunks=plan.chunks[:number], notes=(*plan.notes, note))
    return plan


def _flaw(outcome: object, quantities: Container[str], *, stored: bool) -> str:
    """Why the judge cannot read an outcome, or JSON cannot hold a ``stored`` one; empty if they can."""
    if not isinstance(outcome, Finding | Series | Check | Evidence):
        return f"a {type(outcome).__name__}, not a Finding, Series, Check or Evidence"
    if isinstance(outcome, Finding) and outcome.rigor not in get_args(Rigor):
        return f"a finding whose rigor is {outcome.rigor!r} (valid: {', '.join(get_args(Rigor))})"
    if isinstance(outcome, Check) and not 0.0 <= outcome.p_value <= 1.0:
        return f"a check of {outcome.assumption!r} whose p-value is {outcome.p_value}"
    if isinstance(outcome, Evidence) and (outcome.quantity == "epsilon" or outcome.quantity in quantities):
        from dpspec.stats.attacks import evidence_tests

        try:
            evidence_tests.require_counts(outcome)
            evidence_tests.require_kind(outcome, metric=outcome.quantity != "epsilon")
        except ValueError as error:
            return str(error)
    values = [(name, getattr(outcome, name)) for name in outcome.__dataclass_fields__]
    undefined = next((name for name, value in values if isinstance(value, float) and math.isnan(value)), "")
    nan = f"its {undefined} is NaN: if nothing can be computed, yield nothing, or inf for an absent bound"
    if not stored:
        return nan if undefined == "value" else ""
    named = f"a {type(outcome).__name__.lower()} that cannot be kept"
    if isinstance(outcome, Series):
        named = f"the series {outcome.name!r}, which cannot be kept"
    try:
        copy = read(type(outcome), write(outcome), "it")
    except (TypeError, ValueError) as error:
        return f"{named}: {nan if undefined else error}"
    return next((f"{named}: its {field} {wrong}" for field, wrong in flaws_of(copy)), "")
