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

from dpspec.contract import Assumption, Diagnostic, Evidence, Facts, Finding, Phase, Spec, in_phase
from dpspec.contract.executed import ExecutedSection, FiredRule
from dpspec.contract.results import AuditResult, ExecutedRun
from dpspec.errors import NothingToRunError, SpecError, UsageError
from dpspec.kit.findings import DEFAULT_DELTA, bad_value, claimed_deltas, lower_from, unsupported
from dpspec.language.yaml_source import locate
from dpspec.results.conformance_status import rejected
from dpspec_recording.folder.place import the_recording
from dpspec_recording.folder.weights import ReleasedModel
from dpspec_recording.folder.writer import FILES
from dpspec_recording.judge.advice import advice_on, retraining_of
from dpspec_recording.judge.assumptions import RunAssumptions
from dpspec_recording.judge.bounds import ADD_REMOVE, PROFILE, ZERO_OUT, ScheduleBounds, phases_of, profile_series
from dpspec_recording.judge.canaries import CONFIDENCE, canary_bound, contradiction, doubts, evidence_of, unscored
from dpspec_recording.judge.channels import assumes, channels, complete
from dpspec_recording.judge.combined_checks import combined, corrected
from dpspec_recording.judge.declared_checks import declared_checks
from dpspec_recording.judge.findings import THEOREMS, hidden_sums, schedule_findings, shuffled_findings
from dpspec_recording.judge.joined_checks import rank_checks, resume_checks
from dpspec_recording.judge.recorded_run import RecordedRun, read_run
from dpspec_recording.judge.reported_checks import reported_checks
from dpspec_recording.judge.rules import fired_rules
from dpspec_recording.judge.run_claim import HYPERPARAMETERS, require_known, require_rules
from dpspec_recording.judge.section import accountant_report, cautions, recorded_origin, setup, unrecognized
from dpspec_recording.judge.section_groups import with_words
from dpspec_recording.judge.sentences import confirmations, executed_sentence, run_facts
from dpspec_recording.observers.sensitivity.replays import unreplayed
from dpspec_recording.outcomes.conditions import ASSUMABLE, NOT_REPLAYED, TEXTS, stated
from dpspec_recording.outcomes.issue import Issue, checks_of, with_tests

#: The valid names of two options; others are names of rules.
_NAMES = {"assume": ASSUMABLE, "public": HYPERPARAMETERS}

#: Maximum number of phases that a result lists.
_MOST_PHASES = 200

#: The model that ``dpspec check`` has read. Specs are untrusted: they name files of safetensors only.
GIVEN_MODEL: ContextVar[ReleasedModel | None] = ContextVar("GIVEN_MODEL", default=None)


def observe(path: Path) -> tuple[RecordedRun, tuple[Issue, ...]]:
    """A run and all its tests that need no declaration."""
    run = read_run(path)
    if run.steps == 0:
        reason = run.folder.fault
        error = "" if run.end is None else run.end.error
        stepless = f"{error} ended the block before the first step" if error else "the optimizer never stepped"
        cause = f"the recorder stopped: {reason}" if reason else stepless
        raise NothingToRunError(f"{path}: no step was recorded: {cause}")
    own_tests = (*with_tests(run.all_statements), *unscored(run), *rank_checks(run), *resume_checks(run))
    return run, (*reported_checks(run), *own_tests)


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
        for i, phase in enumerate(_phases(spec)):
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
        names = _valid_names(spec)
        try:
            folder = the_recording(Path(spec.directory) / str(spec.training["run"]))
            run, tests = observe(folder)
        except UsageError as error:
            raise SpecError([locate(bad_value(str(error), ("training", "run")), spec.origin)]) from None
        return _executed(spec, names, facts.records, run, tests, digest_of(folder), _released(spec))

    @staticmethod
    def from_result(audit: AuditResult) -> ExecutedRun:
        declared = next((f for f in audit.findings if f.bound == "upper" and not f.recorded), None)
        return ExecutedRun(
            checks=audit.checks,
            assumptions=declared.assumptions if declared is not None else (),
            findings=tuple(finding for finding in audit.findings if finding.recorded),
            evidence=audit.evidence,
            section=audit.recording or ExecutedSection(),
            series=tuple(series for series in audit.series if series.name == PROFILE),
        )


def _released(spec: Spec) -> ReleasedModel | None:
    name, released = spec.training.options.get("model"), GIVEN_MODEL.get()
    if name is None or released is not None:
        return released
    from dpspec_recording.released_model import SAFETENSORS, released_model

    path = Path(spec.directory) / str(name)
    try:
        if path.suffix != SAFETENSORS:
            raise UsageError(f"{name}: a spec names a file {SAFETENSORS}; dpspec check --model reads other files too")
        return released_model(path)
    except UsageError as error:
        raise SpecError([locate(bad_value(str(error), ("training", "model")), spec.origin)]) from None


def _valid_names(spec: Spec) -> dict[str, tuple[str, ...]]:
    """The names of assumptions, hyperparameters and rules in the options of a spec."""
    names = {}
    for key in ("assume", "public", "accept", "select", "ignore"):
        names[key] = tuple(map(str, spec.training.options.get(key, ())))
        try:
            if key in _NAMES:
                require_known(key, names[key], _NAMES[key])
            else:
                require_rules(key, names[key])
        except UsageError as error:
            raise SpecError([locate(bad_value(str(error), ("training", key)), spec.origin)]) from None
    return names


def _phases(spec: Spec) -> tuple[Phase, ...]:
    return spec.phases if {"steps", "phases"} & set(spec.mechanism.options) else ()


def _executed(
    spec: Spec,
    names: dict[str, tuple[str, ...]],
    records: int,
    run: RecordedRun,
    recorded_tests: tuple[Issue, ...],
    digest: str,
    released: ReleasedModel | None,
) -> ExecutedRun:
    phases, assumed, public = _phases(spec), names["assume"], names["public"]
    deltas = claimed_deltas(spec, default=float(spec.mechanism.get("delta", DEFAULT_DELTA)))
    first = min((claim.group_size for claim in spec.claims), default=1)
    sizes = {*spec.threat_model.group_size, *(claim.group_size for claim in spec.claims)}
    adjacencies = sorted({spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)})
    schedule, delta = ScheduleBounds(run), deltas[-1]
    canaries = canary_bound(schedule, delta)
    if canaries is not None and canaries.upper is not None and math.isfinite(canaries.upper):
        sizes.add(run.header.copies)
    tests = corrected([*recorded_tests, *declared_checks(run, phases, records), *contradiction(canaries)])
    checks = combined(tests)
    bad = [test for test in tests if rejected(test.check, len(checks))]
    run_assumptions = RunAssumptions(run, public, released)

    reasons = {name: str(spec.training.options["accept"][name]) for name in names["accept"]}
    settled = (*assumed, *({NOT_REPLAYED} & reasons.keys()))

    def needed_for(adjacency: str, size: int) -> tuple[Assumption, ...]:
        stated_of_run = (*run_assumptions.of(adjacency, size), *doubts(canaries))
        return complete(recorded_tests, stated_of_run, settled)

    findings: list[Finding] = []
    guesses: list[Evidence] = []
    as_declared = {check.condition for check in bad} <= {"sampling", "accounting"}
    for adjacency in adjacencies:
        for size in sorted(sizes):
            needed = tuple(map(_settled, needed_for(adjacency, size)))
            further = canaries.further if canaries is not None and size == run.header.copies else ()
            for at_delta in dict.fromkeys((*deltas, *further)):
                findings += schedule_findings(schedule, at_delta, size, adjacency, needed)
                if as_declared:
                    findings += shuffled_findings(run, at_delta, size, adjacency, needed)
        counted = run_assumptions.computed or run_assumptions.undeclared
        if canaries is not None and not (adjacency == ADD_REMOVE and counted):
            guesses.append(evidence_of(run, canaries, adjacency))
            findings.append(lower_from(guesses[-1], CONFIDENCE))
    executed_phases = phases_of(run)
    series = tuple(profile_series(schedule, adjacencies, sorted(sizes), THEOREMS))
    strictest = ADD_REMOVE if ADD_REMOVE in adjacencies else ZERO_OUT
    cost = schedule.epsilon(strictest, delta, 1)
    needed = needed_for(strictest, first)
    unbounded = next((f for f in findings if f.bound == "upper" and math.isinf(f.value)), None)
    if unbounded is not None:  # phases that the spec declares still have a bound
        needed = (*needed, stated("bounded", f", but {unbounded.method}", "false"))
    elif run.header.clipping == "adaptive" and phases:
        text = ", but phases do not declare the noisy count of adaptive clipping: write mechanism: {kind: recorded}"
        needed = (*needed, stated("bounded", text, "false"))
    elif phases and run.norm_excess:
        text = "; phases do not count the rounding of norms: write mechanism: {kind: recorded}"
        needed = (*needed, stated("precision", text, "unchecked"))
    rules = fired_rules(
        run,
        delta=delta,
        group_size=first,
        accept=reasons,
        select=names["select"],
        ignore=names["ignore"],
    )
    rules = (*rules, *_answered(run, reasons.get(NOT_REPLAYED, "")))
    run_channels = channels(checks, needed)
    compared = (need for need in needed if released is not None and need.name == "released-model")
    verified = next((f"; {need.text}" for need in compared if need.status == "reported"), "")
    executed = f"{executed_sentence(run)}{verified}"
    claimed_adjacency = "add-remove" if ADD_REMOVE in adjacencies else ZERO_OUT
    to_confirm = confirmations(run, first, public, released=bool(verified), adjacency=claimed_adjacency)
    return ExecutedRun(
        checks=checks_of(checks),
        assumptions=tuple(map(_settled, needed)),
        findings=tuple(findings),
        evidence=tuple(guesses),
        series=series,
        section=with_words(
            ExecutedSection(
                ran=executed,
                digest=digest,
                origin=recorded_origin(run),
                cautions=(
                    *cautions(run, canaries, "" if unbounded is None else unbounded.method),
                    *(() if bad else hidden_sums(spec.claims, run, findings)),
                ),
                phases=tuple(executed_phases[:_MOST_PHASES]),
                more_phases=max(0, len(executed_phases) - _MOST_PHASES),
                phases_alone=schedule.is_of_phases_alone,
                advice=advice_on(bad, bad),
                retraining=retraining_of(schedule, spec.claims),
                assumes=assumes(run_channels),
                assumed=assumed,
                public=public,
                rules=rules,
                confirm=tuple(to_confirm),
                faults=tuple(run_facts(run, bad, rules)),
            ),
            setup=(*setup(run), executed, f"SHA-256 of the recorded files: {digest}"),
            channels=run_channels,
            report=accountant_report(run, delta, cost),
            unrecognized=tuple(unrecognized(run)),
            steps=run.steps,
            ended=run.end is not None,
            stopped=bool(run.folder.fault),
        ),
    )


def _answered(run: RecordedRun, reason: str) -> Iterator[FiredRule]:
    """Steps that no replay measured, as a caution that a person accepts for a reason."""
    text = unreplayed(run)
    if text and reason:
        yield FiredRule(
            name=NOT_REPLAYED,
            text=f"{text[0].upper()}{text[1:]}.",
            why=f"The proof assumes that {TEXTS[NOT_REPLAYED]}.",
            fix="Change the script so that its steps can be replayed.",
            accepted=reason,
        )


def _settled(assumption: Assumption) -> Assumption:
    """Settled if it is open: a check that is not rejected tests a part of the condition only."""
    return replace(assumption, settled=assumption.status == "unchecked")


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
