"""Descriptors: what a plugin offers. They are light values; the code they name is imported only when it is needed.

Code is named as ``package.module:Attribute``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Protocol

from dpspec.contract.findings import Assumption, Facts
from dpspec.contract.frozen import FrozenMap, Json

if TYPE_CHECKING:
    import numpy as np
    import torch

#: A JSON Schema fragment (2020-12, keywords that draft-07 shares; every property carries a description).
Schema = Mapping[str, Json]


def _nothing() -> Schema:
    return {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, kw_only=True)
class Schemas:
    """The keys that a mechanism adds to the spec.

    mechanism: the whole block without ``kind``, ``steps`` and ``phases``, which are core's.
    threat_model, audit: further keys beside core's own.
    claims: further keys per claim kind.
    """

    mechanism: Schema
    threat_model: Schema = field(default_factory=_nothing)
    audit: Schema = field(default_factory=_nothing)
    claims: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A mechanism that can be audited.

    claims: the claim kinds that it can judge.
    audit: names its :class:`~dpspec.contract.audit.Audit`.
    example: a whole spec as YAML text; the conformance suite validates and runs it.
    trial_revision: part of every trial's cache key: raise it when trials change.
    revision_only: whether trials change only when ``trial_revision`` is raised. Without it the version and the code of
        the distribution are part of every trial's cache key too, so that stored trials are of the code that is
        installed; the same holds of data sets, models and backends. dpspec's own go by their revisions.
    steps: whether core adds ``steps`` and ``phases`` to the block (an iterative mechanism) or not.
    missing: whether records may miss values, which are NaN then; other mechanisms are refused such data.
    tokens: whether records may be texts (``Facts.vocabulary``): whether nothing it does takes features for quantities;
        other mechanisms are refused such data.
    chosen_weights: whether its bounds hold for each initial model that both neighbours share, so that an adversary may
        choose it (``model.initial: worst-case``); other mechanisms are refused it.
    units: what its numbers can speak of one of; any other ``threat_model.unit`` is refused.
    accesses: what an adversary may see for its numbers to hold; any other ``threat_model.access`` is refused.
    canaries: the spaces, ``gradient`` and ``input``, in which its attack plants any kind that the hook
        ``dpspec_attacks`` offers: core then looks up ``audit.canary.kind``, and ``context.attack`` makes them.
    scores: whether it scores planted records by what that hook offers: core then looks up ``audit.score``.
    """

    kind: str
    summary: str
    schemas: Schemas
    claims: frozenset[str]
    audit: str
    example: str
    trial_revision: int = 1
    steps: bool = True
    missing: bool = False
    units: frozenset[str] = frozenset({"record"})
    accesses: tuple[str, ...] = ("all-iterates", "final-model")
    revision_only: bool = False
    tokens: bool = False
    chosen_weights: bool = False
    canaries: frozenset[str] = frozenset()
    scores: bool = False


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data kind. ``source`` names a class with the methods of :class:`DataSource`."""

    kind: str
    summary: str
    schema: Schema
    source: str
    trial_revision: int = 1
    revision_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model kind. ``factory`` names a class with the methods of :class:`ModelFactory`'s constructor.

    tokens: whether it takes texts (``Facts.vocabulary``); core refuses them for other kinds.
    """

    kind: str
    summary: str
    schema: Schema
    factory: str
    trial_revision: int = 1
    revision_only: bool = False
    tokens: bool = False


#: What a backend can show to observers, and what it can plant.
CAPABILITIES = frozenset({"iterates", "sampling-log", "noise-log", "norm-log", "gradient-canaries", "parts"})


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Who trains. ``trainer`` names a class with the method of :class:`Trainer`, constructed without arguments.

    ``as_declared`` are training options with which it does what specs declare, where its defaults do not: the
    conformance suite tries it with these.
    ``constants`` says where divisor, sampling rate, clip norm and schedule of a run come from: the assumption
    ``public-constants``, or the name of one, or of a function of the spec
    that gives it. ``by-construction``: they are the job's,
    whatever its records are; ``false``: one of them is computed from the records, and then nothing is proved. Where it
    is left out nobody knows, and what would be proved is ``supported``.
    users: whether it draws users where a phase says so (``sampling.unit: user``); without it core refuses such specs.
    """

    kind: str
    summary: str
    schema: Schema
    capabilities: frozenset[str]
    trainer: str
    trial_revision: int = 1
    as_declared: FrozenMap = field(default_factory=FrozenMap)
    revision_only: bool = False
    constants: Assumption | str = ""
    users: bool = False


@dataclass(frozen=True, kw_only=True)
class Reporter:
    """A report format. ``render`` names a function ``(result, *, internal: bool) -> str``."""

    format: str
    summary: str
    render: str
    suffix: str


@dataclass(frozen=True, kw_only=True)
class Executor:
    """A way to run tasks. ``pool`` names a function ``(demand) -> Pool`` or a class constructed so."""

    kind: str
    summary: str
    pool: str


@dataclass(frozen=True, kw_only=True)
class LoadedData:
    """Rows in memory: float32 features of shape (n, *shape), int64 labels of shape (n,).

    Features are finite, or NaN where a value is missing and the data block says how missing values are written.
    ``owners`` (n,) int64 says whose each training record is, users counted from 0; None where nothing says so.
    """

    train_x: np.ndarray[Any, Any]
    train_y: np.ndarray[Any, Any]
    test_x: np.ndarray[Any, Any]
    test_y: np.ndarray[Any, Any]
    owners: np.ndarray[Any, Any] | None = None


class DataSource(Protocol):
    """Reads one data set. Constructed as ``Source(options, directory)``; raises ``DataError`` on bad files."""

    def __init__(self, options: FrozenMap, directory: FilePath) -> None: ...

    def facts(self) -> Facts:
        """The public facts, without torch and as cheaply as the format allows."""

    def load(self) -> LoadedData:
        """The rows."""


class ModelFactory(Protocol):
    """Builds one model. Constructed as ``Factory(options, facts)``; raises ``ValueError`` where they do not fit."""

    def __init__(self, options: FrozenMap, facts: Facts) -> None: ...

    def parameters(self) -> int:
        """The number of trainable parameters, without torch."""

    def build(self, seed: int) -> torch.nn.Module:
        """A freshly initialised module, float32 on the CPU; the seed decides its weights."""


class GradientCanaries(Protocol):
    """Records that have a gradient of their own at every step, whatever the model: one per planted record.

    ``count`` records stand behind the real ones: record ``n + i`` is canary record ``i``.
    """

    @property
    def count(self) -> int:
        """How many canary records are planted."""

    def gradients(self, indices: torch.Tensor) -> torch.Tensor:
        """Shape (b, parameters): the gradients of canary records ``indices`` (b,), before clipping."""


class Observer:
    """Sees what a run releases and, where the backend can tell, what it did. All methods do nothing by default.

    Steps count from 1; step 0 is the initial model. Tensors are valid during the call only: copy what you keep.

    An observer that can be resumed overrides ``state`` and ``restore``: a run that is resumed at a later step shows it
    the steps that follow, as if it had seen those before.
    """

    def released(self, step: int, state: torch.Tensor) -> None:
        """``state`` (parameters,): the model after ``step`` updates, in ``parameters()`` order (``iterates``)."""

    def sampled(self, step: int, indices: torch.Tensor) -> None:
        """``indices``: the records that the step drew, canary records included (``sampling-log``)."""

    def noised(self, step: int, noise: torch.Tensor) -> None:
        """``noise`` (parameters,): what was added to the sum of clipped gradients (``noise-log``)."""

    def clipped(self, step: int, norms: torch.Tensor) -> None:
        """``norms`` (b,), float64: the norms of the step's contributions after clipping (``norm-log``)."""

    def state(self) -> Mapping[str, np.ndarray[Any, Any]] | None:
        """What it has seen so far, as named arrays; None where it cannot tell, and then its run cannot be resumed."""
        return None

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on from what :meth:`state` gave."""
        raise TypeError(f"{type(self).__name__} cannot be restored")


@dataclass(frozen=True, kw_only=True)
class Resumable:
    """Where a run keeps its state, so that a killed run goes on, and how often it is saved.

    folder: made when it is first needed; the run's files in it are no one else's business, and whoever chose the
        folder removes it once the run's outcome is stored.
    seconds: at most this much work is lost.
    steps: save after every so many steps instead.
    """

    folder: FilePath
    seconds: float = 60.0
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training run, as the spec declares it.

    phases: per phase ``steps``, ``noise_multiplier``, ``clip_norm``, ``sampling`` (scheme, rate or batch_size).
    options: the spec's training block (learning_rate, reduction, ...).
    x, y: the training records; input canaries stand among them, gradient canaries in ``canaries``. Where phases draw
        users, one entry is a user: x (users, k, ...) and y (users, k), with label -1 behind the records of a user who
        has fewer than k. Batches, canaries and ``records`` then count users.
    expected_batch_size: a public constant, the divisor where ``reduction`` is mean; never the realised size.
    records: the public number of records, what an attack plants not counted among them: rates and divisors follow from
        it and not from ``len(x)``. None: it is ``len(x)``.
    resumable: where the run may keep its state while it lasts; a backend that cannot starts anew.
    """

    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    model: torch.nn.Module
    phases: Sequence[FrozenMap]
    options: FrozenMap
    expected_batch_size: float
    device: str
    seed: int
    canaries: GradientCanaries | None = None
    observers: Sequence[Observer] = ()
    progress: Callable[[int, int], None] | None = None
    cancelled: Callable[[], bool] | None = None
    resumable: Resumable | None = None
    records: int | None = None

    @property
    def public_records(self) -> int:
        """The public number of records."""
        return len(self.x) if self.records is None else self.records


class Trainer(Protocol):
    """Trains one job in place (``job.model`` ends trained) and shows its observers what the backend can."""

    def train(self, job: TrainingJob) -> None:
        """Run the job; raises ``Cancelled`` at the next step once ``job.cancelled()`` is true."""


class Cancelled(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a trainer that was asked to stop."""


class MissingArrayError(ValueError):
    """What follows from trials needs an array of theirs that is not at hand: a result carries their evidence alone."""


class ModelError(ValueError):
    """The model cannot be trained as the spec asks; the text says which layer, why, and what to use instead."""


class DataError(Exception):
    """A data file is absent, has the wrong shape or holds values that cannot be used; the text says which.

    key: the key of the spec's ``data`` that is at fault, where one is; or a place in the spec, ``audit.scores.path``.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key
