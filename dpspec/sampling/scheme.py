"""The interfaces of sampling schemes and of their theorems, and the class of each scheme by name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from dpspec.contract.frozen import Json
from dpspec.contract.phase import Phase
from dpspec.contract.sampling import SCHEMES, Sampling

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dpspec.accounting import Pair

#: Pairs with the number of compositions of each.
Composed: TypeAlias = "tuple[tuple[Pair, int], ...]"

#: Rounding error of a product of two correctly rounded numbers.
LAST_PLACE: Final = 4.0 * sys.float_info.epsilon


class Theory:
    """The bounds of a scheme for groups of records. Sensitivities are in units of the clip norm.

    Attributes:
        source: Source of the bound.
        no_profile: Why single records have no profile for black-box conversions; empty if they have one.
        tight: Whether some data attains the dominating pairs.
        zero_out: Whether the bound covers zero-out adjacency: null records do not change the distribution of batches.
        uncovered: Reason why no theorem covers add-remove adjacency; empty if one does.
        alone: Whether the worst case needs gradients of the other records that no other scheme needs.
        attained_in: Source of the lower bound, if it differs from the source for Poisson batches.
    """

    source: ClassVar[str]
    no_profile: ClassVar[str] = ""
    tight: ClassVar[bool] = False
    zero_out: ClassVar[bool] = False
    uncovered: ClassVar[str] = ""
    alone: ClassVar[bool] = False
    attained_in: ClassVar[str] = ""

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        """Pairs that dominate a phase, for groups of up to ``group_size`` in datasets of ``records``."""
        raise NotImplementedError

    def joint(self, phase: Phase, group_size: int, records: int) -> Composed:
        """As :meth:`composed`, with all members of random allocation in one pair; none out of its range."""
        return self.composed(phase, group_size, records)

    def routed(self, phase: Phase, group_size: int, smaller: int, share: float) -> Composed:
        """As :meth:`composed`, of ``smaller`` records and ``group_size`` more, for a free ``share`` in (0, 1)."""
        return self.composed(phase, group_size, smaller)

    def displaced(self, phase: Phase, smaller: int, group_size: int = 1) -> Composed:
        """As :meth:`composed`, of ``smaller`` records and ``group_size`` more; none out of its range."""
        return self.composed(phase, group_size, smaller)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """Pairs that all steps of a phase attain on some data; ``choice`` selects one of several alternatives.

        No pairs if none are known; then intervals have the lower end 0.
        """
        return self.composed(phase, group_size, records) if self.tight else ()

    def attains(self, phase: Phase, group_size: int) -> bool:
        """Whether some data attains the dominating pairs of this phase."""
        return self.tight

    def min_records(self, records: int, group_size: int) -> int:
        """Minimum number of records of the datasets that the bound for ``records`` covers."""
        return 0

    def log_hidden(self, phase: Phase, group_size: int, records: int) -> float:
        """ln of the probability that no member is in a batch of the phase; 0 if unknown."""
        return 0.0


@dataclass
class SamplingScheme:
    """A sampling scheme. An instance draws the batches of a phase of ``records`` records; some have a state.

    Fields of a subclass are options of the scheme, with the names of ``dpspec.contract.sampling.OPTIONS``.

    Attributes:
        checks: Names of the checks of batches in ``dpspec.stats.conformance.batch_checks`` that a run has.
        directed: Whether residuals along directions that earlier steps determine are a martingale: given all earlier
            batches, each record has the declared probability. With ``dependent_steps`` above 1, only at the first step
            of each epoch.
        negatively_correlated: Whether an inclusion makes others less likely, so that ``inclusion`` bounds the variance.
        other_gradients: Other records have these in the worst case: ``zero``, ``opposite`` to the group, or ``any``.
        theory: Bounds under add-remove and zero-out adjacency; None if no theorem is known.
        replaced: Bounds under replace-one adjacency; None if no theorem is known.
    """

    records: int
    checks: ClassVar[tuple[str, ...]] = ()
    directed: ClassVar[bool] = True
    negatively_correlated: ClassVar[bool] = False
    other_gradients: ClassVar[str] = "zero"
    theory: ClassVar[Theory | None] = None
    replaced: ClassVar[Theory | None] = None

    def __post_init__(self) -> None:
        batch_size = getattr(self, "batch_size", None)
        if batch_size is not None and not 1 <= batch_size <= self.records:
            raise ValueError(f"batch_size must be within 1..{self.records} (the records), got {batch_size}")

    @classmethod
    def exact_sizes(cls, phase: Phase, records: int, steps: int) -> tuple[int, int]:
        """The sum of the sizes of the first ``steps`` batches, and of their squares, of the check ``exact_sizes``."""
        raise NotImplementedError

    @property
    def inclusion(self) -> float:
        """Probability that a batch includes a given record."""
        raise NotImplementedError

    @property
    def dependent_steps(self) -> int:
        """Number of steps whose batches depend on each other."""
        return 1

    @property
    def moment_steps(self) -> int:
        """Number of steps with which :meth:`inclusion_moments` repeat, so that a plan needs no memory for all steps."""
        return self.dependent_steps

    @property
    def direction_variance(self) -> float:
        """Upper bound on the variance of a batch's sum along any direction, per squared norm of a record."""
        q = self.inclusion
        return q if self.negatively_correlated and q < 1.0 else q * (1.0 - q)

    def covariance(self) -> float:
        """Covariance of two records' inclusions in one batch: at most 0, and 0 if they are independent."""
        return 0.0

    def inclusion_moments(self, observed: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Terms of the mean and variance of a record's number of inclusions, from the mask ``observed`` (steps,)."""
        import numpy as np

        rates = np.full(int(observed.sum()), self.inclusion)
        return rates, rates * (1.0 - rates)

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """The batch's indices (b,), int64, ascending, on the CPU; ``generator`` is a CPU generator."""
        raise NotImplementedError


@dataclass
class EpochSampling(SamplingScheme):
    """A scheme that draws all batches of an epoch at its first step, as ``draws``; ``done`` counts the used ones."""

    draws: torch.Tensor | None = field(default=None, init=False, repr=False, compare=False)
    done: int = field(default=0, init=False, repr=False, compare=False)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return what :meth:`restore` resumes from."""
        import numpy as np

        arrays = {"done": np.array(self.done)}
        return arrays if self.draws is None else {**arrays, "draws": self.draws.numpy().copy()}

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        import torch

        self.done = int(state["done"])
        self.draws = torch.tensor(state["draws"]) if "draws" in state else None


def scheme_named(name: str) -> type[SamplingScheme]:
    """The class of a scheme of ``SCHEMES``."""
    return _loaded(SCHEMES[name].code)


@functools.cache
def _loaded(code: str) -> type[SamplingScheme]:
    module, _, attribute = code.partition(":")
    scheme: type[SamplingScheme] = getattr(import_module(module), attribute)
    return scheme


def scheme_of(phase: Phase) -> type[SamplingScheme]:
    """The class of a phase's sampling scheme."""
    return scheme_named(phase.sampling.scheme)


def sampler_of(sampling: Mapping[str, Json], records: int) -> SamplingScheme:
    """The sampler of a spec's ``sampling`` block over ``records`` records or users.

    Raises:
        ValueError: The scheme is unknown or draws no users, or an option is out of range.
    """
    if sampling.get("scheme") not in SCHEMES:
        raise ValueError(f"sampling scheme must be one of {', '.join(SCHEMES)}, got {sampling.get('scheme')!r}")
    options = Sampling.of(sampling)
    scheme = scheme_named(options.scheme)
    names = [option.name for option in fields(scheme) if option.init and option.name != "records"]
    if options.of_users and "records_per_user" not in names:
        raise ValueError(f"sampling of users requires scheme poisson, got {options.scheme!r}")
    return scheme(records, **{name: getattr(options, name) for name in names})
