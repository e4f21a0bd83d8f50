"""The resolved, validated, immutable spec with defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dpspec.contract.attacks import Canary, Score
from dpspec.contract.findings import Privacy
from dpspec.contract.frozen import FrozenMap, Json, thaw
from dpspec.contract.phase import Phase
from dpspec.errors import Path, Span

Adjacency: TypeAlias = Literal["add-remove", "replace-one", "zero-out"]
Access: TypeAlias = Literal["all-iterates", "final-model", "transcript"]
Direction: TypeAlias = Literal["add", "remove", "both"]


@dataclass(frozen=True)
class Section:
    """A block of the spec: ``kind`` selects a provider, whose schema describes ``options``."""

    kind: str
    options: FrozenMap = field(default_factory=FrozenMap)

    def __getitem__(self, key: str) -> Json:
        return self.options[key]

    def get(self, key: str, default: Json = None) -> Json:
        """The option ``key``, or ``default`` if the spec omits it."""
        return self.options.get(key, default)


def phases_of(options: FrozenMap) -> tuple[FrozenMap, ...]:
    """Phases of a mechanism's options, in order (``Phase.all_of``)."""
    return Phase.all_of(options)


def expected_batch_size(training: Mapping[str, Json], phases: Sequence[FrozenMap], records: int) -> float:
    """Divisor of a run with ``reduction: mean``, at least 1; never the size of a drawn batch.

    ``training.expected_batch_size``, or the first phase's sampling rate times the public number of ``records``.
    """
    declared = training.get("expected_batch_size")
    if declared is not None:
        return float(declared)
    return max(1.0, Phase.of(phases[0]).expected_batch(records))


#: Key of a data block for the curator's answers, which no provider reads.
COLLECTION = "collection"

#: Keys of a data block for the maximum number of records per user, by priority.
RECORDS_PER_USER = ("max_records_per_user", "records_per_user")


def records_per_user(data: Mapping[str, Json]) -> int | None:
    """Maximum number of records per user that a data block declares or enforces; None if it does neither."""
    said = (data.get(key) for key in RECORDS_PER_USER)
    return next((limit for limit in said if isinstance(limit, int) and not isinstance(limit, bool)), None)


def unit_in_words(unit: str, data: Mapping[str, Json]) -> str:
    """A privacy unit including the maximum number of records per user.

    >>> unit_in_words("user", {"records_per_user": 8}), unit_in_words("record", {})
    ('user (at most 8 records)', 'record')
    """
    most = records_per_user(data) if unit == "user" else None
    return unit if most is None else f"{unit} (at most {most} record{'s' * (most != 1)})"


@dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """The adversary and the neighboring relation; ``options`` holds a plugin's own keys.

    ``min_records`` is the minimum size of both datasets. ``neighbours`` restricts the neighboring pairs, for
    example to those with the same missing values. ``Scope`` has the same fields.
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
    """One statement to be judged. Scope keys default to the threat model's.

    Attributes:
        options: The claim kind's own numbers (epsilon, delta, ...).
        record: Restricts the claim to one record.
        over: Restricts the claim to a declared collection of datasets.
        expect: Expected verdicts.
        refuted_by: ``any``, or ``attack`` for a claim that only an attack may refute, not a certified bound.
        control: Whether the claim is false on purpose, to test the audit. None for the default, see
            ``dpspec.results.status.is_control``.
        accept: Reasons of accepted cautions by rule.
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
    control: bool | None = None
    accept: FrozenMap = field(default_factory=FrozenMap)
    unit: str = "record"

    def __getitem__(self, key: str) -> Json:
        return self.options[key]


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of the attack; ``options`` holds the method's and the plugin's own keys.

    Equality ignores ``canary`` and ``score``, the selected providers, because ``options`` names them.
    """

    method: str
    runs: int = 1
    confidence: float = 0.95
    seed: int = 0
    expect: str = "no-deviation-found"
    options: FrozenMap = field(default_factory=FrozenMap)
    canary: Canary | None = field(default=None, compare=False, repr=False)
    score: Score | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One audit: a resolved spec, one cell of its matrix.

    Attributes:
        document: The resolved mapping with all schema defaults.
        digest: SHA-256 of the canonical JSON without keys that change no verdict.
        origin: Where each value was written. Equality ignores it and ``directory``, the base folder of relative paths.
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
        """The mechanism's options per phase, in order; exactly one without ``phases``."""
        return Phase.all_of(self.mechanism.options)

    @property
    def steps(self) -> int:
        """Number of updates over all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def unit(self) -> str:
        """Privacy unit as in scopes and claims: ``record``, ``user (at most 8 records)``."""
        return unit_in_words(self.threat_model.unit, self.data.options)

    @property
    def records_per_unit(self) -> int:
        """Maximum number of records per unit: 1, or the data block's bound for users (1 if it has none)."""
        return (records_per_user(self.data.options) or 1) if self.threat_model.unit == "user" else 1

    @property
    def data_privacy(self) -> Privacy:
        """Privacy label of numbers measured on all data: public only if the spec allows it."""
        return "public" if self.data.get("public", False) else "data-dependent"

    def to_json(self) -> dict[str, Json]:
        """The resolved document as plain JSON."""
        plain: dict[str, Json] = thaw(self.document)
        return plain
