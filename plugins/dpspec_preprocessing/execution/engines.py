"""The private mechanisms, run: what is declared is what is added.

Queries release a weighted sum of processed rows, weight w = min(L, sensitivity / (2 R)), so that both constants hold:
gaussian all d sums, laplace the first feature's, exponential the number of a feature, chosen by its sum. Gradient
mechanisms train theta of a linear model without intercept on labels -1 and 1, projected to a ball; networks are trained
by the spec's backend (:mod:`dpspec_preprocessing.execution.network`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from dpspec_preprocessing.theory.private import GRADIENT, Private, PrivateMechanism

Array: TypeAlias = np.ndarray[Any, Any]

#: How finely scores are kept.
BINS = 2048


@dataclass
class NoiseTally:
    """Noise that was added, in units of its declared deviation: how many numbers, and the sum of their squares.

    released: what a backend released in each run, as ``dpspec.training.measure.logs`` counts it.
    """

    count: int = 0
    squares: float = 0.0
    released: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, noise: Array) -> None:
        """Count one draw."""
        self.count += noise.size
        self.squares += float(np.square(noise).sum())


class Engine(Protocol):
    """What runs on processed rows: queries and linear models here, networks by a backend."""

    @property
    def private(self) -> PrivateMechanism:
        """The mechanism."""

    def execute_without_noise(self, x: Array, y: Array) -> Array:
        """The output on rows (n, d) with labels (n,) as it would be without noise."""

    def execute(
        self, sides: Sequence[Array], y: Array, which: Sequence[int], random: np.random.Generator, tally: NoiseTally
    ) -> Iterator[Array]:
        """One output for each of ``which``: on ``sides[0]`` or on ``sides[1]``; ``tally`` counts the noise."""

    def count_right(self, output: Array, x: Array, y: Array) -> int:
        """How many records (n, d) the trained ``output`` assigns to their labels."""


@dataclass(frozen=True, kw_only=True)
class LinearEngine:
    """Queries and linear models: a private mechanism with what only its execution needs. radius: of processed rows."""

    private: PrivateMechanism
    radius: float
    loss: str = "logistic"
    theta_radius: float = 1.0
    learning_rate: float = 0.5

    @classmethod
    def of(cls, private: PrivateMechanism, declared: Private, radius: float) -> LinearEngine:
        """Of a mechanism as it is declared."""
        return cls(
            private=private,
            radius=radius,
            loss=declared.loss or "logistic",
            theta_radius=declared.theta_radius,
            learning_rate=declared.learning_rate,
        )

    @property
    def weight(self) -> float:
        """The weight of a record in a query."""
        return min(self.private.lipschitz, self.private.sensitivity / (2.0 * self.radius))

    def query(self, x: Array) -> Array:
        """The weighted sums of rows (n, d): (d,), or (1,) for laplace."""
        require_declared_count(self.private, x)
        sums = self.weight * x.sum(axis=0)
        return np.asarray(sums[:1] if self.private.kind == "laplace" else sums, dtype=np.float64)

    def execute_without_noise(self, x: Array, y: Array) -> Array:
        """The query's answer, or what training gives without noise."""
        return self.train(x, y, None) if self.private.kind in GRADIENT else self.query(x)

    def execute(
        self, sides: Sequence[Array], y: Array, which: Sequence[int], random: np.random.Generator, tally: NoiseTally
    ) -> Iterator[Array]:
        """One output after the other; a query is answered once for each side, and its noise is seen from outside."""
        m = self.private
        exact = [] if m.kind in GRADIENT else [self.query(x) for x in sides]
        for side in which:
            if not exact:
                yield self.train(sides[side], y, random, tally)
                continue
            output = self.add_noise(exact[side], random)
            if m.kind == "gaussian":
                tally.add((output - exact[side]) / m.sigma)
            if m.kind == "laplace":  # twice |x| / scale is as large as the squares of two standard normal numbers
                tally.add(np.sqrt(np.repeat(np.abs(output - exact[side]) / m.sigma, 2)))
            yield output

    def add_noise(self, exact: Array, random: np.random.Generator) -> Array:
        """A query's answer with noise; of exponential the feature that is drawn."""
        m = self.private
        if m.kind == "gaussian":
            return np.asarray(exact + random.normal(0.0, m.sigma, exact.shape), dtype=np.float64)
        if m.kind == "laplace":
            return np.asarray(exact + random.laplace(0.0, m.sigma, exact.shape), dtype=np.float64)
        # Gumbel noise on scaled qualities draws an index with probability proportional to e^(quality / (2 scale)).
        return np.array([float(np.argmax(exact / (2.0 * m.sigma) + random.gumbel(size=exact.shape)))])

    def count_right(self, output: Array, x: Array, y: Array) -> int:
        """How many records have their label -1 or 1 on the right side of theta."""
        return int(np.count_nonzero(np.where(x @ output > 0.0, 1.0, -1.0) == y))

    def train(self, x: Array, y: Array, random: np.random.Generator | None, tally: NoiseTally | None = None) -> Array:
        """theta (d,): the average iterate, of sgd-iterated the one at a random step. Without ``random`` no noise."""
        require_declared_count(self.private, x)
        m, n = self.private, len(x)
        theta, total = np.zeros(x.shape[1]), np.zeros(x.shape[1])
        steps, stop = m.steps, -1
        if m.kind == "sgd-iterated":
            steps = n if random is None else int(random.integers(1, n + 1))
            stop = steps
        for step in range(steps):
            if m.kind == "dp-gd":
                gradient = self.gradients(theta, x, y).sum(axis=0) / n
            else:
                at = step if stop >= 0 else int(random.integers(n)) if random is not None else step % n
                gradient = self.gradients(theta, x[at : at + 1], y[at : at + 1])[0]
            if random is not None:
                noise = random.normal(0.0, m.sigma, gradient.shape)
                gradient = gradient + noise
                if tally is not None:
                    tally.add(noise / m.sigma)
            theta = theta - self.learning_rate * gradient
            norm = float(np.linalg.norm(theta))
            theta = theta * min(1.0, self.theta_radius / norm) if norm > 0.0 else theta
            total += theta
        return theta if stop >= 0 else np.asarray(total / steps, dtype=np.float64)

    def gradients(self, theta: Array, x: Array, y: Array) -> Array:
        """The gradient of each record's loss at theta, (n, d)."""
        margins = x @ theta
        if self.loss == "squared":
            return np.asarray((margins - y)[:, None] * x, dtype=np.float64)
        return np.asarray((-y / (1.0 + np.exp(np.clip(y * margins, -700.0, 700.0))))[:, None] * x, dtype=np.float64)


def require_declared_count(m: PrivateMechanism, x: Array) -> None:
    """The number of records is public and declared: noise and every bound are for it, so that others are refused.

    Raises ``ValueError``. Neighbours, of which one record is replaced, are both refused or neither.
    """
    if len(x) != m.records:
        raise ValueError(f"{len(x)} records, and the mechanism is for {m.records}: declare the number that there are")


def score_output(m: PrivateMechanism, output: Array, one: Array, other: Array) -> float:
    """How much ``output`` looks like made on the first of two data sets: by what both give without noise.

    A log-likelihood ratio for queries, up to a factor for gaussian; for gradients the place along the difference of
    the noiseless results.
    """
    if m.kind == "laplace":
        return float((abs(output[0] - other[0]) - abs(output[0] - one[0])) / m.sigma)
    if m.kind == "exponential":
        at = int(output[0])
        return float((one[at] - other[at]) / (2.0 * m.sigma))
    towards = one - other
    length = float(np.linalg.norm(towards))
    if length == 0.0:
        return 0.0
    unit = 1.0 if m.kind != "gaussian" else m.sigma / length
    return float((output - 0.5 * (one + other)) @ towards / (length * length * unit))


def bin_score(value: float) -> int:
    """A score as one of ``BINS`` bins, whatever its size: all that is kept of it."""
    return min(BINS - 1, max(0, math.floor(BINS * (0.5 + math.atan(value) / math.pi))))
