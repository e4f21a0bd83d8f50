"""Verification of a result: recompute it from its spec and its trials' evidence, and compare.

It trains nothing. Bounds, conclusions and verdicts are recomputed; a value that was edited no longer follows and is
reported. Values that cannot be recomputed because an input is missing are reported with the affected claims.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpspec.contract import DataError, Finding, FrozenMap, MissingArrayError, Plan, Series, Spec, Trial, thaw
from dpspec.contract.audit import NO_TRIALS
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.frozen import canonical_json
from dpspec.contract.results import AuditResult, ExecutedRun, Result, TrialRecord
from dpspec.engine.differences import Mismatch, comparable, compare, merged, versions_of
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import judge
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.diagnostics import out_of_range
from dpspec.engine.preparing.model import weights_path
from dpspec.engine.preparing.prepare import Prepared, prepare
from dpspec.engine.preparing.trial_keys import TrialKeys, code_in, differences
from dpspec.engine.remedies import proves
from dpspec.engine.running.conclude import conclude, planned_tests, stopped_plan
from dpspec.engine.running.runner import assemble
from dpspec.engine.storage.stored_trials import AuditState, environment
from dpspec.engine.storage.trial_store import Store, StoredTrial
from dpspec.errors import DpspecError, PluginError, SpecError
from dpspec.json_records import write
from dpspec.language.compose import Override, apply_overrides, key_spans, suffixes
from dpspec.language.load import from_document
from dpspec.language.yaml_source import from_plain, plain
from dpspec.models.weights_file import FromFile
from dpspec.registry.loader import sign_off
from dpspec.results.differing import short
from dpspec.results.redact import INTERNAL
from dpspec.text import clipped

#: The parts of an audit that follow from its spec and its trials.
_RECOMPUTED = (
    "findings",
    "series",
    "checks",
    "evidence",
    "verdicts",
    "conformance",
    "planned_trials",
    "promised",
    "power",
    "notes",
    "left_out",
    "recording",
)


def _as_signed_off(result: Result, catalog: Catalog) -> Catalog:
    """The catalog, with the distributions that the result's user signed off."""
    trusted = result.environment.get("trusted") or ()
    families = (table.values() for table in vars(catalog).values() if isinstance(table, Mapping))
    installed = {offered.distribution for offers in families for offered in offers}
    names = [str(name) for name in trusted if name in installed] if isinstance(trusted, list | tuple) else []
    return sign_off(catalog, names) if names else catalog


def verify(
    result: Result, catalog: Catalog, *, directory: str | None = None, store: Store | None = None, vouched: bool = False
) -> tuple[Mismatch, ...]:
    """All values that do not follow, and all that could not be recomputed.

    Values that cannot be derived from evidence are skipped (``dpspec.engine.differences``).

    Args:
        result: The result.
        catalog: The installed providers.
        directory: The base folder of the specs' data files; by default the folder of each spec's file.
        store: Provides arrays, and evidence to compare with.
        vouched: Whether to report trials that the store lacks.

    Raises:
        PluginError: A kind of the result is not installed.
    """
    from dpspec.training import limited

    catalog = _as_signed_off(result, catalog)
    names = Counter(audit.name for audit in result.audits)
    mismatches = [
        Mismatch(name, "name", f"{n} audits", "an invocation has one audit of a name")
        for name, n in names.items()
        if n > 1
    ]
    unexpected = dataclasses.replace(result, regressions=None).exit_code
    if result.exit_code != unexpected:
        text = f"{unexpected:d} without the earlier result, whose regressions decide"
        mismatches.append(Mismatch("", "exit_code", f"{result.exit_code:d}", text, differs=False))
    tests = sum(planned_tests([v.kind for v in a.verdicts], a.planned_trials, a.power) for a in result.audits)
    recomputed_audits: list[Recomputed] = []
    with limited(1):  # as in the run
        for audit in result.audits:
            try:
                again, differences = recompute(audit, catalog, directory, store, tests=tests, vouched=vouched)
            except PluginError as error:
                installed = versions_of(environment(catalog))
                recorded = versions_of(result.environment).items()
                packages = ", ".join(
                    clipped(f"{name} {version}") for name, version in recorded if name not in installed
                )
                text = f"{error} (made with {packages}, not installed here)" if packages else str(error)
                raise PluginError(text, error.diagnostics) from None
            except (SpecError, DataError, OSError, ValueError, KeyError) as error:
                text = str(error) or type(error).__name__
                mismatches.append(Mismatch(audit.name, "audit", "a result", text))
                continue
            mismatches.extend(differences)
            recomputed_audits.append(again)
    if len(recomputed_audits) < len(result.audits):
        mismatches.extend(
            Mismatch(
                again.recorded.name,
                "its verdicts",
                ", ".join(dict.fromkeys(v.verdict for v in again.recorded.verdicts)) or "none",
                "they share a family with an audit that cannot be recomputed",
                differs=False,
                claims=tuple(v.claim for v in again.recorded.verdicts),
            )
            for again in recomputed_audits
        )
        return tuple(mismatches)
    concluded = [again.concluded for again in recomputed_audits]
    try:
        judged = judge(concluded)
    except (TypeError, ValueError) as error:  # recorded values may be inconsistent
        none = Mismatch("", "verdicts", "verdicts", f"none can be given: {error}")
        return (*mismatches, none)
    recomputed = assemble([again.trained for again in recomputed_audits], concluded, judged, catalog)
    family = sum(len(audit.checks) for audit in recomputed.audits)
    for again, new in zip(recomputed_audits, recomputed.audits, strict=True):
        old = again.recorded
        if old.left_out:
            old, new, differences = comparable(old, new, family, again.taken)
            mismatches.extend(differences)
        reasons = {f"verdicts[{number}].verdict": verdict.reason for number, verdict in enumerate(new.verdicts)}
        for field in _RECOMPUTED:
            mismatches.extend(
                dataclasses.replace(mismatch, because=reasons.get(mismatch.what, ""))
                for mismatch in compare(old.name, field, getattr(old, field), getattr(new, field))
            )
        mismatches.extend(_of_remedies(old, again.trained.prepared.spec, catalog))
    for field in ("confidence", "notes"):
        mismatches.extend(compare("", field, getattr(result, field), getattr(recomputed, field)))
    return tuple(mismatches)


def _of_remedies(audit: AuditResult, spec: Spec, catalog: Catalog) -> Iterator[Mismatch]:
    """Remedies that prove nothing. Others of the same number may have been found: the search is limited in time."""
    for number, remedy in enumerate(audit.remedies):
        try:
            proved = proves(spec, catalog, remedy)
        except DpspecError as error:
            yield Mismatch(audit.name, f"remedies[{number}]", remedy.place, str(error))
            continue
        if not proved:
            text = f"{remedy.place} {remedy.value:g}"
            yield Mismatch(audit.name, f"remedies[{number}].value", text, "the claims are not proved with it")


def stored_trials(result: Result, store: Store) -> tuple[int, int]:
    """The numbers of intact and of damaged trials of a result in a store."""
    keys = {record.key for audit in result.audits for record in audit.trials}
    for audit in result.audits:
        if not {record.key for record in audit.trials} <= store.intact | store.damaged:
            with suppress(ValueError):  # not a key
                _stored(store, audit.trials)
    return len(keys & store.intact), len(keys & store.damaged)


def counted_trials(number: int) -> str:
    return f"{number} trial{'' if number == 1 else 's'}"


#: Suffix of a cell's name if its values do not distinguish it.
_NUMBERED = re.compile(r"\[#[1-9][0-9]*\]")


def _of_spec(audit: AuditResult, spec: Spec, catalog: Catalog) -> Iterator[Mismatch]:
    """Compare the audit's values about its spec with the document."""
    yield from compare(audit.name, "digest", audit.digest, spec.digest)
    yield from compare(audit.name, "document", audit.document, spec.document)
    cell = [
        Override(place=key_path, value=from_plain(thaw(value)), keys=key_spans(key_path, None))
        for key_path, value in audit.cell.items()
    ]
    document = spec.to_json()
    placed, problems = apply_overrides(from_plain(document), cell)
    try:
        is_cell = not problems and (
            canonical_json(plain(placed)) == canonical_json(document)  # unless a value has another spelling
            or from_document(plain(placed), catalog, spec.directory).digest == spec.digest
        )
    except SpecError:
        is_cell = False
    if not is_cell:
        recorded = short(thaw(audit.cell))
        yield Mismatch(audit.name, "cell", recorded, "the document says otherwise")
    name = str(audit.document.get("name", ""))
    added = audit.name.removeprefix(name)
    # Among cells with other axes, labels say which axis they are of.
    cell_suffixes = (suffixes([audit.cell])[0], suffixes([audit.cell, {"another": None}])[0]) if audit.cell else ("",)
    numbered = bool(audit.cell) and _NUMBERED.fullmatch(added) is not None
    if not audit.name.startswith(name) or not (added in cell_suffixes or numbered):
        says = f"the document is named {short(write(audit.document.get('name')))}"
        yield Mismatch(audit.name, "name", short(audit.name), says)
    for key in audit.places:
        if key and key not in {claim.id for claim in spec.claims}:
            yield Mismatch(audit.name, f"places.{key}", "a place", "no such claim")


#: Keys of a trial's record about its time.
_WHEN = ("made", "seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recomputed:
    """An audit and its recomputed stages; ``taken`` counts values taken from the result by part, None for none."""

    recorded: AuditResult
    trained: AuditState
    concluded: Concluded
    taken: Counter[str] | None


def recompute(
    audit: AuditResult,
    catalog: Catalog,
    directory: str | None,
    store: Store | None,
    *,
    tests: int,
    vouched: bool = False,
) -> tuple[Recomputed, list[Mismatch]]:
    """Recompute an audit.

    Args:
        audit: The audit in the result.
        catalog: The installed providers.
        directory: The base folder of data files; None for the folder of the spec's file.
        store: Provides arrays, and evidence to compare with.
        tests: The maximum number of privacy tests of all audits of the result, on which an early stop depends.
        vouched: Whether the store must contain all of its trials.
    """
    folder = str(Path(audit.source).parent) if directory is None else directory
    spec = from_document(audit.document, catalog, folder, name=audit.name, cell=audit.cell)
    mismatches = list(_of_spec(audit, spec, catalog))
    prepared = prepare(spec, catalog, recorded=audit.facts)
    absent = None
    if spec.audit is not None:
        try:
            prepared.trial_inputs()
        except DataError as error:  # a file that trials read in addition to the data
            absent = error
            diagnostics = tuple(d for d in prepared.diagnostics if d.code != "data-unreadable")
            prepared = dataclasses.replace(prepared, diagnostics=diagnostics)
    if errors := [diagnostic for diagnostic in prepared.diagnostics if diagnostic.severity == "error"]:
        raise SpecError(errors)
    mismatches.extend(compare(audit.name, "facts", audit.facts, prepared.facts))
    mismatches.extend(_unseen(audit, prepared))
    inputs = prepared.trial_inputs() if absent is None else FrozenMap()
    if not audit.planned_trials and not audit.trials:  # the result has bounds only
        plan = NO_TRIALS
    elif absent is None:
        plan = prepared.plan()
    else:
        whole_chunk = (tuple(range(audit.planned_trials)),)
        power, notes, checks = audit.power, audit.notes, audit.promised
        plan = dataclasses.replace(NO_TRIALS, chunks=whole_chunk, power=power, notes=notes, checks=checks)
    mismatches.extend(_origins(audit, plan, inputs, prepared, absent))
    recording, differences = _recording(audit, prepared)
    mismatches.extend(differences)
    bounds, comparisons = _bounds(prepared, catalog, inputs)
    bounded = AuditState(prepared=prepared, bounds=bounds, comparisons=comparisons, plan=plan, recording=recording)
    keys = TrialKeys(inputs, prepared.facts, prepared.revisions, code_in(prepared.makers))
    stored = {} if store is None else _stored(store, audit.trials, plan, keys)
    pairs = [(record, stored.get(record.key)) for record in audit.trials]
    for record, stored_trial in pairs:
        mismatches.extend(_altered(audit.name, record, stored_trial))
    if vouched and (missing := sum(stored_trial is None for _, stored_trial in pairs)):
        detail = f": the store has no seal of {'it' if missing == 1 else 'them'}"
        mismatches.append(_taken_as_recorded(audit, "trials", counted_trials(missing), detail))
    at_hand = all(stored_trial is not None or INTERNAL in record.evidence for record, stored_trial in pairs)
    # Omitted values of some trials alone yield other numbers.
    trials = [_trial(record, stored_trial if at_hand else None) for record, stored_trial in pairs]
    taken: Counter[str] | None = None
    if differences and audit.left_out:  # checks of a missing recording may lack digits
        taken = Counter({"checks": len(audit.checks)} if audit.checks else {})
    try:
        if trials and plan.sequential:
            cut = stopped_plan(bounded, {trial.index: trial for trial in trials}, tests)
            bounded = dataclasses.replace(bounded, plan=cut)
        concluded = conclude(bounded, trials)
    except MemoryError:
        raise
    except MissingArrayError as error:
        concluded, taken = merged(audit, conclude(bounded, ()))[0], Counter()
        mismatches.append(
            _taken_as_recorded(audit, "what follows from the trials", f"{len(trials)} trials", f": {error}")
        )
    except Exception as error:  # a plugin reads what its trials wrote, and here it may read anything
        if not trials:
            raise
        raise ValueError(f"no conclusions follow from its trials: {str(error) or type(error).__name__}") from error
    else:
        if audit.left_out and not at_hand:
            concluded, taken = merged(audit, concluded)
    with_records = [StoredTrial(trial=t, record=record) for t, record in zip(trials, audit.trials, strict=True)]
    trained = dataclasses.replace(bounded, trials=tuple(with_records))
    return Recomputed(recorded=audit, trained=trained, concluded=concluded, taken=taken), mismatches


def _stored(
    store: Store, records: Sequence[TrialRecord], plan: Plan = NO_TRIALS, keys: TrialKeys | None = None
) -> dict[str, StoredTrial]:
    """The stored trials of a result by key; ``keys`` of planned trials that the result lacks may name bundles."""
    recorded = {record.index: record.key for record in records}
    absent = [(chunk, index) for chunk in plan.chunks for index in chunk if index not in recorded]
    planned = {index: keys.of(chunk, index) for chunk, index in absent} if keys is not None else {}
    trials = store.get_all(recorded, planned=planned | recorded, as_indexed=False)
    return {trial.record.key: trial for trial in trials.values()}


#: The value of a mismatch about a recording whose folder is missing.
RECORDING = "recording"


def missing_recordings(result: Result, mismatches: Sequence[Mismatch]) -> tuple[tuple[str, str], ...]:
    """The folders of recordings that are not here, as the specs name them, and the digests of their files."""
    names = {mismatch.audit for mismatch in mismatches if mismatch.what == RECORDING and not mismatch.differs}
    return tuple(
        (str((audit.document.get("training") or {}).get("run")), audit.recording.digest)
        for audit in result.audits
        if audit.name in names and audit.recording is not None
    )


def _recording(audit: AuditResult, prepared: Prepared) -> tuple[ExecutedRun | None, list[Mismatch]]:
    """Evaluate the recorded run of a spec again, or use the result's values if its folder is missing or invalid."""
    reader = prepared.recording
    if reader is None:
        return None, []
    digest = audit.recording.digest if audit.recording is not None else ""
    recorded = f"SHA-256 of the recorded files: {digest}" if digest else "; ".join(audit.notes[-1:])
    try:
        return reader.read(prepared.spec, prepared.facts), []
    except DpspecError as error:
        gone = _taken_as_recorded(audit, RECORDING, recorded or "a recorded run", f": {error}")
        if not isinstance(error, SpecError):  # a SpecError reports a missing folder
            gone = dataclasses.replace(gone, differs=True, after=str(error))
        return reader.from_result(audit), [gone]


def _bounds(
    prepared: Prepared, catalog: Catalog, inputs: FrozenMap
) -> tuple[list[Finding | Series], list[tuple[Offered, list[Finding]]]]:
    """The bounds with the series of comparisons, and the findings of each comparison."""
    context = RunContext(prepared, catalog, inputs, device="cpu")
    try:
        return prepared.compare(list(prepared.audit.bound(prepared.spec, context)))
    except ArithmeticError as error:
        raise SpecError([out_of_range(error, prepared.spec)]) from error


def _origins(
    audit: AuditResult, plan: Plan, inputs: FrozenMap, prepared: Prepared, absent: DataError | None
) -> Iterator[Mismatch]:
    """Report trials that are not of the plan, that are of other inputs, or whose provider has changed since."""
    indices = [record.index for record in audit.trials]
    chunk_of = {index: chunk for chunk in plan.chunks for index in chunk}
    if sorted(set(indices)) != indices or not all(index in chunk_of for index in indices):
        yield Mismatch(
            audit.name,
            "trials",
            short(", ".join(map(str, indices))),
            "every trial must be planned and occur once, in order",
        )
    if absent is not None:
        detail = f", without the file: {absent}"
        yield _taken_as_recorded(audit, "the file that its trials read", counted_trials(len(indices)), detail)
    else:
        yield from _other_makers(audit, chunk_of, inputs, prepared)


def _other_makers(
    audit: AuditResult, chunk_of: Mapping[int, Sequence[int]], inputs: FrozenMap, prepared: Prepared
) -> Iterator[Mismatch]:
    """Report trials whose makers differ from the installed ones, and keys that follow from neither."""
    indices: dict[tuple[str, str, str, bool], list[int]] = {}  # by what differs, and whether the trials do
    installed = prepared.revisions
    made_keys: dict[str, TrialKeys] = {}

    def keys(revisions: FrozenMap, code: FrozenMap) -> TrialKeys:
        makers = canonical_json([revisions, code])  # unlike equality, it distinguishes 1 from 1.0
        if makers not in made_keys:
            made_keys[makers] = TrialKeys(inputs, prepared.facts, revisions, code)
        return made_keys[makers]

    installed_keys = [keys(installed, code) for code in (FrozenMap(), code_in(prepared.makers))]
    for record in audit.trials:
        makers: Any = record.recorded.get("by")
        chunk = chunk_of.get(record.index, ())
        named = isinstance(makers, FrozenMap) and set(makers) == set(installed)
        named = named and all(isinstance(m, FrozenMap) and {"kind", "revision"} <= set(m) for m in makers.values())
        changes: list[tuple[str, str, str, bool]] = []
        revisions = {part: [m["kind"], m["revision"]] for part, m in makers.items()} if named else {}
        if named and keys(FrozenMap(revisions), code_in(makers)).of(chunk, record.index) == record.key:
            for part, maker in makers.items():
                if (maker["kind"], maker["revision"]) != tuple(installed[part]):
                    now = f"its revision {installed[part][1]} is installed, which trains or measures in another way"
                    changes.append(
                        (f"{part} {maker['kind']!r}", f"made by its revision {maker['revision']}", now, True)
                    )
            for part, then, now in differences(makers, prepared.makers):  # other code may make the same trials
                changes.append((part, f"made by {then}", f"taken as recorded: installed is {now}", False))
        elif record.key not in [of_installed.of(chunk, record.index) for of_installed in installed_keys]:
            changes.append(("key", "other inputs, data or revisions of plugins", "of no trial of this spec", True))
        for change in changes:
            indices.setdefault(change, []).append(record.index)
    for (label, then, now, differs), trial_indices in indices.items():
        yield Mismatch(audit.name, f"{counted_trials(len(trial_indices))}, {label}", then, now, differs=differs)


def _unseen(audit: AuditResult, prepared: Prepared) -> Iterator[Mismatch]:
    try:
        prepared.source.facts()
    except DataError as error:
        yield _taken_as_recorded(audit, "facts", f"{audit.facts.records} records", f", without the data: {error}")
    if prepared.facts.initial_weights is not None and not isinstance(prepared.model, FromFile):
        recorded = f"digest {prepared.facts.initial_weights[:12]}"
        yield _taken_as_recorded(
            audit, "initial weights", recorded, f", without the file {weights_path(prepared.spec)}"
        )


def _taken_as_recorded(audit: AuditResult, label: str, recorded: str, detail: str) -> Mismatch:
    return Mismatch(
        audit.name,
        label,
        recorded,
        f"taken as recorded{detail}",
        differs=False,
        claims=tuple(verdict.claim for verdict in audit.verdicts),
    )


def _trial(record: TrialRecord, stored: StoredTrial | None) -> Trial:
    if stored is None:
        return Trial(index=record.index, evidence=record.evidence)
    internal = {key: stored.record.evidence[key] for key in (INTERNAL,) if key in stored.record.evidence}
    return Trial(index=record.index, evidence=FrozenMap({**internal, **record.evidence}), arrays=stored.trial.arrays)


def _altered(audit: str, record: TrialRecord, stored: StoredTrial | None) -> Iterator[Mismatch]:
    if stored is None:
        return
    ours = {key: value for key, value in stored.record.evidence.items() if key in record.evidence or key != INTERNAL}
    where = f"trials[{record.index}]"
    yield from compare(audit, f"{where}.evidence", record.evidence, ours)
    yield from compare(audit, f"{where}.arrays", record.arrays, stored.record.arrays)
    # A trial that was repeated with its chunk differs in its time only.
    of_result, of_store = ({k: v for k, v in r.recorded.items() if k not in _WHEN} for r in (record, stored.record))
    yield from compare(audit, f"{where}.recorded", of_result, of_store)
