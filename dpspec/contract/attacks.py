"""Kinds of canaries and scores, which plugins offer with the hook ``dpspec_attacks``, and methods of attacks.

Each canary is inserted with probability 1/2, and the test counts correct guesses of these inclusion bits from scores.
The lower bound is valid for all canaries and scores that do not depend on the bits. No function here receives a bit
that is guessed later, the run's seed, batches or noise, or rows with canaries. Python cannot prevent other access, so a
third-party plugin's results name the assumption ``attack-code``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from dpspec.contract.findings import Facts
from dpspec.contract.frozen import FrozenMap, Json
from dpspec.contract.providers import Provider, Schema, TrainingJob, TrialProvider, no_keys

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["Asked", "AttackMethod", "Attacker", "Canary", "Directions", "EvidenceTest", "Observed", "Records", "Score"]

Array: TypeAlias = "np.ndarray[Any, Any]"

Space: TypeAlias = Literal["gradient", "input"]

Statistic: TypeAlias = Literal["count", "counts", "outcomes"]

#: Default kind of canary per space.
USUAL = {"gradient": "orthogonal", "input": "mislabelled"}

#: Default score.
USUAL_SCORE = "loss-difference"


@dataclass(frozen=True, kw_only=True)
class Canary(TrialProvider):
    """A kind of canary for ``audit.canary.kind``.

    Attributes:
        space: ``input`` for records; ``gradient`` for gradients along separate directions (capability
            ``gradient-canaries``).
        make: Function ``(asked) -> Records`` or, in space gradient, ``(asked) -> directions`` (:class:`Asked`).
        schema: The kind's own keys in ``audit.canary``.
        reads_data: Whether it receives the training records, on which its canaries then depend.
        limit: Function ``(facts, options) -> (most, why) | None``: the maximum number of canaries and the reason, as
            words after a colon. It imports neither numpy nor torch. Empty: unlimited.
    """

    space: Space
    make: str
    schema: Schema = field(default_factory=no_keys)
    reads_data: bool = False
    limit: str = ""


@dataclass(frozen=True, kw_only=True)
class Score(TrialProvider):
    """A score of canaries by a final model for ``audit.score``; higher means more likely inserted.

    Attributes:
        score: Function ``(observed) -> scores`` (m,), real numbers (:class:`Observed`).
        schema: The score's own keys in ``audit.scoring``; without keys the block is not allowed.
        learns: Whether it learns from half of the canaries, whose inclusion bits it receives and which are not guessed.
        gradients: Whether it computes gradients of all canaries in one batch, and the movement of the model per unit of
            their sum. Rejected for optimizers with non-invertible updates and if the gradients exceed the memory.
        streamed_above: Number of canaries above which it stores no gradients if all batches are full and clipping is
            flat; None if it always stores them.
        models: Number of models it trains to score one run. Rejected with many runs unless 0.
    """

    score: str
    schema: Schema = field(default_factory=no_keys)
    learns: bool = False
    gradients: bool = False
    streamed_above: int | None = None
    models: int = 0


@dataclass(frozen=True, kw_only=True)
class AttackMethod(Provider):
    """A kind of evidence of attacks on privacy for ``Evidence.kind``, with its test and its points in figures.

    Mechanisms yield evidence of this kind. dpspec tests claims and upper bounds with it, next to all other evidence of
    the invocation. The judgement names the assumption ``test-code`` for methods of third-party plugins.

    Attributes:
        statistics: The type of each of the evidence's sufficient statistics, by name: ``count`` (an integer from 0 to
            10^9), ``counts`` (a list of these) or ``outcomes`` (a string of 0 and 1).
        test: Names a class without constructor arguments that implements :class:`EvidenceTest`.
        anytime: Whether the test is valid after any number of trials, also one that depends on their outcomes.
        ordered: Whether statistics depend on the order of releases, for example by pairs of consecutive ones. The order
            may then not depend on scores.
    """

    statistics: Mapping[str, Statistic]
    test: str
    anytime: bool = False
    ordered: bool = False


class EvidenceTest(ABC):
    """Test of the null hypothesis that an attacked pipeline satisfies a privacy curve.

    All functions are deterministic and receive the ``statistics`` that the method declares, with lists as tuples.
    """

    @abstractmethod
    def is_possible(self, statistics: FrozenMap) -> bool:
        """Whether an attack can result in these statistics. Others are rejected as invalid."""

    @abstractmethod
    def p_value(self, statistics: FrozenMap, points: Sequence[tuple[float, float]]) -> float:
        """P-value in [0, 1] of the null that all ``points`` (epsilon, delta), at least one, hold jointly."""

    @abstractmethod
    def epsilon_lower(self, statistics: FrozenMap, delta: float, confidence: float) -> float:
        """Lower bound >= 0 on epsilon at ``delta``, valid with probability ``confidence``."""

    @abstractmethod
    def perfect(self, statistics: FrozenMap) -> Mapping[str, Json]:
        """The statistics of the same design if every guess is correct, for the power of the attack."""

    def rejects(self, statistics: FrozenMap, points: Sequence[tuple[float, float]], level: float) -> bool:
        """Whether the p-value is at most ``level``. Override it if this takes less time than the p-value."""
        return self.p_value(statistics, points) <= level

    def rates(self, statistics: FrozenMap) -> Sequence[tuple[float, float]]:
        """Pairs of false- and true-positive rates for the figure of attacks. Default: none.

        The figure omits a false-positive rate of 0: give 1 / n if none of n releases without the group is positive.
        """
        return ()

    def statistics(self, scores: Array, coins: Array) -> Mapping[str, Json] | None:
        """The statistics of an attack with these scores (n,) for these inclusion bits (n,). Default: None, unknown.

        Higher scores are of releases with the group; they may be equal, infinite or NaN, and n may be 0. The
        conformance suite measures p-values and lower bounds with it under laws whose privacy is known.
        """
        return None


class Records(NamedTuple):
    """Canary records: features ``x`` (count, ...) and labels ``y`` (count,), with the training records' dtypes."""

    x: Array
    y: Array


class Directions(Protocol):
    """``count`` orthonormal directions in ``parameters`` dimensions with at most ``block`` nonzero coordinates each."""

    parameters: int
    count: int
    block: int

    def directions(self, indices: torch.Tensor) -> torch.Tensor:
        """Directions ``indices`` (b,) as float32 unit rows (b, parameters)."""

    def supports(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Nonzero coordinates, int64, and values, float32, (b, block) each."""

    def project(self, vector: torch.Tensor) -> torch.Tensor:
        """Inner products (count,) of ``vector`` (parameters,) with all directions."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Request for ``count`` canaries. All randomness must derive from ``seed``.

    Records have the shape and dtypes of the training records, finite features and labels 0..classes - 1. Directions are
    float32 rows (count, facts.parameters), orthonormal to 1e-5, or (sparse) :class:`Directions` on ``device``. Core
    scales them above the clip norm, and reads all ``supports`` before training, because later lookups would reveal
    inclusion bits.

    Attributes:
        options: The kind's own keys.
        facts: Public facts of the data, and the number of parameters.
        x, y: Training records (n, ...), read-only, and labels (n,); None unless the kind declares ``reads_data``.
    """

    count: int
    seed: int
    facts: Facts
    options: FrozenMap
    x: Array | None = None
    y: Array | None = None
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The final-model adversary's view of m canaries or groups of equal ones, without inclusion bits.

    Attributes:
        copies: Sizes of the groups (m,).
        before, after: Log-odds ln(p / (1 - p)) of the canaries' labels by the first and the last model, (m,) float64; 0
            if not finite.
        ask: Computes the same pair for other records, float32 and int64.
        first, last: Weights of these models, (parameters,) float32; not finite if training diverged.
        coins: Inclusion bits (m,) int8, -1 if unknown. Scores that learn receive 0 or 1 for canaries that are not
            guessed.
        unit: Noise added to a parameter, rate * sqrt(sum over steps of (noise_multiplier * clip_norm)^2) / divisor; 1
            without noise.
        many: Whether scores of many runs are compared, on a grid of 1/64 from -12 to 12.
        planted: Mean number of inserted canaries.
        job: The declared run on the real records only, without seed, observers and trained model.
        options: The score's own keys.
    """

    canaries: Records
    copies: Array
    before: Array
    after: Array
    ask: Callable[[Records], tuple[Array, Array]]
    first: Array
    last: Array
    coins: Array
    unit: float
    many: bool
    planted: int
    job: TrainingJob
    options: FrozenMap = FrozenMap()  # noqa: RUF009 - immutable


class Attacker(Protocol):
    """The canaries and the score that a spec's ``audit`` selects. Results of third-party plugins are validated."""

    @property
    def canary(self) -> Canary | None:
        """The selected kind of canary, if any."""

    @property
    def score(self) -> Score | None:
        """The selected score, if any."""

    def records(self, count: int, seed: int) -> Records:
        """Make canary records."""

    def directions(self, count: int, seed: int) -> Directions:
        """Make directions of gradient canaries."""

    def scores(self, observed: Observed) -> Array:
        """Compute scores (m,) float64."""
