"""What attacks are made of: kinds of canaries, and scores; a plugin offers both by the hook ``dpspec_attacks``.

A whole plugin::

    import dpspec.contract as dps
    from dpspec.contract.attacks import Canary

    DPSPEC_API = 1

    @dps.hookimpl
    def dpspec_attacks():
        yield Canary(kind="mine", summary="...", space="input", make="my_package.canaries:make")

**What a lower bound rests on.** Each canary is planted by a fair coin, and the test counts how often coins are guessed
from scores. It holds for every way of making canaries and every way of scoring them, however poor, as long as neither
knows a coin beforehand: canaries are made before coins are looked at, and scores from what the adversary sees. So no
function here is given a coin that is guessed later, a seed of the run, its batches or its noise. Rows with planted
records in them are none of what is given either. Python cannot keep code from looking elsewhere: what a plugin of
somebody else's makes rests on the assumption ``attack-code``, which results name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from dpspec.contract.findings import Facts
from dpspec.contract.frozen import FrozenMap
from dpspec.contract.providers import Schema, TrainingJob, _nothing

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = [
    "Asked",
    "Attacker",
    "Canary",
    "Directions",
    "Observed",
    "Records",
    "Score",
]

Array: TypeAlias = "np.ndarray[Any, Any]"

Space: TypeAlias = Literal["gradient", "input"]

#: What is planted where a spec names a space and no kind.
USUAL = {"gradient": "orthogonal", "input": "mislabelled"}

#: How planted records are scored by a final model where a spec does not say.
USUAL_SCORE = "loss-difference"


@dataclass(frozen=True, kw_only=True)
class Canary:
    """A kind of canary, for ``audit.canary.kind`` to name.

    space: ``input`` for records, ``gradient`` for gradients along directions of their own; those need a backend with
        the capability ``gradient-canaries``.
    make: names a function ``(asked) -> Records`` or, in space gradient, ``(asked) -> directions`` (:class:`Asked`).
    schema: the kind's own keys, beside core's in ``audit.canary``.
    reads_data: whether it looks at the training records. Only then is it given them: what it plants says something of
        them, which an adversary who knows the data knows anyway.
    limit: names a function ``(facts, options) -> (most, why) | None``: how many can be made at most, and why, in words
        that follow a colon. It imports neither numpy nor torch. Empty: any number.
    trial_revision, revision_only: as for :class:`~dpspec.contract.Mechanism`.
    """

    kind: str
    summary: str
    space: Space
    make: str
    schema: Schema = field(default_factory=_nothing)
    reads_data: bool = False
    limit: str = ""
    trial_revision: int = 1
    revision_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Score:
    """A way to score planted records by a final model, for ``audit.score`` to name; the higher, the likelier planted.

    score: names a function ``(observed) -> scores`` (m,), real numbers (:class:`Observed`).
    schema: the score's own keys, which a spec writes in ``audit.scoring``; without any there is no such block.
    learns: whether it learns from half of the canaries: it is told their coins, and they are not guessed.
    gradients: whether it takes gradients of all canaries at once, and the model's movement for a sum of such: refused
        with optimizers whose updates cannot be undone, and where the gradients do not fit into memory.
    models: how many models it trains for itself, as the job declares, to score one run: what a plan takes them to cost.
        Refused with many runs if it is not 0, as all of these plant the same record.
    trial_revision, revision_only: as for :class:`~dpspec.contract.Mechanism`.
    """

    kind: str
    summary: str
    score: str
    schema: Schema = field(default_factory=_nothing)
    learns: bool = False
    gradients: bool = False
    models: int = 0
    trial_revision: int = 1
    revision_only: bool = False


class Records(NamedTuple):
    """Canary records: features ``x`` (count, ...) and labels ``y`` (count,), of the types of the training records."""

    x: Array
    y: Array


class Directions(Protocol):
    """``count`` orthonormal directions among ``parameters``; each is zero outside ``block`` coordinates of its own."""

    parameters: int
    count: int
    block: int

    def directions(self, indices: torch.Tensor) -> torch.Tensor:
        """The directions ``indices`` (b,) as float32 rows (b, parameters) of length one."""

    def supports(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where they are not zero: coordinates int64 and values float32, (b, block) each."""

    def project(self, vector: torch.Tensor) -> torch.Tensor:
        """The inner products (count,) of ``vector`` (parameters,) with all of them."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a kind is asked for: ``count`` canaries, by ``seed`` alone as far as anything is random.

    Records have the shape and types of the training records, finite features and labels 0..classes - 1. Directions are
    float32 rows (count, facts.parameters), of length one and orthogonal to each other, each to 1e-5; core multiplies
    them beyond the clip norm, so that what is planted has that norm once it is clipped. Instead of rows there may be
    :class:`Directions` on ``device``, as sparse as they like: of a plugin's, core asks for the ``supports`` of all of
    them at once and for nothing later, since who is asked for one canary while a model is trained learns its coin.

    options: the kind's own keys. facts: the public facts of the data, and the number of parameters.
    x, y: the training records (n, ...), (n,), read-only; None for kinds that do not say ``reads_data``.
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
    """What an adversary of the final model sees and knows of m planted records or groups of equal ones; no coin.

    canaries: the records. copies: (m,) how many equal ones each is a group of.
    before, after: (m,) float64, the log-odds ln(p / (1 - p)) of the canaries' labels by the first and the last model;
        0 where a model gives no number.
    ask: the same pair for any other records, float32 and int64.
    first, last: (parameters,) float32, the weights of both models; not finite where training diverged.
    coins: (m,) int8, -1 where the coin is not known; of scores that learn, 0 or 1 for those that are not guessed.
    unit: what noise adds to a parameter, rate * sqrt(sum over steps of (noise_multiplier * clip_norm)^2) / divisor, 1
        without noise. many: whether scores of many runs are compared, on a grid of 1/64 from -12 to 12.
    planted: how many records are planted on average.
    job: the run as declared, on the real records alone: its seed, its observers and its trained model are not there.
    options: the score's own keys.
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
    options: FrozenMap = FrozenMap()  # noqa: RUF009 - it is frozen


class Attacker(Protocol):
    """What ``audit`` of a spec chooses of what plugins offer, ready to be called; None where nothing is chosen."""

    @property
    def canary(self) -> Canary | None:
        """The kind of canaries."""

    @property
    def score(self) -> Score | None:
        """How they are scored."""

    def records(self, count: int, seed: int) -> Records:
        """Canary records. What a plugin of others makes is looked at, and told as theirs where it is wrong."""

    def directions(self, count: int, seed: int) -> Directions:
        """The directions of gradient canaries, looked at likewise."""

    def scores(self, observed: Observed) -> Array:
        """The scores (m,) float64 of what was observed, looked at likewise."""
