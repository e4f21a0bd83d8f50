"""Descriptors of providers and interfaces of their code, which ``package.module:Attribute`` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dpspec.contract.findings import Assumption, Facts
from dpspec.contract.frozen import FrozenMap, Json

if TYPE_CHECKING:
    import numpy as np
    import torch

#: A JSON Schema fragment (2020-12, keywords that draft-07 shares; every property carries a description).
Schema = Mapping[str, Json]


def no_keys() -> Schema:
    """The schema of a block without keys."""
    return {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, kw_only=True)
class Schemas:
    """Keys that a mechanism adds to the spec.

    Attributes:
        mechanism: The mechanism block without core's ``kind``, ``steps`` and ``phases``.
        threat_model: Additional keys.
        audit: Additional keys.
        claims: Additional keys per claim kind.
    """

    mechanism: Schema
    threat_model: Schema = field(default_factory=no_keys)
    audit: Schema = field(default_factory=no_keys)
    claims: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A value that a hook yields: it describes code and names it as text.

    Attributes:
        kind: The name that specs and commands use: lower-case letters, digits and hyphens.
        summary: One line for ``dpspec plugins`` and ``dpspec explain``.
    """

    kind: str
    summary: str


@dataclass(frozen=True, kw_only=True)
class TrialProvider(Provider):
    """A provider whose code determines trials.

    Attributes:
        trial_revision: Part of every trial's cache key. Increase it when trials change.
        revision_only: Whether trials change only with ``trial_revision``. Otherwise the distribution's version and code
            are part of the cache key as well.
    """

    trial_revision: int = 1
    revision_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Mechanism(TrialProvider):
    """A mechanism that can be audited. Core rejects specs that a flag below does not allow.

    Attributes:
        claims: Supported claim kinds.
        audit: Name of its :class:`~dpspec.contract.audit.Audit`.
        example: A whole spec as YAML, which the conformance suite validates and runs.
        steps: Whether core adds ``steps`` and ``phases`` to the block (an iterative mechanism).
        missing: Whether features may be missing (NaN).
        tokens: Whether records may be texts (``Facts.vocabulary``), so that no step treats features as quantities.
        chosen_weights: Whether bounds hold for every initial model shared by both neighbors, so that an adversary may
            choose it (``model.initial: worst-case``).
        units: Supported values of ``threat_model.unit``.
        accesses: Supported values of ``threat_model.access``.
        canaries: Spaces, ``gradient`` and ``input``, in which its attack inserts canaries of the hook
            ``dpspec_attacks``. Core then resolves ``audit.canary.kind``, and ``context.attack`` makes them.
        scores: Whether it uses scores of that hook. Core then resolves ``audit.score``.
        losses: Whether it trains with the loss that ``training.loss`` selects, and its bounds hold for every loss.
        real_targets: Whether it trains on real-valued targets, which have no classes and no accuracy.
        description: A noun phrase for readers outside the field, such as ``training with noise (DP-SGD)``.
        recordable: Whether a recorded run shows everything that the mechanism does (backends with ``recording``).
        assumptions: Modules whose top-level assumptions ``dpspec explain`` prints. More texts by name are its ``TEXTS``
            (assumptions), ``CHECKS`` and ``MEANINGS`` (whole paragraphs).
        metrics: Names that claims ``kind: metric`` may have, because its trials measure them. None if it does not say;
            a claim about another metric is then open after the training.
    """

    schemas: Schemas
    claims: frozenset[str]
    audit: str
    example: str
    steps: bool = True
    missing: bool = False
    units: frozenset[str] = frozenset({"record"})
    accesses: tuple[str, ...] = ("all-iterates", "final-model")
    tokens: bool = False
    chosen_weights: bool = False
    canaries: frozenset[str] = frozenset()
    scores: bool = False
    losses: bool = False
    real_targets: bool = False
    description: str = ""
    recordable: bool = False
    assumptions: tuple[str, ...] = ()
    metrics: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Dataset(TrialProvider):
    """A data kind. ``source`` names a class that implements :class:`DataSource`."""

    schema: Schema
    source: str


@dataclass(frozen=True, kw_only=True)
class Model(TrialProvider):
    """A model kind. ``factory`` names a class that implements :class:`ModelFactory`; ``tokens``: it takes texts."""

    schema: Schema
    factory: str
    tokens: bool = False


#: Losses (b,) of records by outputs (b, k) and labels (b,).
RecordLoss: TypeAlias = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class Loss(TrialProvider):
    """A loss for ``training.loss``, the function that training differentiates for every record.

    Attributes:
        function: Names a function ``(outputs, targets, **options) -> losses`` of outputs (b, k) and labels (b,), int64,
            that returns one value per record (b,), from the record's own row alone. dpspec checks that. Real-valued
            targets are float32, with outputs (b, 1).
        targets: The supported targets, ``class`` and ``real``.
        schema: The loss's own keys in ``training.loss``.
    """

    function: str
    schema: Schema = field(default_factory=no_keys)
    targets: tuple[str, ...] = ("class", "real")


#: Capabilities of a backend: reports to observers, and gradient canaries.
CAPABILITIES = frozenset({"iterates", "sampling-log", "noise-log", "norm-log", "gradient-canaries", "parts"})


@dataclass(frozen=True, kw_only=True)
class Backend(TrialProvider):
    """A training backend. ``trainer`` names a class that implements :class:`Trainer`, without constructor arguments.

    Attributes:
        as_declared: Training options with which the backend follows the declaration if its defaults do not.
        constants: The assumption ``data-independent-hyperparameters`` about divisor, sampling rate, clip norm and
            schedule, or the name of an assumption or of a function of the spec that returns it. ``by-construction``:
            they come from the job; ``false``: one is computed from the records, which proves no claim. Default:
            unknown, and proofs become ``supported``.
        users: Whether it supports ``sampling.unit: user``.
        losses: Whether it trains with ``job.loss``.
        schemes: The sampling schemes that it supports; None for all.
        recording: Name of the reader of an executed run, for a backend that reads a recording instead of training.
        folders: Name of its :class:`~dpspec.contract.results.RunFolders`, for commands that accept a folder.
    """

    schema: Schema
    capabilities: frozenset[str]
    trainer: str
    as_declared: FrozenMap = field(default_factory=FrozenMap)
    constants: Assumption | str = ""
    users: bool = False
    losses: bool = False
    schemes: frozenset[str] | None = None
    recording: str = ""
    folders: str = ""


@dataclass(frozen=True, kw_only=True)
class Reporter:
    """A report format. ``render`` names a function ``(result, *, internal: bool) -> str``.

    Attributes:
        void_bounds: Whether the function receives bounds, curves and remedies of an executed run that deviates. They do
            not apply to this run. Only a format for programs, which states the conformance, should have them.
    """

    format: str
    summary: str
    render: str
    suffix: str
    void_bounds: bool = False


@dataclass(frozen=True, kw_only=True)
class Executor(Provider):
    """An executor of tasks. ``pool`` names a function or class ``(demand) -> Pool``."""

    pool: str


@dataclass(frozen=True, kw_only=True)
class LoadedData:
    """Rows in memory: float32 features (n, *shape), int64 labels (n,) or float32 real-valued targets (n,).

    Features are finite, or NaN for declared missing values. ``owners`` (n,) int64 holds the user of each training
    record, counted from 0; None if unknown.
    """

    train_x: np.ndarray[Any, Any]
    train_y: np.ndarray[Any, Any]
    test_x: np.ndarray[Any, Any]
    test_y: np.ndarray[Any, Any]
    owners: np.ndarray[Any, Any] | None = None


class DataSource(Protocol):
    """Reads a dataset. Constructed as ``Source(options, directory)``. Raises ``DataError`` for invalid files."""

    def __init__(self, options: FrozenMap, directory: FilePath) -> None: ...

    def facts(self) -> Facts:
        """Public facts, without torch and as cheaply as the format allows."""

    def load(self) -> LoadedData:
        """Load the rows."""


class ModelFactory(Protocol):
    """Builds a model. Constructed as ``Factory(options, facts)``. Raises ``ValueError`` if they are incompatible."""

    def __init__(self, options: FrozenMap, facts: Facts) -> None: ...

    def parameters(self) -> int:
        """Number of trainable parameters, without torch."""

    def build(self, seed: int) -> torch.nn.Module:
        """A newly initialized module, float32 on the CPU, determined by the seed."""


class GradientCanaries(Protocol):
    """Canaries with a fixed gradient at every step, independent of the model. Canary i is record ``n + i``."""

    @property
    def count(self) -> int:
        """Number of inserted canaries."""

    def gradients(self, indices: torch.Tensor) -> torch.Tensor:
        """Gradients (b, parameters) of canaries ``indices`` (b,), before clipping."""


class Observer:
    """Receives a run's released models and the backend's reports. All methods do nothing by default.

    Steps count from 1; step 0 is the initial model. Tensors are valid only during the call. Resumable observers
    override ``state`` and ``restore``.
    """

    def released(self, step: int, state: torch.Tensor) -> None:
        """Model (parameters,) after ``step`` updates, in ``parameters()`` order (``iterates``)."""

    def counted(self, step: int, clip_norm: float, count: float, noise: float) -> None:
        """The step's clip norm, the noisy count that chooses the next one, and the noise in the count (``parts``).

        Adaptive clipping only, before the step's other reports. Clip norms and counts are released.
        """

    def sampled(self, step: int, indices: torch.Tensor) -> None:
        """Records in the step's batch, including canaries (``sampling-log``)."""

    def noised(self, step: int, noise: torch.Tensor) -> None:
        """Noise (parameters,) added to the sum of clipped gradients (``noise-log``)."""

    def clipped(self, step: int, norms: torch.Tensor) -> None:
        """Norms (b,), float64, of the step's contributions after clipping (``norm-log``)."""

    def state(self) -> Mapping[str, np.ndarray[Any, Any]] | None:
        """State as named arrays; None if its run cannot be resumed."""
        return None

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restore the result of :meth:`state`."""
        raise TypeError(f"{type(self).__name__} cannot be restored")


@dataclass(frozen=True, kw_only=True)
class Resumable:
    """Place and interval at which a run stores its state, so that it can resume after a kill.

    Attributes:
        folder: Created on demand. Its owner removes it once the run's outcome is stored.
        seconds: Maximum lost work.
        steps: Save after this number of steps instead.
        resumed: Called with the completed and the total steps if the run continues from a stored state.
    """

    folder: FilePath
    seconds: float = 60.0
    steps: int | None = None
    resumed: Callable[[int, int], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training run as the spec declares it.

    Attributes:
        options: The spec's training block (learning_rate, reduction, ...).
        x: Training records (n, ...) including input canaries. If phases draw users: (users, k, ...), and batches,
            canaries and ``records`` count users.
        y: Labels (n,); for users (users, k), with -1 after the records of a user with fewer than k.
        expected_batch_size: A public constant, the divisor if ``reduction`` is mean; never the realized size.
        records: Public number of records without canaries, which determines rates and divisors. None: ``len(x)``.
        resumable: Where the run may store its state. Backends without support restart from the beginning.
        loss: The losses of records; None for cross entropy.
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
    loss: RecordLoss | None = None

    @property
    def public_records(self) -> int:
        """Public number of records."""
        return len(self.x) if self.records is None else self.records


class Trainer(Protocol):
    """Trains a job's model in place and reports to its observers."""

    def train(self, job: TrainingJob) -> None:
        """Run the job. Raises ``Cancelled`` at the next step once ``job.cancelled()`` is true."""


class Cancelled(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a trainer to stop on request."""


class MissingArrayError(ValueError):
    """A conclusion needs an array of a trial that is not available, because results contain only evidence."""


class ModelError(ValueError):
    """The model cannot be trained as declared; the message names the layer, the reason and the fix."""


class DataError(Exception):
    """A data file is missing, has the wrong shape or contains invalid values.

    Args:
        message: The file, the place in it, the rule and the fix, without values of records.
        key: The responsible key of the spec's ``data``, or a place in the spec, ``audit.scores.path``.
        private: The value from the file. Only ``--internal`` shows it, because error messages end up in public logs.
    """

    def __init__(self, message: str, key: str = "", *, private: str | None = None) -> None:
        super().__init__(message)
        self.key, self.private = key, private
