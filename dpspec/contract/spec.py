"""The spec as plugins see it: resolved, validated, defaults filled in, immutable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dpspec.contract.attacks import Canary, Score
from dpspec.contract.diagnostics import Path, Span
from dpspec.contract.findings import Privacy
from dpspec.contract.frozen import FrozenMap, Json, thaw
from dpspec.contract.phase import Phase

Adjacency: TypeAlias = Literal["add-remove", "replace-one", "zero-out"]
Access: TypeAlias = Literal["all-iterates", "final-model", "transcript"]
Direction: TypeAlias = Literal["add", "remove", "both"]


@dataclass(frozen=True)
class Section:
    """A block of the spec whose ``kind`` chooses a provider and whose ``options`` that provider's schema describes."""

    kind: str
    options: FrozenMap = field(default_factory=FrozenMap)

    def __getitem__(self, key: str) -> Json:
        return self.options[key]

    def get(self, key: str, default: Json = None) -> Json:
        """The option ``key``, or ``default`` where the spec does not give it."""
        return self.options.get(key, default)


def phases_of(options: FrozenMap) -> tuple[FrozenMap, ...]:
    """A mechanism's options once per phase, in order: each a :class:`Phase`, as ``Phase.all_of`` gives them."""
    return Phase.all_of(options)


def expected_batch_size(training: Mapping[str, Json], phases: Sequence[FrozenMap], records: int) -> float:
    """The divisor of a run whose ``reduction`` is mean, at least 1.

    It is what ``training.expected_batch_size`` declares, or else the sampling rate of the first phase times
    ``records``, the number of records that is taken as public: never the size of a batch that was drawn.
    """
    declared = training.get("expected_batch_size")
    if declared is not None:
        return float(declared)
    return max(1.0, Phase.of(phases[0]).expected_batch(records))


#: The keys of a data block that say how many records a user has at most, the one that decides first.
RECORDS_PER_USER = ("max_records_per_user", "records_per_user")


def records_per_user(data: Mapping[str, Json]) -> int | None:
    """At most so many records are one user's, as a data block declares or sees to; None where it does not say."""
    said = (data.get(key) for key in RECORDS_PER_USER)
    return next((one for one in said if isinstance(one, int) and not isinstance(one, bool)), None)


def unit_in_words(unit: str, data: Mapping[str, Json]) -> str:
    """A unit of privacy with all that decides what it means: of users, how many records one has at most.

    >>> unit_in_words("user", {"records_per_user": 8}), unit_in_words("record", {})
    ('user (at most 8 records)', 'record')
    """
    most = records_per_user(data) if unit == "user" else None
    return unit if most is None else f"{unit} (at most {most} record{'s' * (most != 1)})"


@dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """Who the adversary is and what counts as a neighbour; ``options`` holds a plugin's own keys.

    ``min_records`` and ``neighbours`` restrict the pairs of data sets that are spoken of, as in ``Scope``.
    """

    adjacency: Adjacency = "add-remove"
    unit: str = "record"
    access: Access = "all-iterates"
    direction: Direction = "both"
    group_size: tuple[int, ...] = (1,)
    min_records: int = 0
    neighbours: str = "all"
    options: FrozenMap = field(default_factory=FrozenMap)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement to be judged.

    ``options`` holds the claim kind's own numbers (epsilon, delta, ...). The scope keys default to the threat
    model's; ``record`` narrows the claim to one record, ``over`` to a declared collection of data sets.
    ``expect`` lists the verdicts with which the claim counts as having come out as expected. ``refuted_by`` is ``any``,
    or ``attack`` for a control that shall fall by what an attack saw, and not by a certified bound. ``group_size``
    counts units, and ``unit`` says what one is, as in ``Scope``.
    """

    id: str
    kind: str
    options: FrozenMap
    adjacency: Adjacency
    access: Access
    direction: Direction
    group_size: int = 1
    min_records: int = 0
    neighbours: str = "all"
    record: int | None = None
    over: str | None = None
    expect: tuple[str, ...] = ("proved",)
    refuted_by: str = "any"
    unit: str = "record"

    def __getitem__(self, key: str) -> Json:
        return self.options[key]


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How the pipeline is attacked; ``options`` holds the method's and the plugin's own keys.

    canary, score: what the hook ``dpspec_attacks`` offers under the names in ``options``, for mechanisms that take it;
        they stay outside equality, as the names decide.
    """

    method: str
    runs: int = 1
    confidence: float = 0.95
    seed: int = 0
    expect: str = "conforms-within"
    options: FrozenMap = field(default_factory=FrozenMap)
    canary: Canary | None = field(default=None, compare=False, repr=False)
    score: Score | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One audit: a resolved spec, one cell of its matrix.

    ``document`` is the whole resolved mapping with every schema default filled in; ``digest`` is the SHA-256 of
    the canonical JSON of all that it decides: not of its name, its description and what it ``requires``. ``origin``
    says where each value was written, ``directory`` what relative files are relative to; both stay outside equality
    and hash.
    """

    name: str
    description: str
    mechanism: Section
    data: Section
    model: Section | None
    training: Section
    threat_model: ThreatModel
    claims: tuple[Claim, ...]
    audit: AuditOptions | None
    cell: FrozenMap
    document: FrozenMap
    digest: str
    origin: Mapping[Path, Span] = field(default_factory=dict, compare=False, repr=False)
    directory: str = field(default=".", compare=False)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The mechanism's options once per phase, in order; a spec without ``phases`` has exactly one.

        Each phase carries ``steps`` and every mechanism option, the phase's own values first.
        """
        return Phase.all_of(self.mechanism.options)

    @property
    def steps(self) -> int:
        """The number of updates over all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def unit(self) -> str:
        """What one unit of privacy is, as scopes and claims say it: ``record``, ``user (at most 8 records)``."""
        return unit_in_words(self.threat_model.unit, self.data.options)

    @property
    def records_per_unit(self) -> int:
        """How many records one unit has at most: 1, or of users what the data block bounds (1 where it does not)."""
        return (records_per_user(self.data.options) or 1) if self.threat_model.unit == "user" else 1

    @property
    def data_privacy(self) -> Privacy:
        """How sensitive a number is that is measured on all of the data: public only where the spec says it may be."""
        return "public" if self.data.get("public", False) else "data-dependent"

    def to_json(self) -> dict[str, Json]:
        """The resolved document as plain JSON."""
        plain: dict[str, Json] = thaw(self.document)
        return plain
