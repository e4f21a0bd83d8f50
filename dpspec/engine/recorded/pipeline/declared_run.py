"""A recorded run as the executed mechanism of a spec: ``training: {backend: recorded, run: PATH}``.

The recording's own schedule is bounded (:mod:`~dpspec.engine.recorded.costs.schedule_cost`). If the spec declares the
phases of a mechanism, further checks compare the schedule with them. The judge proves nothing of a run that deviates,
or whose recording leaves an assumption open. Scored canaries are evidence as that of any audit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dpspec.accounting import Interval, certified_lower, certified_upper
from dpspec.contract import (
    Assumption,
    Check,
    Diagnostic,
    Evidence,
    Facts,
    Finding,
    FrozenMap,
    Outcome,
    Phase,
    Scope,
    Spec,
    in_phase,
)
from dpspec.engine.recorded.channels import hyperparameters
from dpspec.engine.recorded.channels.assumptions import assumptions, computed_from_records, maybe_computed
from dpspec.engine.recorded.channels.table import ASSUMABLE, UNKNOWN, complete, require_known
from dpspec.engine.recorded.costs.canary_bound import CONFIDENCE, CanaryBound, canary_bound, evidence_of
from dpspec.engine.recorded.costs.epsilons import ADD_REMOVE, ZERO_OUT, Cost
from dpspec.engine.recorded.costs.schedule_cost import cost_of, measured_epsilon
from dpspec.engine.recorded.pipeline.observed_run import ObservedRun, observe
from dpspec.engine.recorded.pipeline.section import section
from dpspec.engine.recorded.recorded_run import Array, RecordedRun
from dpspec.engine.recorded.schedule import noise_multipliers, poisson_rates
from dpspec.engine.results.decimals import lower, upper
from dpspec.engine.results.recording import SOURCE, Recording
from dpspec.engine.results.result import AuditResult
from dpspec.errors import SpecError, UsageError
from dpspec.kit.findings import lower_from
from dpspec.kit.specs import DEFAULT_DELTA, claimed_deltas
from dpspec.language.reading.tree import locate
from dpspec.recording.folder.run_folder import FILES
from dpspec.stats.conformance.measurement import exact

#: The kind of the backend that names a recorded run, and of the mechanism that is its schedule.
RECORDED = "recorded"

#: Mechanisms whose phases a recording can be compared with. Others do something that it does not show.
_MECHANISMS = (RECORDED, "group")

#: Multipliers, rates and norms are equal up to this relative difference.
_SAME = 1e-9

#: Optimizers of torch whose updates an adversary who sees every iterate can undo.
_INVERTIBLE = frozenset({"torch.optim.sgd.SGD", "torch.optim.SGD", "SGD"})

_SOURCE = f"{SOURCE}; Ganesh 2024, Theorem 3.1; Dong, Roth & Su 2022, Corollary 3.3"


@dataclass(frozen=True, kw_only=True)
class DeclaredRun:
    """What a recorded run contributes to the audit of its spec.

    Attributes:
        checks: The run against its own options, its accountant and the spec.
        assumptions: Everything that the bounds of a declared mechanism assume in addition.
        notes: What the recording is, with the digest of its files.
        findings: Bounds on the executed schedule, and the lower bound from canaries.
        evidence: That of canaries; empty if none were scored.
        section: The section of the result.
    """

    checks: tuple[Check, ...]
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    section: Recording = field(default_factory=lambda: Recording(steps=0, ended=False, setup=()))

    def outcomes(self) -> Iterator[Outcome]:
        """Checks, bounds on the executed schedule, and evidence."""
        yield from self.checks
        yield from self.findings
        yield from self.evidence

    def under(self, finding: Finding) -> Finding | None:
        """A bound of the declared mechanism with what the recording leaves open.

        Lower bounds, and bounds that the recording states itself, are None: whether the worst case is attained depends
        on the executed updates.
        """
        own = {(one.quantity, one.at, one.scope.adjacency) for one in self.findings if one.bound == "upper"}
        if finding.bound == "lower" or (finding.quantity, finding.at, finding.scope.adjacency) in own:
            return None
        names = {one.name.removesuffix(UNKNOWN) for one in self.assumptions}
        kept = [one for one in finding.assumptions if one.name not in names]
        return replace(finding, assumptions=(*kept, *self.assumptions))


def run_of(spec: Spec) -> Path | None:
    """The folder of the recorded run that a spec names; None where it names none."""
    if spec.training.kind != RECORDED:
        return None
    return Path(spec.directory) / str(spec.training["run"])


def recording_refusals(spec: Spec) -> Iterator[Diagnostic]:
    """What cannot be said of a recorded run."""
    if spec.training.kind != RECORDED:
        return
    if spec.mechanism.kind not in _MECHANISMS:
        yield Diagnostic(
            code="unsupported",
            message=f"a recording shows whether 'group' is what ran, not {spec.mechanism.kind!r}",
            path=("mechanism", "kind"),
            help="write kind: group, or kind: recorded for the recorded schedule itself; dpspec.record does not see "
            "what else this mechanism does",
        )
        return
    if spec.audit is not None:
        yield Diagnostic(
            code="unsupported",
            message="a recorded run is not attacked by a spec: it is not made again",
            path=("audit",),
            help="leave audit out: the bounds are those of its phases, its conformance that of the recording, and the "
            "evidence that of canaries that were planted and scored, if there are any",
        )
    for i, phase in enumerate(spec.phases if spec.mechanism.kind != RECORDED else ()):
        if phase.sampling.of_users:
            yield Diagnostic(
                code="unsupported",
                message="a recorded run shows which records were drawn and how each was clipped, not that users were",
                path=in_phase(spec, i, "sampling", "unit"),
                help="leave unit and records_per_user out of sampling: a user is then a group of as many records as "
                "data.records_per_user says",
            )
        if phase.sampling.scheme != "poisson":
            own = spec.mechanism.get("phases") is not None and "sampling" in spec.mechanism["phases"][i]
            yield Diagnostic(
                code="unsupported",
                message=f"a recorded run is compared with Poisson samples, not with {phase.sampling.scheme} batches",
                path=("mechanism", "phases", i, "sampling") if own else ("mechanism", "sampling"),
                help="write mechanism: {kind: recorded} to bound the recorded schedule",
            )


def declared_run(spec: Spec, facts: Facts) -> DeclaredRun | None:
    """The recorded run that a spec names; None if it names none.

    Raises:
        SpecError: There is no such folder, at the key that names it.
        RecordingError: The folder holds no recorded run, or was changed.
        NothingToRunError: No step was recorded.
    """
    folder = run_of(spec)
    if folder is None:
        return None
    try:
        observed = observe(folder)
    except UsageError as error:
        place = Diagnostic(code="bad-value", message=str(error), path=("training", "run"))
        raise SpecError([locate(place, spec.origin)]) from None
    run, vouched = observed.run, _vouched(spec)
    deltas = claimed_deltas(spec, default=float(spec.mechanism.get("delta", DEFAULT_DELTA)))
    first = min((claim.group_size for claim in spec.claims), default=1)
    sizes = sorted({*spec.threat_model.group_size, *(claim.group_size for claim in spec.claims)})
    adjacencies = sorted({spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)})
    strictest = ADD_REMOVE if ADD_REMOVE in adjacencies else ZERO_OUT
    shown = canary_bound(run, deltas[-1], lambda delta: cost_of(run, observed.internal, ZERO_OUT, delta, 1))
    compared = () if spec.mechanism.kind == RECORDED else tuple(declared_checks(run, spec.phases, facts.records))
    checks = (*observed.checks, *compared, *canary_checks(shown))
    findings: list[Finding] = []
    evidence: list[Evidence] = []
    costs: dict[int, Cost] = {}
    for adjacency in adjacencies:
        for size in sizes:
            rests = _assumptions(observed, adjacency, size, vouched, shown)
            further = shown.further if shown is not None and size == 1 else ()
            for delta in (*deltas, *(delta for delta in further if delta not in deltas)):
                costs[size] = cost_of(run, observed.internal, adjacency, delta, size)
                findings += _bounds(run, costs[size], delta, size, adjacency, tuple(map(_unvouched, rests)))
        counted = computed_from_records(run) or maybe_computed(run, vouched.public)
        if shown is not None and not (adjacency == ADD_REMOVE and counted):
            evidence.append(evidence_of(run, shown, adjacency))
            findings.append(lower_from(evidence[-1], CONFIDENCE))
    measured = measured_epsilon(run, observed.internal, checks, strictest, deltas[-1])
    if measured is not None:
        findings.append(_estimate(measured, deltas[-1], strictest))
    rests = _assumptions(observed, strictest, first, vouched, shown)
    unbounded = next((one for one in findings if one.bound == "upper" and math.isinf(one.value)), None)
    if unbounded is not None:  # phases that a spec declares have a bound all the same
        text = f"the executed schedule has a bound; but {unbounded.method}"
        rests = (*rests, Assumption(name="bounded", status="false", text=text))
    return DeclaredRun(
        checks=checks,
        assumptions=tuple(map(_unvouched, rests)),
        findings=tuple(findings),
        evidence=tuple(evidence),
        notes=(),
        section=section(
            run,
            digest=digest_of(folder),
            checks=checks,
            assumptions=rests,
            delta=deltas[-1],
            cost=cost_of(run, observed.internal, strictest, deltas[-1], 1),
            infinite=unbounded is not None,
            shown=shown,
            assumed=vouched.assume,
            public=vouched.public,
        ),
    )


def _assumptions(
    observed: ObservedRun, adjacency: str, size: int, vouched: _Vouched, shown: CanaryBound | None
) -> tuple[Assumption, ...]:
    """Everything that a bound on the run assumes for groups of ``size`` and neighbors by ``adjacency``."""
    known = assumptions(observed.run, observed.internal, adjacency, public=vouched.public, group_size=size)
    if shown is not None and (shown.above or shown.contradicts) and (not shown.final or not shown.contradicts):
        known = (*known, _doubt(shown))
    return complete(observed.checks, known, vouched.assume)


def _doubt(shown: CanaryBound) -> Assumption:
    """Canaries show more than the certified bound, of another model or with a p-value above that of a contradiction."""
    found = f"{shown.canaries} canaries show epsilon >= {lower(shown.lower)} at {CONFIDENCE:.0%} confidence"
    if not shown.final:
        text = "the scored model is the recorded one as its last step left it; its parameters differ"
        return Assumption(name="scored-model", status="unchecked", text=f"{text}, and {found}")
    text = (
        f"{found}, above the certified bound; one in twenty sound runs shows that: train again with other coins and "
        "more canaries"
    )
    return Assumption(name="canaries", status="unchecked", text=text)


def _bounds(
    run: RecordedRun, cost: Cost, delta: float, size: int, adjacency: str, rests: tuple[Assumption, ...]
) -> Iterator[Finding]:
    """The certified bounds on the executed schedule; an infinite one, whose method says why, if there is none."""
    at = {"delta": delta, "group_size": size}
    scope = Scope(adjacency=adjacency, access="all-iterates", adversary="gradient")
    if cost.interval is None or math.isinf(cost.interval.upper):
        nothing = Interval(0.0, math.inf)
        yield certified_upper("epsilon", nothing, at=at, scope=scope, source=_SOURCE, method=cost.reason or cost.how)
        return
    bound = certified_upper(
        "epsilon", cost.interval, at=at, scope=scope, source=_SOURCE, assumptions=rests, method=cost.how
    )
    if not cost.tight:
        yield replace(bound, lower=None)
        return
    yield bound
    rates = run["learning_rate"]
    optimizer = run.header.inner or run.header.optimizer
    if optimizer in _INVERTIBLE and bool((rates > 0.0).all()):
        attained = certified_lower(bound, cost.interval, source=f"{_SOURCE}; attained: section 3.3")
        if attained is not None:
            yield attained


def _estimate(value: float, delta: float, adjacency: str) -> Finding:
    return Finding(
        quantity="epsilon",
        value=value,
        bound="estimate",
        rigor="approximate",
        at=FrozenMap({"delta": delta, "group_size": 1}),
        scope=Scope(adjacency=adjacency, access="all-iterates", adversary="gradient", pipeline="executed"),
        method="the measured noise and norms of the run",
        source=_SOURCE,
    )


@dataclass(frozen=True, kw_only=True)
class _Vouched:
    """Names that the user assumes, and of hyperparameters that the user declares public."""

    assume: tuple[str, ...]
    public: tuple[str, ...]


def _vouched(spec: Spec) -> _Vouched:
    """What the spec assumes and declares public. Raises ``SpecError`` at the key of an unknown name."""
    given = {key: tuple(map(str, spec.training.options.get(key, ()))) for key in ("assume", "public")}
    for key, valid in (("assume", ASSUMABLE), ("public", hyperparameters.NAMES)):
        try:
            require_known(key, given[key], valid)
        except UsageError as error:
            place = Diagnostic(code="bad-value", message=str(error), path=("training", key))
            raise SpecError([locate(place, spec.origin)]) from None
    every = spec.training.get("data_independent_hyperparameters") is True
    return _Vouched(assume=given["assume"], public=hyperparameters.NAMES if every else given["public"])


def _unvouched(one: Assumption) -> Assumption:
    return replace(one, name=f"{one.name}{UNKNOWN}") if one.status == "unchecked" else one


def as_recorded(audit: AuditResult) -> DeclaredRun:
    """The same from a result, if the folder is gone."""
    own = tuple(one for one in audit.findings if one.source.startswith(SOURCE) or one.scope.pipeline == "executed")
    bound = next((one for one in audit.findings if one.bound == "upper" and one not in own), None)
    run = DeclaredRun(
        checks=audit.checks,
        assumptions=bound.assumptions if bound is not None else (),
        notes=audit.notes,
        findings=own,
        evidence=audit.evidence,
    )
    return run if audit.recording is None else replace(run, section=audit.recording)


def digest_of(folder: Path) -> str:
    """SHA-256 over names, lengths and contents of the folder's files, in order; one that is not there is left out."""
    whole = hashlib.sha256()
    for name in FILES:
        path = folder / name
        if not path.exists():
            continue
        whole.update(f"{name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                whole.update(part)
    return whole.hexdigest()


def declared_checks(run: RecordedRun, phases: Sequence[Phase], records: int) -> Iterator[Check]:
    """Whether steps, noise, rate, clip norm and number of records of a run are those of the phases; each exact."""
    steps = sum(phase.steps for phase in phases)
    test = "updates that the spec declares"
    yield exact("steps", test, "reported", steps == run.steps, steps, run.steps, "recorded")
    ran = np.array([math.nan if sigma is None else sigma for sigma in noise_multipliers(run)])
    declared = _each(phases, [phase.noise_multiplier for phase in phases], run.steps)
    yield _same("noise-scale", "noise multiplier that the spec declares", declared, ran)
    rates = np.array([math.nan if rate is None else rate for rate in poisson_rates(run)])
    declared = _each(phases, [phase.rate(records) for phase in phases], run.steps)
    yield _same("sampling", "sampling rate that the spec declares", declared, rates)
    declared = _each(phases, [phase.clip_norm for phase in phases], run.steps)
    yield _same("clipping", "clip norm that the spec declares", declared, run["clip_norm"])
    seen = run.header.records
    if seen is not None:
        test = "records that the spec declares"
        yield exact("sampling", test, "reported", seen == records, records, seen, "of the loader's data")


def canary_checks(shown: CanaryBound | None) -> Iterator[Check]:
    """A check that is made known only where canaries contradict the run's own schedule: one that does not reject would
    be no word on what ran."""
    if shown is not None and shown.contradicts and shown.upper is not None:
        test = "lower bound by canaries, above what the recorded schedule allows"
        note = f"at delta = {shown.delta:g}, p = {upper(shown.p_value)}"
        yield exact("nothing-unseen", test, "measured", False, shown.upper, shown.lower, note, detectable=None)


def _each(phases: Sequence[Phase], values: Sequence[float], steps: int) -> Array:
    """The value of each phase at each of its steps, the first ``steps`` of them."""
    left, parts = steps, []
    for phase, value in zip(phases, values, strict=True):
        parts.append(np.full(min(left, phase.steps), float(value)))
        left -= len(parts[-1])
    return np.concatenate(parts)


def _same(assumption: str, test: str, declared: Array, ran: Array) -> Check:
    """At the first step where they differ; steps that the spec does not declare are counted by another check."""
    ran = ran[: len(declared)]
    wrong = ~np.isclose(ran, declared, rtol=_SAME, atol=0.0)
    at = int(np.argmax(wrong)) if wrong.any() else 0
    values = (float(declared[at]), float(np.nan_to_num(ran[at], nan=0.0)))
    note = f"first at step {at + 1}" if wrong.any() else "recorded"
    return exact(assumption, test, "reported", not wrong.any(), *values, note)
