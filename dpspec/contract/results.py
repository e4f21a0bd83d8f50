"""The result of a run: all numbers and verdicts with the evidence to recompute both. Plain frozen values.

``dpspec.results.codec`` writes and reads them as JSON of the published schema ``dpspec/result/v2``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from dpspec import decimals
from dpspec.contract.audit import Outcome, Power
from dpspec.contract.catalog import Catalog
from dpspec.contract.executed import ExecutedSection, FiredRule
from dpspec.contract.findings import Assumption, Check, Evidence, Facts, Finding, Series, data_frame
from dpspec.contract.frozen import FrozenMap, Json
from dpspec.contract.rules import LARGE_DELTA, LARGE_DELTA_FIX, LARGE_DELTA_WHY, large_delta
from dpspec.errors import ArgumentError, ExitCode
from dpspec.text import spaced


@dataclass(frozen=True, kw_only=True)
class ExecutedRun:
    """Contribution of a recorded run to the audit of its spec.

    ``assumptions`` are additional ones of the bounds of a declared mechanism; ``findings`` bound the executed schedule,
    or are the lower bound from canaries. ``series`` holds its privacy profile.
    """

    checks: tuple[Check, ...]
    assumptions: tuple[Assumption, ...]
    findings: tuple[Finding, ...]
    evidence: tuple[Evidence, ...]
    section: ExecutedSection
    series: tuple[Series, ...] = ()

    def joined(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """The outcomes of a declared mechanism with the assumptions of the recording, and its own outcomes.

        Without lower bounds, and without bounds that the recording states itself: whether the worst case is attained
        depends on the executed updates.
        """

        def bounded(finding: Finding) -> tuple[str, FrozenMap, str]:
            return finding.quantity, finding.at, finding.scope.adjacency

        recorded_bounds = {bounded(finding) for finding in self.findings if finding.bound == "upper"}
        names = {assumption.name for assumption in self.assumptions}
        for outcome in outcomes:
            if not isinstance(outcome, Finding):
                yield outcome
            elif outcome.bound != "lower" and bounded(outcome) not in recorded_bounds:
                remaining = [assumption for assumption in outcome.assumptions if assumption.name not in names]
                yield replace(outcome, assumptions=(*remaining, *self.assumptions))
        yield from self.checks
        yield from (replace(finding, recorded=True) for finding in self.findings)
        yield from self.evidence
        yield from (replace(series, recorded=True) for series in self.series)


class RunFolders(Protocol):
    """Folders of executed runs for commands that are about anything else."""

    def judge(self, run: Path, catalog: Catalog, delta: float, adjacency: str) -> Result:
        """The result of an executed run without a claim."""

    def starter_spec(self, run: Path, catalog: Catalog, name: str, spec_folder: Path) -> str:
        """The text of a spec in ``spec_folder`` that gets the verdict of the run."""


SCHEMA = "dpspec/result/v2"

VerdictName: TypeAlias = Literal["contradicted", "refuted", "proved", "supported", "open"]

#: The verdicts of claims that an attack or a bound rejects.
REJECTED: tuple[VerdictName, ...] = ("refuted", "contradicted")

ConformanceName: TypeAlias = Literal["no-deviation-found", "deviates", "checks-missing", "not-run"]


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A stored trial in a result: its evidence, and its arrays by digest.

    ``recorded`` contains device, versions, seconds, date, and under ``by`` the plugins.
    """

    index: int
    key: str
    evidence: FrozenMap
    arrays: FrozenMap = field(default_factory=FrozenMap)
    recorded: FrozenMap = field(default_factory=FrozenMap)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement of one claim.

    Attributes:
        quantity: The quantity of the ``claimed`` value (epsilon, mu, ...).
        upper, lower: The best bounds in scope; ``upper_finding`` and ``lower_finding`` are their indices.
        provable: The best upper bound in scope, the smallest provable value; None without one.
        refutable: The largest value that perfect guesses would refute; None without one.
        p_value: The smallest p-value of the claim's tests, adjusted by Holm over the invocation.
        left_out: Whether it depends on a number that a redacted result omits.
    """

    claim: str
    kind: str
    text: str
    verdict: VerdictName
    expect: tuple[str, ...]
    expected: bool
    reason: str
    quantity: str
    claimed: float | None
    upper: float | None = None
    lower: float | None = None
    upper_finding: int | None = None
    lower_finding: int | None = None
    provable: float | None = None
    refutable: float | None = None
    p_value: float | None = None
    left_out: bool = False


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """Comparison of the executed run with its declaration, at level 1e-6 per invocation.

    ``checks-missing`` if the run lacks a check that the plan promised; ``not-run`` without checks.
    """

    status: ConformanceName
    expect: str
    expected: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change with which all failed claims of an audit are proved.

    Attributes:
        place: The number, as ``--set`` accepts it.
        now: Its value in the spec; None if the spec omits it.
        value: The value that was tried and proves the claims.
    """

    place: str
    now: float | None
    value: float


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """The audit of one spec, or of one cell of its matrix.

    Attributes:
        promised: The checks that the plan promised, without measurements.
        left_out: The number of values of each privacy class that ``dpspec.results.redact`` removed.
        places: By claim id, its ``file``, ``line`` and ``column``; empty for a spec without a file.
        stored_trials: The number of trials that the store had before the run.
        recording: The section of an executed training that a plugin observed; None for all others.
        remedies: Alternative changes that would prove the failed claims; empty if none was searched.
    """

    name: str
    source: str
    digest: str
    document: FrozenMap
    cell: FrozenMap
    facts: Facts
    verdicts: tuple[Verdict, ...]
    conformance: Conformance
    findings: tuple[Finding, ...]
    series: tuple[Series, ...]
    checks: tuple[Check, ...]
    evidence: tuple[Evidence, ...]
    trials: tuple[TrialRecord, ...]
    planned_trials: int
    power: tuple[Power, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    left_out: FrozenMap = field(default_factory=FrozenMap)
    places: FrozenMap = field(default_factory=FrozenMap)
    stored_trials: int = 0
    promised: tuple[Check, ...] = ()
    recording: ExecutedSection | None = None
    remedies: tuple[Remedy, ...] = ()

    def __repr__(self) -> str:
        """A line for each claim, with public bounds only, and one for each caution."""
        claims = [f"  {_shown(self, verdict)}" for verdict in self.verdicts]
        return "\n".join([f"AuditResult: {self.name}", *claims, *_caution_lines(self)])

    @property
    def complete(self) -> bool:
        """Whether all needed trials exist."""
        return len(self.trials) == self.planned_trials

    @property
    def executed(self) -> bool:
        """Whether the run trained all trials, so that every promised check must exist."""
        return bool(self.trials) and self.complete

    @property
    def as_expected(self) -> bool:
        """Whether every verdict and the conformance are as expected, and no rule fired that the user did not accept."""
        return not open_cautions(self) and self.conformance.expected and all(v.expected for v in self.verdicts)


def claim_block(audit: AuditResult, verdict: Verdict) -> Mapping[str, Json]:
    """The claim as the spec declares it; empty if the result's document lacks it."""
    blocks = audit.document.get("claims", ())
    for block in blocks if isinstance(blocks, list | tuple) else ():
        if isinstance(block, Mapping) and block.get("id") == verdict.claim:
            return block
    return {}


def open_cautions(audit: AuditResult) -> tuple[FiredRule, ...]:
    """The rules that fired and that the user does not accept."""
    return tuple(rule for _, rule in fired_rules(audit) if not rule.accepted)


def accepted_cautions(audit: AuditResult) -> tuple[FiredRule, ...]:
    """The rules that fired and that the user accepts, with a reason."""
    return tuple(rule for _, rule in fired_rules(audit) if rule.accepted)


def fired_rules(audit: AuditResult) -> Iterator[tuple[str, FiredRule]]:
    """The rules that fired on a recording, or on a claim of a spec, with the id of the claim."""
    if audit.recording is not None:
        yield from (("", rule) for rule in audit.recording.rules)
        return
    for verdict in audit.verdicts:
        block = claim_block(audit, verdict)
        delta, accept = block.get("delta"), block.get("accept")
        stands = bool({"proved", "supported"} & set(verdict.expect))
        if not stands or isinstance(delta, bool) or not isinstance(delta, int | float):
            continue
        if text := large_delta(delta, audit.facts.records):
            reason = accept.get(LARGE_DELTA, "") if isinstance(accept, Mapping) else ""
            text = f"Claim {verdict.claim}: {text}"
            yield (
                verdict.claim,
                FiredRule(name=LARGE_DELTA, text=text, why=LARGE_DELTA_WHY, fix=LARGE_DELTA_FIX, accepted=str(reason)),
            )


def _caution_lines(audit: AuditResult) -> list[str]:
    """The cautions, open and accepted."""
    states = (("open", open_cautions(audit)), ("accepted", accepted_cautions(audit)))
    return [f"  caution {state}: {rule.name}" for state, rules in states for rule in rules]


#: The maximum number of claims in the representation of a result.
_MOST_ROWS = 30


def _shown(audit: AuditResult, verdict: Verdict) -> str:
    """A claim, its verdict and the bounds that do not depend on the data."""
    ends = (
        (">=", decimals.lower, verdict.lower, verdict.lower_finding),
        ("<=", decimals.upper, verdict.upper, verdict.upper_finding),
    )
    bounds = [
        f"{spaced(verdict.quantity)} {sign} {rounded(end)}"
        for sign, rounded, end, number in ends
        if end is not None and number is not None and audit.findings[number].privacy == "public"
    ]
    surprise = "" if verdict.expected else ", not as expected"
    return f"{verdict.claim}: {verdict.verdict}{surprise}  {verdict.text}  {', '.join(bounds)}".rstrip()


@dataclass(frozen=True)
class Matrix:
    """At least two cells of one spec, with their indices in the result.

    ``axes`` are the dotted places that vary, named by as few last parts as are unique.
    """

    name: str
    axes: Mapping[str, str]
    audits: tuple[AuditResult, ...]
    numbers: tuple[int, ...]

    def values(self, audit: AuditResult) -> dict[str, Json]:
        """A cell's values by the axes' short names; None for the spec's own value."""
        return {name: audit.cell.get(axis) for axis, name in self.axes.items()}


def _unbounded(audit: AuditResult) -> bool:
    """Whether an epsilon of a recorded training is infinite, or canaries exceed its certified bound."""
    mechanism = audit.document.get("mechanism")
    delta = mechanism.get("delta") if isinstance(mechanism, Mapping) else None
    at_delta = [finding for finding in audit.findings if finding.at.get("delta") == delta]
    sized = [(finding.bound, finding.at.get("group_size", 1), finding.value) for finding in at_delta]
    upper = [(size, value) for bound, size, value in sized if bound == "upper"]
    above = any(b == "lower" and s == size and v > value for b, s, v in sized for size, value in upper)
    return above or any(math.isinf(value) for _, value in upper)


#: The columns of :meth:`Result.columns` about a claim.
_OF_CLAIM = (
    "claim", "kind", "says", "verdict", "expected", "quantity", "claimed", "lower", "upper", "p_value",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Unjudged:
    """An error of a spec, which has no audit for it: the invocation fails.

    Attributes:
        file: The file of the spec.
        line: The line of the error; 1 without one.
        message: The error.
        plugin: Whether only missing plugins prevent its audit.
    """

    file: str
    line: int
    message: str
    plugin: bool = False


@dataclass(frozen=True, kw_only=True)
class Regression:
    """What got worse since an earlier result: a claim, or an audit outside of its claims.

    Attributes:
        audit: The name of the audit.
        claim: The claim; empty for the audit.
        name: The first value that got worse, such as ``verdict``, ``upper``, ``conformance`` or a key of the spec.
        changes: Values before and after, such as ``epsilon 2.12516 -> 2.28271``; only those that readers of both
            results may see.
        because: Changes of the audit's declaration, such as ``mechanism.noise_multiplier 1.2 -> 1.15``.
    """

    audit: str
    claim: str
    name: str
    changes: tuple[str, ...] = ()
    because: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """One invocation: all its audits, judged together.

    ``confidence`` is family-wise over the audits; ``environment`` contains versions and the machine; ``unjudged`` the
    specs of the invocation that have errors. ``requires_claim`` is true for ``dpspec check``, which passes only with a
    claim; specs without claims report their bounds and pass. ``regressions`` fail ``--baseline``; None without it.
    """

    audits: tuple[AuditResult, ...]
    confidence: float
    created: str
    environment: FrozenMap
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA
    unjudged: tuple[Unjudged, ...] = ()
    requires_claim: bool = False
    regressions: tuple[Regression, ...] | None = None

    @property
    def complete(self) -> bool:
        """Whether no audit lacks a trial."""
        return all(a.complete for a in self.audits)

    @property
    def exit_code(self) -> ExitCode:
        """0 if all verdicts are as expected, 6 if trials are missing, 1 otherwise.

        Compared with an earlier result, 0 without a regression and 1 with one, for any verdicts. 3 if a spec
        has errors, or 4 if only plugins are missing. 5 if nothing is claimed about recorded trainings or
        a declared history, because no verdict says that they pass.
        """
        if self.unjudged:
            return ExitCode.PLUGIN if all(spec.plugin for spec in self.unjudged) else ExitCode.INVALID_SPEC
        if not self.complete:
            return ExitCode.INCOMPLETE
        if self.regressions is not None:
            return ExitCode.UNEXPECTED if self.regressions else ExitCode.OK
        if not all(audit.as_expected for audit in self.audits):
            return ExitCode.UNEXPECTED
        observed = self.requires_claim or all(audit.recording is not None for audit in self.audits)
        if not observed or any(audit.verdicts for audit in self.audits):
            return ExitCode.OK
        return ExitCode.UNEXPECTED if any(map(_unbounded, self.audits)) else ExitCode.NOTHING_TO_RUN

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices with at least two cells among the audits, in the order of their first cells."""
        groups: dict[tuple[str, str], list[int]] = {}
        for number, audit in enumerate(self.audits):
            if audit.cell:
                groups.setdefault((audit.source, base_name(audit)), []).append(number)
        matrices = []
        for (_, name), numbers in groups.items():
            audits = tuple(self.audits[number] for number in numbers)
            if len(audits) > 1:
                matrices.append(Matrix(name, _axes(audits), audits, tuple(numbers)))
        return tuple(matrices)

    def __repr__(self) -> str:
        """The outcome and a short table of the claims, with public bounds only."""
        number = f"{len(self.audits)} audit{'s' * (len(self.audits) != 1)}"
        head = f"Result: {number}, exit code {int(self.exit_code)}"
        head += "" if _views is None else f": {_views.headline(self)}"
        rows = [(audit, verdict) for audit in self.audits for verdict in audit.verdicts]
        lines = [f"  {audit.name}  {_shown(audit, verdict)}" for audit, verdict in rows[:_MOST_ROWS]]
        if len(rows) > _MOST_ROWS:
            lines.append(f"  ... and {len(rows) - _MOST_ROWS} more: to_frame()")
        lines += [line for audit in self.audits for line in _caution_lines(audit)]
        return "\n".join([head, *(lines or ["  nothing claimed"])])

    def to_frame(self) -> Any:
        """The claims as a ``pandas.DataFrame``, one row each, unrounded, with a column for each axis of a matrix.

        An axis has its whole place as a name if another column has its short name.

        Raises:
            MissingLibraryError: pandas is not installed.
        """
        return data_frame(self.columns())

    def columns(self) -> dict[str, list[Json]]:
        """The values of :meth:`to_frame` by column."""
        rows = [(audit, verdict) for audit in self.audits for verdict in audit.verdicts]
        of_claims: dict[str, list[Json]] = {
            name: [getattr(verdict, name if name != "says" else "text") for _, verdict in rows] for name in _OF_CLAIM
        }
        columns: dict[str, list[Json]] = {"audit": [audit.name for audit, _ in rows]}
        for matrix in self.matrices:
            for axis, short in matrix.axes.items():
                name = axis if short in {"audit", "conformance", *_OF_CLAIM} else short
                column = columns.setdefault(name, [None] * len(rows))
                for number, (audit, _) in enumerate(rows):
                    if any(audit is cell_audit for cell_audit in matrix.audits):
                        column[number] = audit.cell.get(axis)
        return {**columns, **of_claims, "conformance": [audit.conformance.status for audit, _ in rows]}

    def series(self, name: str) -> Series:
        """The joined series of this name, for figures across a matrix.

        A column for the audit and one for each axis precede its own.

        Raises:
            UsageError: No audit has such a series.
        """
        return joined_series(self.audits, self.matrices, name)

    def plot_tradeoff(self, claim: str, *, axes: Any = None) -> Any:
        """Plot the maximum power of membership inference by the proved bounds and a claim, with the attacks' points.

        Curves include all their vertices, so that no straight line between two nodes is below a bound. Values that
        depend on the data are omitted, as in every report.

        Args:
            claim: The id of a claim; of several audits with it, the first one is plotted.
            axes: The matplotlib axes; by default new ones.

        Returns:
            The axes.

        Raises:
            UsageError: No claim has this id, or no proved curve says something about membership inference.
            MissingLibraryError: matplotlib is not installed.
        """
        ids = sorted({verdict.claim for audit in self.audits for verdict in audit.verdicts})
        if claim not in ids:
            raise ArgumentError(f"no claim has the id {claim!r}; the claims are {', '.join(ids) or 'none'}")
        if _views is None:
            raise ArgumentError("a plot needs the reports: import dpspec.reporters first")
        return _views.plot_power(self, claim, axes)

    def _repr_html_(self) -> str | None:
        """The first screen of the HTML report, in an ``iframe`` without access to the notebook or any server.

        It omits data-dependent and per-record values, as every report. None, and so :func:`repr`, in a process that
        has not imported :mod:`dpspec.reporters`.
        """
        if _views is None:
            return None
        page = escape(_views.page(self), quote=True)
        style = "width:100%;height:36rem;border:1px solid #8884"
        return f'<iframe sandbox style="{style}" title="dpspec report" srcdoc="{page}"></iframe>'


class ResultViews(Protocol):
    """Views of a result for people, without data-dependent and per-record values."""

    def headline(self, result: Result) -> str:
        """The outcome in one sentence."""

    def page(self, result: Result) -> str:
        """The first screen of the HTML report."""

    def plot_power(self, result: Result, claim: str, axes: Any) -> Any:
        """Draw :meth:`Result.plot_tradeoff` of a claim that exists."""


_views: ResultViews | None = None


def use_views(views: ResultViews) -> None:
    """Let results show these views; :mod:`dpspec.reporters` calls it when it is imported, as by :mod:`dpspec.api`."""
    global _views
    _views = views


#: From strong to weak, and from public to secret.
_RIGOR = ("certified", "theorem", "statistical", "approximate")
_PRIVACY = ("public", "data-dependent", "per-record")


def base_name(audit: AuditResult) -> str:
    """The name of the spec, without the values of a cell."""
    return str(audit.document.get("name") or audit.name)


def joined_series(audits: Sequence[AuditResult], matrices: Sequence[Matrix], name: str) -> Series:
    """The joined series of this name: a column for the audit, one for each axis, and its own.

    A missing column holds None. The joined series has the weakest rigor and the strictest privacy of its parts; a
    column holds bounds if it does in all.
    """
    of_name = [(audit, series) for audit in audits for series in audit.series if series.name == name]
    if not of_name:
        names = dict.fromkeys(series.name for audit in audits for series in audit.series)
        raise ArgumentError(f"no audit has a series {name!r}; there are: {', '.join(names) or 'none'}")
    axes: dict[str, dict[str, Json]] = {audit.name: {} for audit in audits}
    for matrix in matrices:
        axes.update((audit.name, matrix.values(audit)) for audit in matrix.audits)
    first = of_name[0][1]
    own_columns = dict.fromkeys(column for _, series in of_name for column in series.columns)
    all_axes = dict.fromkeys(axis for audit, _ in of_name for axis in axes[audit.name])
    varying = [axis for axis in all_axes if axis not in own_columns]
    columns: dict[str, list[Json]] = {column: [] for column in ("audit", *varying, *own_columns)}
    for audit, series in of_name:
        rows = max(map(len, series.columns.values()), default=0)
        if "audit" not in own_columns:
            columns["audit"] += [audit.name] * rows
        for axis in varying:
            columns[axis] += [axes[audit.name].get(axis)] * rows
        for column in own_columns:
            columns[column] += list(series.columns.get(column, [None] * rows))

    def in_all(column: str, side: str) -> bool:
        return all(column not in series.columns or series.bounds.get(column) == side for _, series in of_name)

    return Series(
        name=name,
        title=first.title,
        columns=FrozenMap(columns),
        units=FrozenMap({**dict.fromkeys(columns, ""), **first.units}),
        rigor=max((series.rigor for _, series in of_name), key=_RIGOR.index),
        source="; ".join(dict.fromkeys(series.source for _, series in of_name)),
        privacy=max((series.privacy for _, series in of_name), key=_PRIVACY.index),
        bounds=FrozenMap({key: side for key, side in first.bounds.items() if in_all(key, side)}),
    )


def _axes(audits: Sequence[AuditResult]) -> dict[str, str]:
    axes_of_cells = list(dict.fromkeys(axis for audit in audits for axis in audit.cell))
    varying = [axis for axis in axes_of_cells if len({repr(audit.cell.get(axis)) for audit in audits}) > 1]
    varying = varying or axes_of_cells
    axes = {}
    for axis in varying:
        pieces = axis.split(".")
        ends = [pieces[-count:] for count in range(1, len(pieces) + 1)]
        other_axes = [other_axis.split(".") for other_axis in varying if other_axis != axis]
        axes[axis] = ".".join(next((end for end in ends if all(o[-len(end) :] != end for o in other_axes)), pieces))
    return axes
