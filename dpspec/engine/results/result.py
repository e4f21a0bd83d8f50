"""What a run ends with: every number, every verdict, and enough evidence to recompute both. Plain frozen values.

``dpspec.engine.results.codec`` writes and reads them as JSON of the published schema ``dpspec/result/v2``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, TypeAlias

from dpspec.contract import Check, Evidence, Facts, Finding, FrozenMap, Json, Power, Series
from dpspec.contract.findings import data_frame
from dpspec.engine.results.matrices import Matrix, joined_series, matrices
from dpspec.engine.results.recording import Recording
from dpspec.errors import ExitCode

SCHEMA = "dpspec/result/v2"

#: Schema of versions before 0.3, which has other words for statuses and checks (:mod:`dpspec.contract.renamed`).
SCHEMA_1 = "dpspec/result/v1"

VerdictName: TypeAlias = Literal["contradicted", "refuted", "proved", "supported", "open"]
ConformanceName: TypeAlias = Literal["no-deviation-found", "deviates", "checks-missing", "not-run"]


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One stored trial as the result embeds it: its evidence, and its arrays by digest.

    ``recorded`` says where it was made, and by what: device, versions, seconds, date, and under ``by`` the plugins.
    """

    index: int
    key: str
    evidence: FrozenMap
    arrays: FrozenMap = field(default_factory=FrozenMap)
    recorded: FrozenMap = field(default_factory=FrozenMap)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement of one claim.

    claimed: the claimed value (epsilon, mu, ...), ``quantity`` what it is a value of.
    upper, lower: the best bounds in scope, each with its rigor, method and source (indices into the audit's findings);
    provable, refutable: the least value that this run could have proved (the best upper bound in scope) and the
        largest that it could have refuted with perfect guesses; None where there is no such thing.
    p_value: the smallest, adjusted by Holm over the invocation, among the tests of the claim's own curve.
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


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """Whether what ran is what was declared: rejected at 1e-6 per invocation, or not; ``checks-missing`` where the plan
    promised a check that the run did not make, ``not-run`` where nothing was looked at."""

    status: ConformanceName
    expect: str
    expected: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """One spec, one cell of its matrix, audited.

    settled_after: the number of trials after which every claim was decided, where the run ended before its plan did.
    promised: the checks that the plan promised, with nothing measured in them.
    left_out: how many values of each privacy class ``dpspec.engine.redact`` removed; empty where none was.
    places: where each claim stands: its id to ``file``, ``line`` and ``column``; empty for a spec that is in no file.
    stored_trials: how many of the trials were in the store before the run that the result is of.
    recording: what a recorded training shows besides; None for all others.
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
    settled_after: int | None = None
    power: tuple[Power, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    left_out: FrozenMap = field(default_factory=FrozenMap)
    places: FrozenMap = field(default_factory=FrozenMap)
    stored_trials: int = 0
    promised: tuple[Check, ...] = ()
    recording: Recording | None = None

    @property
    def complete(self) -> bool:
        """Whether every trial is there that was planned, or that was needed."""
        return len(self.trials) == self.needed_trials

    @property
    def executed(self) -> bool:
        """Whether something was trained, and all of it: then every check that was promised must be there."""
        return bool(self.trials) and self.complete

    @property
    def needed_trials(self) -> int:
        """How many trials there must be."""
        return self.planned_trials if self.settled_after is None else self.settled_after

    @property
    def as_expected(self) -> bool:
        """Whether every verdict and the conformance came out as the spec expects."""
        return self.conformance.expected and all(v.expected for v in self.verdicts)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the results that a joined one was put together from: its file, and all that its audits do not hold.

    names: what its audits are called there, in their order; a joined result tells audits of one name apart.
    """

    source: str
    names: tuple[str, ...]
    confidence: float
    created: str
    environment: FrozenMap
    notes: tuple[str, ...] = ()


#: What a row of :meth:`Result.columns` says of its claim.
_OF_CLAIM = (
    "claim", "kind", "says", "verdict", "expected", "quantity", "claimed", "lower", "upper", "p_value",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Result:
    """One invocation: all its audits, judged together.

    ``confidence`` is the family-wise one over the invocation; ``environment`` records versions and the machine.
    ``parts``: where results of several invocations were joined (``dpspec.engine.results.joined``), each of which was
    judged by itself, what they are besides their audits; empty for one invocation.
    """

    audits: tuple[AuditResult, ...]
    confidence: float
    created: str
    environment: FrozenMap
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    schema: str = SCHEMA

    @property
    def complete(self) -> bool:
        """Whether no audit misses a trial."""
        return all(a.complete for a in self.audits)

    @property
    def exit_code(self) -> ExitCode:
        """0 when everything came out as expected, 6 when trials are missing, 1 otherwise."""
        if not self.complete:
            return ExitCode.INCOMPLETE
        return ExitCode.OK if all(a.as_expected for a in self.audits) else ExitCode.UNEXPECTED

    @property
    def matrices(self) -> tuple[Matrix[AuditResult], ...]:
        """The matrices that two or more of the audits are cells of, in the order of their first cells."""
        origins = [part.source for part in self.parts for _ in part.names] or [""] * len(self.audits)
        return matrices(self.audits, origins)

    def to_frame(self) -> Any:
        """The claims as a ``pandas.DataFrame``, one row each, numbers unrounded, a column for each axis of a matrix.

        An axis whose name another column has is called by its whole place in the spec. Raises ``MissingLibraryError``,
        a ``UsageError`` and an ``ImportError``, without pandas.
        """
        return data_frame(self.columns())

    def columns(self) -> dict[str, list[Json]]:
        """What :meth:`to_frame` shows, by the names of its columns."""
        rows = [(audit, verdict) for audit in self.audits for verdict in audit.verdicts]
        of_claims: dict[str, list[Json]] = {
            name: [getattr(verdict, name if name != "says" else "text") for _, verdict in rows] for name in _OF_CLAIM
        }
        columns: dict[str, list[Json]] = {"audit": [audit.name for audit, _ in rows]}
        for matrix in self.matrices:
            for place, short in matrix.axes.items():
                name = place if short in {"audit", "conformance", *_OF_CLAIM} else short
                column = columns.setdefault(name, [None] * len(rows))
                for number, (audit, _) in enumerate(rows):
                    if any(audit is one for one in matrix.audits):
                        column[number] = audit.cell.get(place)
        return {**columns, **of_claims, "conformance": [audit.conformance.status for audit, _ in rows]}

    def series(self, name: str) -> Series:
        """The series of this name of all audits as one, for figures across a matrix.

        A column for the audit and one for each axis stand before its own. Raises ``UsageError`` where no audit has one,
        naming those that there are.
        """
        return joined_series(self.audits, self.matrices, name)

    def _repr_html_(self) -> str:
        return html_frame(self)


def html_frame(result: object) -> str:
    """The HTML report of a result inside an ``iframe`` that can reach neither the notebook nor any server.

    Data-dependent and per-record values are left out, as in every report.
    """
    from dpspec.registry.foreign_code import resolve
    from dpspec.registry.loader import load_catalog

    render: Any = resolve(load_catalog().reporters["html"].provider.render)
    page = escape(render(result), quote=True)
    style = "width:100%;height:44rem;border:1px solid #8884"
    return f'<iframe sandbox="allow-scripts" style="{style}" title="dpspec report" srcdoc="{page}"></iframe>'
