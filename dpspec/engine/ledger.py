"""The ledger of a dataset: a spec of the mechanism ``composition`` that gets an entry for each release.

An entry comes from a result: of ``dpspec check`` on a recorded training, of ``dpspec run``, or of the bounds of a spec
that only declares a release. An entry contains the steps of a training if their composition has the bound of the
result, and its certified epsilon otherwise.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import yaml

from dpspec.contract import Claim, Finding, Json, Phase, Scope, thaw
from dpspec.contract.executed import ExecutedSection
from dpspec.contract.results import AuditResult, Result, accepted_cautions
from dpspec.errors import ExitCode, LedgerError, SpecError, UsageError
from dpspec.language.load import from_document
from dpspec.language.yaml_source import plain, read_yaml, to_yaml
from dpspec.results.evidence_weight import covers, group_size, proven_bound, series_bounds, shortfall
from dpspec.results.status import problems
from dpspec.text import joined, quoted
from dpspec.training.adaptive_clipping import with_count

if TYPE_CHECKING:
    from dpspec.contract.catalog import Catalog
    from dpspec.contract.spec import Spec
    from dpspec.engine.calibration import Calibration

#: The id of the claim that states the budget.
BUDGET = "budget"

#: The kinds of a claim that states a budget, and the numbers of each.
BUDGETS: Mapping[str, tuple[str, ...]] = {"approx-dp": ("epsilon", "delta"), "zcdp": ("rho",)}

#: The delta of the bounds with which entries of a budget in rho are compared.
DELTA_OF_RHO = 1e-5

#: The mechanism of a ledger.
KIND = "composition"

#: The basis of an entry: a recorded training, the trainings of a run, or a spec alone.
Evidence: TypeAlias = Literal["recorded", "run", "declared"]

#: A guarantee is entered at a delta of at most this share of the budget's, so that ten guarantees fit.
_SHARE = 0.1

#: The smallest epsilon of a guarantee in a composition.
_LEAST_EPSILON = 1e-15

#: The smallest rho of one.
_LEAST_RHO = 1e-30

#: Steps are entered if their epsilon agrees with the result's: below it by at most the widths of two searches.
_BELOW, _ABOVE = 2e-3, 1e-2

#: Relative rounding of ends of closed forms.
_ROUNDING = 1e-9

#: Longer schedules are entered as one guarantee.
_MOST_PHASES = 50

_PLACE = ("mechanism", "releases")

#: The scope of a budget whose threat model states nothing but its adjacency.
DEFAULT_SCOPE = Scope()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A release to be entered.

    Attributes:
        name: Its name for readers.
        releases: Blocks of ``mechanism.releases``, without ``name`` and ``origin``.
        evidence: The basis of its numbers.
        file: The file or folder of its result.
        digest: SHA-256 of the recording, or of the spec of its result.
        records: The number of records of the dataset; None if it is unknown.
        data: The digest of the dataset; empty if it is unknown.
        scope: Of its guarantee.
        certified_by: The distributions of third parties that computed its bound; empty for dpspec's own.
        assumes: Names of channels that the user assumed, and of cautions that the user accepted.
    """

    name: str
    releases: tuple[Mapping[str, Json], ...]
    evidence: Evidence
    file: str
    digest: str
    records: int | None
    data: str
    scope: Scope
    certified_by: str = ""
    assumes: tuple[str, ...] = ()

    def blocks(self, day: dt.date) -> list[dict[str, Json]]:
        """The entry in ``mechanism.releases``, with its origin."""
        origin: dict[str, Json] = {"evidence": self.evidence, "file": self.file, "digest": self.digest}
        origin |= {"data": self.data} if self.data else {}
        origin |= {"certified_by": self.certified_by} if self.certified_by else {}
        origin |= {"assumes": list(self.assumes)} if self.assumes else {}
        origin["added"] = day.isoformat()
        count = len(self.releases)
        names = [self.name] if count == 1 else [f"{self.name}, part {i} of {count}" for i in range(1, count + 1)]
        return [
            {"name": name, **thaw(release), "origin": dict(origin)}
            for name, release in zip(names, self.releases, strict=True)
        ]


def entry_of(
    audit: AuditResult,
    evidence: Evidence,
    file: str,
    delta: float | None,
    catalog: Catalog,
    claimed: Scope = DEFAULT_SCOPE,
) -> Entry:
    """The entry of an audited release, for a budget with ``delta``, or in rho.

    Args:
        audit: The audit, of a result that may have others.
        evidence: Its basis, unless it is about a recording.
        file: The file or folder of its result, for readers.
        delta: Of the budget; None for a budget in rho.
        catalog: The mechanisms, ``composition`` among them.
        claimed: The scope of the budget, whose adjacency and unit the caller compares.

    Raises:
        LedgerError: The audit deviates, has an open caution, a contradicted claim, missing trials or no certified
            epsilon.
    """
    recording = audit.recording
    evidence = "recorded" if recording is not None else evidence
    _require_standing(audit, evidence, file)
    bound = _guarantee(audit, DELTA_OF_RHO if delta is None else delta, claimed, file)
    releases = _steps(audit, catalog)
    states_scope = audit.document["mechanism"]["kind"] == KIND  # of each release
    informative = _informative(bound, audit)
    is_invisible = states_scope and informative.value == 0.0  # too small for a number at any delta
    if not releases or not (is_invisible or _agrees(releases, informative, audit.facts.records, catalog)):
        if delta is None:
            bound = _concentrated(audit, bound.scope, file)
        releases, states_scope = (_release(bound),), False
    if not states_scope and (covered := _covered(bound.scope)):
        releases = tuple({**release, "scope": covered} for release in releases)
    origin = recording.origin if recording is not None else None
    return Entry(
        name=audit.name,
        releases=releases,
        evidence=evidence,
        file=file,
        digest=audit.digest if recording is None else recording.digest,
        records=audit.facts.records if recording is None else origin.records if origin is not None else None,
        data=audit.facts.digest or "",
        # the records of federated rounds are clients
        scope=replace(bound.scope, unit="client") if origin is not None and origin.federated else bound.scope,
        certified_by=bound.origin,
        assumes=(
            *(() if recording is None else recording.assumed),
            *(rule.name for rule in accepted_cautions(audit)),
        ),
    )


def _release(bound: Finding) -> dict[str, Json]:
    """A guarantee as a release of a composition."""
    if bound.quantity == "rho":
        return {"kind": "zcdp", "rho": max(bound.value, _LEAST_RHO)}
    delta: dict[str, Json] = {"delta": float(bound.at["delta"])} if bound.at["delta"] else {}
    return {"kind": "approx-dp", "epsilon": max(bound.value, _LEAST_EPSILON), **delta}


def _covered(scope: Scope) -> dict[str, Json]:
    """The parts of a guarantee's scope that are narrower than the default one: the composition covers no more."""
    values = {name: getattr(scope, name) for name in ("data", "min_records", "access", "adversary", "neighbours")}
    return {
        name: value
        for name, value in values.items()
        if not covers(replace(DEFAULT_SCOPE, **{name: value}), DEFAULT_SCOPE)
    }


def _require_standing(audit: AuditResult, evidence: Evidence, file: str) -> None:
    """Raise ``LedgerError`` unless the certified epsilon of the audit counts, even if a claim was smaller."""
    for problem in problems(audit):
        if evidence == "declared" and problem.kind in ("trials", "conformance"):
            continue  # nothing was trained, so nothing is missing
        if problem.kind != "claim" or problem.status == "contradicted":
            subject = f"{file}: {quoted(audit.name)} cannot be entered"
            if problem.kind == "caution":
                accept = "accept it in the claim of the spec"
                if audit.recording is not None:
                    accept = f"accept it by `dpspec check RUN --accept {problem.name} --report json=RESULT`"
                change = f"Remove its cause, or {accept}, and enter the result"
                raise LedgerError(f"{subject}: the caution {problem.name} is open. {change}")
            raise LedgerError(
                f"{subject}: {problem.kind}: {problem.status}. To count the release anyway, declare its guarantee in a "
                "spec of the mechanism composition"
            )


def _guarantee(audit: AuditResult, delta: float, claimed: Scope, file: str) -> Finding:
    """The certified epsilon of one record in the scope of the budget, at a delta that suits the budget."""

    def is_covered(finding: Finding, scope: Scope) -> bool:
        return covers(finding.scope, replace(scope, adjacency=finding.scope.adjacency, unit=finding.scope.unit))

    proved = _proved(audit.findings)
    bounds = [finding for finding in proved if is_covered(finding, claimed)]
    if not bounds:
        larger = [
            f.scope.min_records for f in proved if is_covered(f, replace(claimed, min_records=f.scope.min_records))
        ]
        hint = "`dpspec report` shows the missing parts"
        if larger:
            hint = f"it holds for datasets of at least {min(larger)}: set threat_model.min_records"
        elif proved:
            hint = "; ".join(shortfall(proved[0].scope, claimed))
        elif audit.recording is not None and audit.recording.open:
            names = joined([point.name or point.text for point in audit.recording.open])
            judged = f"dpspec check {file} --adjacency {claimed.adjacency}"
            hint = (
                f"the recording leaves {names} open: `{judged}` says why. If --assume, --public or --accept settles "
                "this, write the result (--report json=FILE) and enter it"
            )
        subject = f"{file}: {quoted(audit.name)} has no certified epsilon of one record in the scope of the budget"
        raise LedgerError(f"{subject}: {hint}")
    of_curve = [finding for finding in _curve(audit) if is_covered(finding, claimed)]
    for available in (bounds, of_curve):
        fitting = [finding for finding in available if finding.at["delta"] <= _SHARE * delta]
        if fitting:
            return max(fitting, key=lambda finding: (finding.at["delta"], -finding.value))
    return min(bounds, key=lambda finding: (finding.at["delta"], finding.value))


def _concentrated(audit: AuditResult, scope: Scope, file: str) -> Finding:
    """The certified rho of one record in ``scope``, or a certified epsilon at delta 0."""
    bounds = [
        *_proved(audit.findings, "rho"),
        *(finding for finding in _proved(audit.findings) if finding.at["delta"] == 0.0),
    ]
    covering = [finding for finding in bounds if covers(finding.scope, scope)]
    if not covering:
        raise LedgerError(
            f"{file}: {quoted(audit.name)} has no certified rho. A budget in rho adds up steps and zCDP guarantees: "
            "add a claim of kind zcdp to its spec, or keep a ledger with --epsilon and --delta"
        )
    return min(covering, key=lambda f: f.value if f.quantity == "rho" else 0.5 * f.value**2)


def _curve(audit: AuditResult) -> list[Finding]:
    """The points of the certified curve of one record as bounds."""
    return _proved(series_bounds(audit.findings, audit.series))


def _proved(findings: Iterable[Finding], quantity: str = "epsilon") -> list[Finding]:
    """The certified bounds of one record: its epsilons at a delta, or another quantity."""
    return [
        finding
        for finding in findings
        if (finding.quantity, finding.bound) == (quantity, "upper")
        and (quantity != "epsilon" or "delta" in finding.at)
        and group_size(finding) == 1
        and finding.privacy == "public"
        and math.isfinite(finding.value)
        and proven_bound(finding)
    ]


def first_scope(audit: AuditResult) -> Scope:
    """The scope of a budget that begins with this release: fewer datasets than all, if its bounds cover fewer."""
    scopes = [finding.scope for finding in _proved(audit.findings)]
    widest = max(scopes, key=lambda scope: (scope.data == "all", -scope.min_records), default=DEFAULT_SCOPE)
    return replace(DEFAULT_SCOPE, data=widest.data, min_records=widest.min_records)


def _steps(audit: AuditResult, catalog: Catalog) -> tuple[Mapping[str, Json], ...]:
    """The executed or declared steps as releases of a composition; empty if the bounds count more than the steps."""
    mechanism = audit.document["mechanism"]
    if audit.recording is not None:
        return _recorded_steps(audit.recording)
    if mechanism["kind"] == KIND:
        return tuple(
            {key: value for key, value in release.items() if key not in ("name", "origin")}
            for release in mechanism["releases"]
        )
    provider = catalog.mechanisms[mechanism["kind"]].provider if mechanism["kind"] in catalog.mechanisms else None
    if provider is None or not (provider.recordable and provider.steps):  # other theorems count more than the steps
        return ()
    phases = Phase.all_of(mechanism)
    if len(phases) > _MOST_PHASES or any(
        phase.noise != "gaussian" or phase.noiseless or not phase.sampling.is_independent for phase in phases
    ):
        return ()
    replaced = audit.document["threat_model"]["adjacency"] == "replace-one"
    if replaced and not all(phase.sampling.is_full for phase in phases):
        return ()
    moved = {"sensitivity": 2.0} if replaced else {}  # in clip norms, by a record and its replacement
    return tuple({**_gaussian(with_count(p).noise_multiplier, p.rate(), p.steps), **moved} for p in phases)


def _recorded_steps(recording: ExecutedSection) -> tuple[Mapping[str, Json], ...]:
    phases = recording.phases
    if not recording.phases_alone or recording.more_phases or len(phases) > _MOST_PHASES:
        return ()
    releases = [
        _gaussian(phase.noise_multiplier * phase.counted_share, phase.rate, phase.steps)
        for phase in phases
        if phase.noise_multiplier and phase.rate is not None
    ]
    return tuple(releases) if len(releases) == len(phases) else ()


def _gaussian(noise_multiplier: float, rate: float, steps: int) -> dict[str, Json]:
    sampled: dict[str, Json] = {"rate": rate} if rate < 1.0 else {}
    return {"kind": "gaussian", "sigma": noise_multiplier, **sampled, "times": steps}


def _informative(bound: Finding, audit: AuditResult) -> Finding:
    """The bound, or the largest one at another delta if its epsilon is 0: fewer or noisier steps have 0 there too."""
    if bound.value > 0.0:
        return bound
    bounds = [*_proved(audit.findings), *_curve(audit)]
    alike = [finding for finding in bounds if finding.scope == bound.scope and finding.value > 0.0]
    return max(alike, key=lambda finding: finding.value, default=bound)


def _agrees(releases: Sequence[Mapping[str, Json]], bound: Finding, records: int, catalog: Catalog) -> bool:
    """Whether the composition of ``releases`` has the bound that the result certifies, up to the widths of searches.

    This is a second line of defense, against an edited or an older result: it cannot notice a small charge to delta.
    """
    delta = float(bound.at["delta"])
    if not (0.0 <= delta < 1.0 and bound.value > 0.0):
        return False
    document = new_ledger(
        name="entry", records=records, scope=Scope(adjacency=bound.scope.adjacency), epsilon=1.0, delta=delta
    )
    if delta == 0.0:
        document["claims"] = [{"id": BUDGET, "kind": "pure-dp", "epsilon": 1.0}]
    document["mechanism"] = {"kind": KIND, "releases": [dict(release) for release in releases]}
    try:
        (audit,) = bounds([from_document(document, catalog)], catalog).audits
    except SpecError:  # more or other steps than a composition supports
        return False
    epsilon = next((v.upper for v in audit.verdicts if v.claim == BUDGET), None)
    least = max((1.0 - _BELOW) * bound.value, bound.lower or 0.0)  # the exact value is at least the lower end
    return epsilon is not None and least * (1.0 - _ROUNDING) <= epsilon <= (1.0 + _ABOVE) * bound.value


def bounds(specs: Sequence[Spec], catalog: Catalog, *, remedies: bool = False) -> Result:
    """The result of specs without trials, and with values that would prove failed claims; nothing is stored."""
    import tempfile

    from dpspec.engine.remedies import Search
    from dpspec.engine.running import runner
    from dpspec.engine.storage.trial_store import Store

    with tempfile.TemporaryDirectory() as folder:
        search = Search(catalog) if remedies else None
        return runner.run(specs, catalog, store=Store(folder), train=False, remedies=search)


def new_ledger(
    *,
    name: str,
    records: int | None,
    scope: Scope,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
) -> dict[str, Json]:
    """An empty ledger with its budget; the mechanism comes last, so that entries are lines at the end of the file.

    The budget is ``epsilon`` and ``delta``, or ``rho``.
    """
    budget: dict[str, Json] = {"kind": "zcdp", "rho": rho}
    if rho is None:
        budget = {"kind": "approx-dp", "epsilon": epsilon, "delta": delta}
    fewer_datasets = {"min_records": scope.min_records} if scope.min_records else {}
    declared = {"over": scope.data} if scope.data != "all" else {}
    return {
        "dpspec": 1,
        "name": name,
        "data": {"kind": "declared", "records": records or 1},
        "threat_model": {"adjacency": scope.adjacency, **fewer_datasets},
        "claims": [{"id": BUDGET, **budget, **declared}],
        "mechanism": {"kind": KIND, "releases": []},
    }


def ledger_of(specs: Sequence[Spec], file: Path) -> Spec:
    """The one spec of a ledger's file. Raises ``UsageError`` if it is not a ledger, or has no budget."""
    if len(specs) != 1 or specs[0].mechanism.kind != KIND:
        raise UsageError(f"{file} is not a ledger: it needs one mechanism of kind {KIND}, without a matrix")
    (spec,) = specs
    if budget_of(spec) is None:
        raise UsageError(
            f"{file} has no budget: add the claim {{id: {BUDGET}, kind: approx-dp, epsilon: E, delta: D}}, or one of "
            "kind zcdp with rho"
        )
    return spec


def budget_of(spec: Spec) -> Claim | None:
    """The claim that states the budget of a ledger."""
    return next((claim for claim in spec.claims if claim.id == BUDGET and claim.kind in BUDGETS), None)


def judge(document: Mapping[str, Json], catalog: Catalog, *, remedies: bool = False) -> Result:
    """The result of a ledger's document: the certified composition of its entries against its claims."""
    return bounds([from_document(document, catalog)], catalog, remedies=remedies)


def doubts(
    document: Mapping[str, Json], entries: Sequence[Entry], *, again: bool = False, same_data: bool = False
) -> Iterator[str]:
    """Why entries may not belong into a ledger: another threat model, a release that it has, or other data.

    Args:
        document: The ledger's.
        entries: New entries, in order.
        again: A release with the digest of an entered one is another run.
        same_data: All releases read the ledger's records, also with other digests and numbers.
    """
    origins = [dict(release.get("origin") or {}) for release in document["mechanism"]["releases"]]
    files = {str(origin["digest"]): str(origin.get("file")) for origin in origins if origin.get("digest")}
    digests = {str(origin["data"]) for origin in origins if origin.get("data")}
    adjacency, records = document["threat_model"]["adjacency"], document["data"]["records"]
    for entry in entries:
        if entry.scope.adjacency != adjacency:
            yield (
                f"{entry.file}: its guarantee is for adjacency {entry.scope.adjacency}, and the ledger's for "
                f"{adjacency}: audit the release for that adjacency"
            )
        if entry.scope.unit != "record":
            yield f"{entry.file}: its guarantee protects a {entry.scope.unit}; a ledger adds up guarantees of records"
        if entry.digest in files and not again:
            yield f"{entry.file}: entered before, from {files[entry.digest]}; --again enters another release of it"
        files[entry.digest] = entry.file
        if not same_data:
            if entry.data and digests and entry.data not in digests:
                yield f"{entry.file}: its data have another digest than the ledger's; --same-data enters it"
            elif entry.records is not None and entry.records != records:
                yield (
                    f"{entry.file}: its data have {entry.records:,} records, and the ledger's {records:,}; "
                    "--same-data enters it, as for a part of the data"
                )
        digests |= {entry.data} - {""}


def with_entries(document: Mapping[str, Json], entries: Sequence[Entry], day: dt.date) -> dict[str, Json]:
    """The document of a ledger with further entries."""
    mechanism = document["mechanism"]
    added = _added_blocks(mechanism["releases"], entries, day)
    return {**document, "mechanism": {**mechanism, "releases": [*mechanism["releases"], *added]}}


def _added_blocks(
    releases: Sequence[Mapping[str, Json]], entries: Sequence[Entry], day: dt.date
) -> list[dict[str, Json]]:
    """The blocks of new entries. The samples of each are drawn for it, and get names that no other entry has."""
    taken = _samples(releases)
    added = []
    for entry in entries:
        blocks = entry.blocks(day)
        names = {}
        for name in sorted(_samples(blocks)):
            names[name] = _unused(name, taken)
            taken.add(names[name])
        added += [{**block, "sample": names[str(block["sample"])]} if "sample" in block else block for block in blocks]
    return added


def _samples(releases: Sequence[Mapping[str, Json]]) -> set[str]:
    return {str(release["sample"]) for release in releases if "sample" in release}


def _unused(name: str, taken: Set[str]) -> str:
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain([name], numbered) if candidate not in taken)


def text_with_entries(text: str, entries: Sequence[Entry], day: dt.date) -> str:
    """The text of a ledger with further entries after the last one; all other lines are kept.

    Raises:
        UsageError: The releases are not written one below another.
    """
    releases = _releases_node(yaml.compose(text, Loader=yaml.SafeLoader))
    if releases is None or releases.flow_style or not releases.value:
        raise UsageError("mechanism.releases must be written as a list with one entry below another, not in brackets")
    margin = " " * releases.start_mark.column
    end = text.find("\n", _end_of(releases))
    before, after = (text, "") if end < 0 else (text[:end], text[end + 1 :])
    root = read_yaml(text, "").root
    assert root is not None
    document = plain(root)
    added = "".join(
        f"{margin}{line}\n"
        for block in _added_blocks(document["mechanism"]["releases"], entries, day)
        for line in to_yaml({"releases": [block]}).splitlines()[1:]
    )
    longer_text = f"{before}\n{added}{after}"
    longer_root = read_yaml(longer_text, "").root
    longer = None if longer_root is None else plain(longer_root)
    if longer != with_entries(document, entries, day):
        raise UsageError("the entries cannot be added to this file: write mechanism.releases as its last block")
    return longer_text


def _releases_node(node: yaml.Node | None) -> yaml.SequenceNode | None:
    for name in _PLACE:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        node = next((value for key, value in pairs if key.value == name), None)
    return node if isinstance(node, yaml.SequenceNode) else None


def _end_of(node: yaml.Node) -> int:
    """The end of the last text of a node; a block's own mark follows its blank lines and comments."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end_of(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """One number of one more release that the budget admits.

    Attributes:
        kind: The kind of the release.
        key: The number's key.
        value: The last value that was proved to fit.
        at_most: Whether smaller values fit too; larger ones otherwise.
    """

    kind: str
    key: str
    value: float
    at_most: bool


#: Releases that are tried on the remaining budget, each with the number that varies and a value of almost no cost: a
#: search below that value takes long and finds nothing of use.
_GUARANTEE: Mapping[str, tuple[Mapping[str, Json], str, float]] = {
    "approx-dp": ({"kind": "approx-dp", "epsilon": 1.0}, "epsilon", 1e-3),
    "zcdp": ({"kind": "zcdp", "rho": 0.1}, "rho", 1e-6),
}
_NOISE: tuple[Mapping[str, Json], str, float] = ({"kind": "gaussian", "sigma": 10.0}, "sigma", 1e4)

#: The numbers of a kind that make it fit, all others unchanged.
_VARIED: Mapping[str, tuple[str, ...]] = {
    "gaussian": ("times", "sigma"),
    "gaussian-mixture": ("times", "sigma"),
    "discrete-gaussian": ("times", "sigma"),
    "laplace": ("times", "scale"),
    "noise": ("times", "scale"),
    "exponential": ("times", "epsilon"),
    "randomized-response": ("times", "epsilon"),
    "approx-dp": ("times", "epsilon"),
    "zcdp": ("times", "rho"),
    "gdp": ("times", "mu"),
}

#: Relative precision of a number that fits.
_PRECISION = 1e-2


def left(document: Mapping[str, Json], catalog: Catalog) -> Iterator[Fitting]:
    """The largest cost of one more release, as a guarantee and as Gaussian noise; nothing if the budget is used up."""
    kind = next(claim["kind"] for claim in document["claims"] if claim["id"] == BUDGET)
    for release, key, least in (_GUARANTEE[kind], _NOISE):
        cheapest = _with_release(document, {**release, key: least})
        if judge(cheapest, catalog).exit_code is ExitCode.OK:
            yield from _fitting(document, release, key, catalog)


def fitting(document: Mapping[str, Json], entry: Entry, catalog: Catalog) -> Iterator[Fitting]:
    """The numbers with which an entry of one release would fit, one changed at a time."""
    if len(entry.releases) == 1:
        (release,) = entry.releases
        for key in _VARIED[str(release["kind"])]:
            if key != "times" or release.get("times", 1) > 1:
                yield from _fitting(document, release, key, catalog)


def _with_release(document: Mapping[str, Json], release: Mapping[str, Json]) -> dict[str, Json]:
    mechanism = document["mechanism"]
    added = {"name": "one-more", **thaw(release)}
    if "sample" in added:  # another sample than the entries have
        added["sample"] = _unused(str(added["sample"]), _samples(mechanism["releases"]))
    releases = [*mechanism["releases"], added]
    return {**document, "mechanism": {**mechanism, "releases": releases}}


def _fitting(
    document: Mapping[str, Json], release: Mapping[str, Json], key: str, catalog: Catalog
) -> Iterator[Fitting]:
    from dpspec.engine.calibration import calibrate_spec

    spec = from_document(_with_release(document, release), catalog)
    vary = f"mechanism.releases.{len(document['mechanism']['releases'])}.{key}"
    try:
        calibration: Calibration = calibrate_spec(spec, catalog, vary=vary, relative=_PRECISION)
    except UsageError:  # no tried value changes the verdict: the budget is full, or the release costs nothing
        return
    if calibration.proved is not None:
        value, at_most = calibration.proved.value, not calibration.more_helps
        yield Fitting(kind=str(release["kind"]), key=key, value=value, at_most=at_most)
