"""A recorded run against the spec that declares it: ``training: {backend: recorded, run: PATH}``.

The phases of the mechanism are what is claimed, and bounds are theirs. The recording is what ran: the checks of
``dpspec check`` hold it against its own options, and those here against the spec, so that a run that is not the
declared one deviates. What the recording leaves open of the assumptions stands in every proof. Canaries that were
planted and scored are evidence, which the judge holds against the claims and the bounds as that of any audit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpspec.contract import Assumption, Check, Diagnostic, Evidence, Facts, Finding, Outcome, Phase, Spec, in_phase
from dpspec.engine.recorded.cautions import cautions
from dpspec.engine.recorded.channels import hyperparameters
from dpspec.engine.recorded.channels.assumptions import assumptions
from dpspec.engine.recorded.channels.table import ASSUMABLE, UNKNOWN, complete, require_known
from dpspec.engine.recorded.checked_run import Question, canaries_of, cost_of, look_at
from dpspec.engine.recorded.costs.canary_bound import CONFIDENCE, CanaryBound, evidence_of
from dpspec.engine.recorded.costs.epsilons import ADD_REMOVE, ZERO_OUT
from dpspec.engine.recorded.recorded_run import Array, RecordedRun
from dpspec.engine.recorded.schedule import noise_multipliers, poisson_rates
from dpspec.engine.results.decimals import upper
from dpspec.errors import SpecError, UsageError
from dpspec.kit.findings import lower_from
from dpspec.language.reading.tree import locate
from dpspec.recording.folder.run_folder import FILES
from dpspec.stats.conformance.measurement import exact

#: The kind of the backend that names a recorded run.
RECORDED = "recorded"

#: Mechanisms that are no more than what a recording shows: other kinds do something besides that it does not see.
_MECHANISMS = ("group",)

#: Whether a run has a bound at all is the same at every delta.
_ANY_DELTA = 1e-5

#: Multipliers, rates and norms that are the same agree to this.
_SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class DeclaredRun:
    """What a recorded run says of its spec. evidence: what its canaries show, None where none were scored. notes: what
    it is, with the digest of its files."""

    checks: tuple[Check, ...]
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    evidence: Evidence | None = None

    def outcomes(self) -> Iterator[Outcome]:
        """What stands beside the bounds of the mechanism: checks, evidence, and the lower bound from it."""
        yield from self.checks
        if self.evidence is not None:
            yield self.evidence
            yield lower_from(self.evidence, CONFIDENCE)

    def under(self, finding: Finding) -> Finding:
        """A bound on the mechanism as declared, with what the recording leaves open."""
        if finding.scope.pipeline != "declared":
            return finding
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
            message=f"a recording shows whether {_MECHANISMS[0]!r} is what ran, not {spec.mechanism.kind!r}",
            path=("mechanism", "kind"),
            help=f"write kind: {_MECHANISMS[0]}; whatever else this mechanism does, dpspec.record does not see",
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
    for i, phase in enumerate(spec.phases):
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
                help="dpspec check says what batches in another order cost",
            )


def declared_run(spec: Spec, facts: Facts) -> DeclaredRun | None:
    """The recorded run that a spec names, held against it; None where it names none.

    Raises ``SpecError`` at the key where there is no such folder, ``RecordingError`` where it holds no run or was
    changed, and ``NothingToRunError`` where no step was recorded.
    """
    folder = run_of(spec)
    if folder is None:
        return None
    try:
        looked = look_at(folder)
    except UsageError as error:
        place = Diagnostic(code="bad-value", message=str(error), path=("training", "run"))
        raise SpecError([locate(place, spec.origin)]) from None
    run = looked.run
    spoken_of = {spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)}
    adjacency = ADD_REMOVE if ADD_REMOVE in spoken_of else ZERO_OUT
    vouched = _vouched(spec)
    size = min((claim.group_size for claim in spec.claims), default=1)
    known = assumptions(run, looked.internal, adjacency, public=vouched.public_names, group_size=size)
    rests = complete(looked.checks, known, vouched.assume)
    cost = cost_of(run, looked.internal, Question(delta=_ANY_DELTA, adjacency=adjacency), 1)
    if cost.interval is None:  # what has no bound of its own has none by the phases of a spec
        text = f"what ran is a mechanism that has a bound; but {cost.reason}"
        rests = (*rests, Assumption(name="bounded", status="false", text=text))
    deltas = [float(claim["delta"]) for claim in spec.claims if "delta" in claim.options]
    shown = canaries_of(looked, max(deltas, default=_ANY_DELTA))
    digest = f"recorded run of {run.steps} steps, SHA-256 of its files {digest_of(folder)}"
    return DeclaredRun(
        checks=(*looked.checks, *declared_checks(run, spec.phases, facts.records), *canary_checks(shown)),
        assumptions=tuple(map(_unvouched, rests)),
        evidence=None if shown is None else evidence_of(run, shown),
        notes=(digest, *([shown.note] if shown and shown.note else []), *cautions(run, max(deltas, default=None))),
    )


def _vouched(spec: Spec) -> Question:
    """What the spec assumes and declares public. Raises ``SpecError`` at the key of an unknown name."""
    given = {key: tuple(map(str, spec.training.options.get(key, ()))) for key in ("assume", "public")}
    for key, valid in (("assume", ASSUMABLE), ("public", hyperparameters.NAMES)):
        try:
            require_known(key, given[key], valid)
        except UsageError as error:
            place = Diagnostic(code="bad-value", message=str(error), path=("training", key))
            raise SpecError([locate(place, spec.origin)]) from None
    public_constants = spec.training.get("public_constants") is True
    return Question(delta=_ANY_DELTA, public_constants=public_constants, assume=given["assume"], public=given["public"])


def _unvouched(one: Assumption) -> Assumption:
    return replace(one, name=f"{one.name}{UNKNOWN}") if one.status == "unchecked" else one


def as_recorded(
    findings: Sequence[Finding], checks: Sequence[Check], evidence: Sequence[Evidence], notes: Sequence[str]
) -> DeclaredRun:
    """The same from a result, where the folder is not at hand."""
    bound = next((one for one in findings if one.scope.pipeline == "declared" and one.bound == "upper"), None)
    return DeclaredRun(
        checks=tuple(checks),
        assumptions=bound.assumptions if bound is not None else (),
        notes=tuple(notes),
        evidence=next(iter(evidence), None),
    )


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
