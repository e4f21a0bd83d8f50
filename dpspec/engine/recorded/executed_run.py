"""A recorded run as the executed mechanism of a spec: ``training: {backend: recorded, run: PATH}``.

The backend makes no trials. Its reader bounds the recording's own schedule. If the spec declares the phases of a
mechanism, further checks compare the schedule with them. A run that deviates has no proof, or whose
recording leaves an assumption open. Scored canaries are evidence as in any audit.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from dpspec.accounting import Interval, certified_lower, certified_upper
from dpspec.contract import (
    Assumption,
    Check,
    Claim,
    Diagnostic,
    Evidence,
    Facts,
    Finding,
    Phase,
    Scope,
    Spec,
    in_phase,
)
from dpspec.contract.results import SOURCE, UNKNOWN, AuditResult, ExecutedRun, Recording
from dpspec.decimals import exact, lower, upper
from dpspec.engine.recorded.assumptions import assumptions, computed_from_records, maybe_computed
from dpspec.engine.recorded.bounds import (
    ADD_REMOVE,
    CONFIDENCE,
    PROFILE,
    ZERO_OUT,
    CanaryBound,
    canary_bound,
    epsilon_of,
    evidence_of,
    phases_of,
    profile_series,
    shuffled_epsilon,
)
from dpspec.engine.recorded.channels import (
    ASSUMABLE,
    HYPERPARAMETERS,
    assumes,
    channels,
    complete,
    require_known,
    stated,
)
from dpspec.engine.recorded.checks import advice, declared_tests, own_checks
from dpspec.engine.recorded.combined_checks import combined, corrected
from dpspec.engine.recorded.recorded_run import RecordedRun, evidence, read_run
from dpspec.engine.recorded.rules import fired_rules, require_rules
from dpspec.engine.recorded.section import accountant_report, cautions, setup, unrecognized
from dpspec.engine.recorded.sentences import confirmations, executed_sentence, run_facts
from dpspec.errors import NothingToRunError, SpecError, UsageError
from dpspec.kit.findings import DEFAULT_DELTA, bad_value, claimed_deltas, lower_from, unsupported
from dpspec.language.yaml_source import locate
from dpspec.recording.folder.run_folder import FILES
from dpspec.recording.folder.weights import ReleasedModel
from dpspec.results.conformance_status import rejected
from dpspec.stats.conformance import table
from dpspec.stats.conformance.measurement import exactly

#: Optimizers of torch whose updates an adversary with access to all iterates can invert.
_INVERTIBLE = frozenset({"torch.optim.sgd.SGD", "torch.optim.SGD", "SGD"})

#: Maximum number of phases that a result lists.
_MOST_PHASES = 200

_SOURCE = f"{SOURCE}; Ganesh 2024, Theorem 3.1; Dong, Roth & Su 2022, Corollary 3.3"


#: The model that ``dpspec check`` has read. Specs are untrusted: they name files of safetensors only.
GIVEN_MODEL: ContextVar[ReleasedModel | None] = ContextVar("GIVEN_MODEL", default=None)


def observe(path: Path) -> tuple[RecordedRun, tuple[Check, ...]]:
    """A run and all its tests that need no declaration."""
    run = read_run(path)
    if run.steps == 0:
        reason = run.folder.fault
        cause = f"the recorder stopped: {reason}" if reason else "the optimizer never stepped"
        raise NothingToRunError(f"{path}: no step was recorded: {cause}")
    return run, (*table.of_runs(run.phases, [evidence(run)]), *own_checks(run))


class RecordedRuns:
    @staticmethod
    def check(spec: Spec, comparable: Sequence[str]) -> Iterator[Diagnostic]:
        if spec.mechanism.kind not in comparable:
            yield unsupported(
                f"a recording does not show everything that {spec.mechanism.kind!r} does",
                ("mechanism", "kind"),
                f"write kind: {' or '.join(comparable)}; recorded is the recorded schedule itself",
            )
            return
        if spec.audit is not None:
            yield unsupported(
                "dpspec does not retrain a recorded run, so it cannot attack it",
                ("audit",),
                "remove the audit block; for an attack, insert canaries in the script (dpspec.plant), and record again",
            )
        default = spec.threat_model.adjacency
        claimed = [(("claims", i, "adjacency"), claim.adjacency) for i, claim in enumerate(spec.claims)]
        for path, adjacency in [(("threat_model", "adjacency"), default), *(c for c in claimed if c[1] != default)]:
            if adjacency not in (ZERO_OUT, ADD_REMOVE):
                yield unsupported(
                    f"a recorded run has bounds for {ZERO_OUT} and {ADD_REMOVE} adjacency, not for {adjacency}",
                    path,
                    f"write adjacency: {ZERO_OUT}, or remove training to bound the declared schedule alone",
                )
        for i, phase in enumerate(_declared_phases(spec)):
            if phase.sampling.of_users:
                yield unsupported(
                    "a recorded run shows which records were drawn and how each was clipped, not users",
                    in_phase(spec, i, "sampling", "unit"),
                    "remove unit and records_per_user from sampling: a user is then a group of "
                    "data.records_per_user records",
                )
            if not phase.sampling.is_poisson:
                phase_sampling = spec.mechanism.get("phases") is not None and "sampling" in spec.mechanism["phases"][i]
                yield unsupported(
                    f"a recorded run is compared with Poisson samples, not {phase.sampling.scheme} batches",
                    ("mechanism", "phases", i, "sampling") if phase_sampling else ("mechanism", "sampling"),
                    "write mechanism: {kind: recorded} to bound the recorded schedule",
                )

    @staticmethod
    def read(spec: Spec, facts: Facts) -> ExecutedRun:
        folder = Path(spec.directory) / str(spec.training["run"])
        try:
            run, tested = observe(folder)
        except UsageError as error:
            raise SpecError([locate(bad_value(str(error), ("training", "run")), spec.origin)]) from None
        return _executed(spec, facts, run, tested, digest_of(folder), _released(spec))

    @staticmethod
    def from_result(audit: AuditResult) -> ExecutedRun:
        run_findings = tuple(f for f in audit.findings if f.source.startswith(SOURCE) or f.scope.pipeline == "executed")
        bound = next((f for f in audit.findings if f.bound == "upper" and f not in run_findings), None)
        return ExecutedRun(
            checks=audit.checks,
            assumptions=bound.assumptions if bound is not None else (),
            findings=run_findings,
            evidence=audit.evidence,
            section=audit.recording or Recording(steps=0, ended=False, setup=()),
            series=tuple(series for series in audit.series if series.name == PROFILE),
        )


def _released(spec: Spec) -> ReleasedModel | None:
    name, released = spec.training.options.get("model"), GIVEN_MODEL.get()
    if name is None or released is not None:
        return released
    from dpspec.recording.released_model import SAFETENSORS, released_model

    path = Path(spec.directory) / str(name)
    try:
        if path.suffix != SAFETENSORS:
            raise UsageError(f"{name}: a spec names a file {SAFETENSORS}; dpspec check --model reads other files too")
        return released_model(path)
    except UsageError as error:
        raise SpecError([locate(bad_value(str(error), ("training", "model")), spec.origin)]) from None


def _executed(
    spec: Spec,
    facts: Facts,
    run: RecordedRun,
    tested: tuple[Check, ...],
    digest: str,
    released: ReleasedModel | None,
) -> ExecutedRun:
    assumed, public = _declared_names(spec)
    deltas = claimed_deltas(spec, default=float(spec.mechanism.get("delta", DEFAULT_DELTA)))
    first = min((claim.group_size for claim in spec.claims), default=1)
    sizes = {*spec.threat_model.group_size, *(claim.group_size for claim in spec.claims)}
    adjacencies = sorted({spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)})
    strictest = ADD_REMOVE if ADD_REMOVE in adjacencies else ZERO_OUT
    canaries = canary_bound(run, deltas[-1])
    if canaries is not None and canaries.upper is not None and math.isfinite(canaries.upper):
        sizes.add(run.header.copies)
    tests = [*tested, *declared_tests(run, _declared_phases(spec), facts.records)]
    if canaries is not None and canaries.contradicts and canaries.upper is not None:
        # A check that does not reject would support nothing.
        test = "lower bound by canaries, above the bound of the recorded schedule"
        note = f"at delta = {canaries.delta:g}, p = {upper(canaries.p_value)}"
        values = canaries.upper, canaries.lower
        tests.append(exactly(test, False, *values, None).check("nothing-unseen", "measured", note))
    corrected_tests = corrected(tests)
    checks = combined(corrected_tests)

    def assumptions_of(adjacency: str, size: int) -> tuple[Assumption, ...]:
        run_assumptions = assumptions(run, adjacency, public=public, group_size=size, released=released)
        return complete(tested, (*run_assumptions, *_doubts(canaries)), assumed)

    deviating = {check.assumption for check in checks if rejected(check, len(checks))}
    findings: list[Finding] = []
    guesses: list[Evidence] = []
    for adjacency in adjacencies:
        for size in sorted(sizes):
            needed = tuple(map(_marked, assumptions_of(adjacency, size)))
            further = canaries.further if canaries is not None and size == run.header.copies else ()
            for delta in (*deltas, *(delta for delta in further if delta not in deltas)):
                findings += _bounds(run, delta, size, adjacency, needed)
                if not deviating - {"sampling", "accounting"}:
                    findings += _of_shuffled_loader(run, delta, size, adjacency, needed)
        counted = computed_from_records(run) or maybe_computed(run, public)
        if canaries is not None and not (adjacency == ADD_REMOVE and counted):
            guesses.append(evidence_of(run, canaries, adjacency))
            findings.append(lower_from(guesses[-1], CONFIDENCE))
    needed = assumptions_of(strictest, first)
    unbounded = next((f for f in findings if f.bound == "upper" and math.isinf(f.value)), None)
    if unbounded is not None:  # phases that the spec declares still have a bound
        needed = (*needed, stated("bounded", f", but {unbounded.method}", "false"))
    elif run.header.clipping == "adaptive" and _declared_phases(spec):
        text = ", but phases do not declare the noisy count of adaptive clipping: write mechanism: {kind: recorded}"
        needed = (*needed, stated("bounded", text, "false"))
    accept, select, ignore = _rule_names(spec)
    rules = fired_rules(run, delta=deltas[-1], group_size=first, accept=accept, select=select, ignore=ignore)
    phases, bad = phases_of(run), [test for test in corrected_tests if rejected(test, len(checks))]
    run_channels = channels(checks, needed)
    compared = (need for need in needed if released is not None and need.name == "released-model")
    verified = next((f"; {need.text}" for need in compared if need.status == "reported"), "")
    executed = f"{executed_sentence(run)}{verified}"
    return ExecutedRun(
        checks=checks,
        assumptions=tuple(map(_marked, needed)),
        findings=tuple(findings),
        evidence=tuple(guesses),
        series=tuple(profile_series(run, adjacencies, sorted(sizes), _SOURCE)),
        section=Recording(
            steps=run.steps,
            ended=run.end is not None,
            setup=(*setup(run), executed, f"SHA-256 of the recorded files: {digest}"),
            cautions=(
                *cautions(run, canaries, infinite=unbounded is not None),
                *_hidden_sums(spec.claims, run, findings),
            ),
            unrecognized=tuple(unrecognized(run)),
            phases=tuple(phases[:_MOST_PHASES]),
            more_phases=max(0, len(phases) - _MOST_PHASES),
            accountant=accountant_report(run, deltas[-1], epsilon_of(run, strictest, deltas[-1], 1)),
            advice=tuple(dict.fromkeys(sentence for check in bad if (sentence := advice(check, bad)))),
            channels=run_channels,
            assumes=assumes(run_channels),
            assumed=assumed,
            public=public,
            rules=rules,
            confirm=tuple(confirmations(run, first, public, released=bool(verified))),
            ran=executed,
            facts=tuple(run_facts(run, bad, rules)),
        ),
    )


def _declared_phases(spec: Spec) -> tuple[Phase, ...]:
    return spec.phases if {"steps", "phases"} & set(spec.mechanism.options) else ()


def _declared_names(spec: Spec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = {key: tuple(map(str, spec.training.options.get(key, ()))) for key in ("assume", "public")}
    for key, valid in (("assume", ASSUMABLE), ("public", HYPERPARAMETERS)):
        try:
            require_known(key, names[key], valid)
        except UsageError as error:
            raise SpecError([locate(bad_value(str(error), ("training", key)), spec.origin)]) from None
    return names["assume"], names["public"]


def _rule_names(spec: Spec) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """The accepted rules with reasons, the selected ones and the ignored ones."""
    options = spec.training.options
    accept = {str(name): str(reason) for name, reason in dict(options.get("accept", {})).items()}
    select, ignore = (tuple(map(str, options.get(key, ()))) for key in ("select", "ignore"))
    for key, names in (("accept", accept), ("select", select), ("ignore", ignore)):
        try:
            require_rules(key, tuple(names))
        except UsageError as error:
            raise SpecError([locate(bad_value(str(error), ("training", key)), spec.origin)]) from None
    return accept, select, ignore


def _doubts(canaries: CanaryBound | None) -> Iterator[Assumption]:
    """A doubt if canaries exceed the certified bound, of another model or without contradicting the schedule."""
    if canaries is None or not (canaries.above or canaries.contradicts):
        return
    canary_text = f"{canaries.canaries} canaries show epsilon >= {lower(canaries.lower)} at {CONFIDENCE:.0%} confidence"
    if not canaries.final:
        yield stated("scored-model", f"; its parameters differ, and {canary_text}", "unchecked")
    elif not canaries.contradicts:
        text = (
            f"{canary_text}, above the certified bound; one in twenty sound runs shows that: train again with other "
            "inclusion bits and more canaries"
        )
        yield Assumption(name="canaries", status="unchecked", text=text)


def _bounds(
    run: RecordedRun, delta: float, size: int, adjacency: str, needed: tuple[Assumption, ...]
) -> Iterator[Finding]:
    epsilon = epsilon_of(run, adjacency, delta, size)
    delta_and_size = {"delta": delta, "group_size": size}
    scope = Scope(adjacency=adjacency, access="all-iterates", adversary="gradient")
    if epsilon.interval is None or math.isinf(epsilon.interval.upper):
        nothing = Interval(0.0, math.inf)
        yield certified_upper("epsilon", nothing, at=delta_and_size, scope=scope, source=_SOURCE, method=epsilon.method)
        return
    bound = certified_upper(
        "epsilon",
        epsilon.interval,
        at=delta_and_size,
        scope=scope,
        source=_SOURCE,
        assumptions=needed,
        method=epsilon.method,
    )
    if not epsilon.tight:
        yield replace(bound, lower=None)
        return
    yield bound
    if _reveals_sums(run):
        attained = certified_lower(bound, epsilon.interval, source=f"{_SOURCE}; attained: section 3.3")
        if attained is not None:
            yield attained


def _reveals_sums(run: RecordedRun) -> bool:
    """Whether an adversary with access to all iterates can compute the noisy sums."""
    return (run.header.inner or run.header.optimizer) in _INVERTIBLE and bool((run["learning_rate"] > 0.0).all())


def _hidden_sums(claims: Sequence[Claim], run: RecordedRun, findings: Sequence[Finding]) -> Iterator[str]:
    """Notes on claims below the lower end of the noisy sums, if the optimizer may hide these sums."""
    if _reveals_sums(run):
        return
    upper_bounds = [finding for finding in findings if finding.bound == "upper"]
    ends = {(f.scope.adjacency, f.at["delta"], f.at["group_size"]): f.lower for f in upper_bounds}
    for claim in claims:
        end = ends.get((claim.adjacency, claim.options.get("delta"), claim.group_size))
        claimed = claim.options.get("epsilon")
        if end is not None and isinstance(claimed, float) and claimed < end:
            yield (
                f"The noisy sums of all steps have epsilon at least {lower(end)}, above the claimed {exact(claimed)}, "
                "as `dpspec check --history` reports. SGD reveals these sums to an adversary with access to all "
                f"weights; {run.header.inner or run.header.optimizer} may hide a part of these sums, so this is not "
                "a lower bound for this run."
            )


def _of_shuffled_loader(
    run: RecordedRun, delta: float, size: int, adjacency: str, needed: tuple[Assumption, ...]
) -> Iterator[Finding]:
    """The lower bound of a shuffled loader, as executed, also if the accountant assumed Poisson samples."""
    shuffled = shuffled_epsilon(run, adjacency, delta) if _reveals_sums(run) else None
    if shuffled is None:
        return
    scope = Scope(adjacency=adjacency, access="all-iterates", adversary="gradient", pipeline="executed")
    delta_and_size = {"delta": delta, "group_size": size}
    bound = certified_upper("epsilon", shuffled[0], at=delta_and_size, scope=scope, source=_SOURCE, assumptions=needed)
    source = f"{_SOURCE}; attained: proofs/shuffle.md"
    attained = certified_lower(bound, shuffled[0], source=source, min_records=shuffled[1])
    if attained is not None:
        yield attained


def _marked(assumption: Assumption) -> Assumption:
    if assumption.status != "unchecked":
        return assumption
    return replace(assumption, name=f"{assumption.name}{UNKNOWN}")


def digest_of(folder: Path) -> str:
    """SHA-256 over names, lengths and contents of the folder's existing files, in order, also of ranks and parts."""
    whole = hashlib.sha256()
    further = (sorted(folder.glob(pattern)) for pattern in ("rank-*", "part-*", "part-*/rank-*"))
    for recorded_folder in (folder, *itertools.chain(*further)):
        for path in (recorded_folder / name for name in FILES):
            if not path.exists():
                continue
            whole.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while part := file.read(1 << 20):
                    whole.update(part)
    return whole.hexdigest()
