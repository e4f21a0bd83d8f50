"""The values of a recorded run that the judge of an observer reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from dpspec.stats.conformance.batch_checks import SamplingSums
from dpspec_recording.folder.audit_facts import AuditFacts
from dpspec_recording.folder.events import Header
from dpspec_recording.folder.facts import StatedFact
from dpspec_recording.observers.constants.option_history import OptionHistory

Array: TypeAlias = np.ndarray[Any, Any]

F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class InternalSums:
    """Aggregates of the internal part of a recording.

    largest, lower: (T,) largest norm after clipping, and first quartile; sum_norm: (T,) norm of the sum; reported:
    (T,) upper bound on the sum of the contributions' norms from their quartiles; all in clip norms. outside: (T,)
    whether other code than the optimizer moved a parameter. sampling: None unless every step lists its records.
    most_often: the maximum number of batches of one record; None if unknown.
    """

    largest: Array
    lower: Array
    sum_norm: Array
    reported: Array
    outside: Array
    sampling: SamplingSums | None
    most_often: int | None


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The parts of the claim about a run on which questions depend.

    Attributes:
        group_size: The number of records of a person.
        public: Names of hyperparameters that the user declares public.
        adjacency: Of the claim.
    """

    group_size: int = 1
    public: Collection[str] = ()
    adjacency: str = "zero-out"


class JudgedRun(Protocol):
    """The interface of :class:`dpspec_recording.judge.recorded_run.RecordedRun`, which describes it, for observers.

    It has no folder: these values mean the same for one process, several ranks and several parts.
    """

    def __getitem__(self, name: str) -> Array:
        """(T,) a quantity of each step; NaN if the recorder did not observe it."""

    def fact(self, stated: type[StatedFact[F]]) -> F | None:
        """The fact of an observer; None if the recording has no end, or the training did not show the fact."""

    @property
    def header(self) -> Header: ...
    @property
    def steps(self) -> int: ...
    @property
    def covered_steps(self) -> int: ...
    @property
    def audits(self) -> AuditFacts | None: ...
    @property
    def options(self) -> OptionHistory: ...
    @property
    def internal(self) -> InternalSums | None: ...

    @property
    def rates(self) -> Sequence[float | None]: ...
    @property
    def filled(self) -> Array: ...
    @property
    def further_rows(self) -> int: ...
    @property
    def contribution_gaps(self) -> tuple[int | None, int | None]: ...
    @property
    def has_contributions(self) -> bool: ...
    @property
    def has_arrays(self) -> bool: ...

    @property
    def layers(self) -> Array: ...
    @property
    def quietest(self) -> Array: ...
    @property
    def rows(self) -> Array: ...
    @property
    def scaled_squares(self) -> Array | None: ...

    @property
    def mapped_steps(self) -> int: ...
    @property
    def has_mapped_factor(self) -> bool: ...
    @property
    def divisor_precision(self) -> float: ...

    @property
    def half_excess(self) -> float: ...
    @property
    def norm_excess(self) -> float: ...
    @property
    def sums_type(self) -> str: ...
