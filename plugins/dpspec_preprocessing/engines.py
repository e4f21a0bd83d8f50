"""Execution of the private mechanisms with the declared noise.

Queries release a weighted sum of processed rows, weight w = min(L, sensitivity / (2 R)), which satisfies both declared
constants: gaussian all d sums, laplace the sum of the first feature, exponential the index of a feature, chosen by its
sum. Gradient mechanisms train a linear model on labels -1 and 1. The spec's backend trains networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_preprocessing.private import GRADIENT, Private, PrivateMechanism

if TYPE_CHECKING:
    import torch

    from dpspec.training.device import TransferQueue

Array: TypeAlias = np.ndarray[Any, Any]

#: Number of bins of scores.
BINS = 2048


@dataclass
class NoiseTally:
    """Added noise in units of its declared standard deviation, and the states released by a backend in each run."""

    count: int = 0
    squares: float = 0.0
    released: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, noise: Array) -> None:
        self.count += noise.size
        self.squares += float(np.square(noise).sum())


_DEFAULTS = Private(kind="dp-gd")


@dataclass(frozen=True, kw_only=True)
class LinearEngine:
    """``radius`` is the maximum norm of processed rows; ``declared`` has the options of the linear model."""

    private: PrivateMechanism
    radius: float
    declared: Private = _DEFAULTS

    @property
    def weight(self) -> float:
        return min(self.private.lipschitz, self.private.sensitivity / (2.0 * self.radius))

    def query(self, x: Array) -> Array:
        """Weighted sums of rows (n, d): shape (d,), or (1,) for laplace."""
        require_declared_count(self.private, x)
        sums = self.weight * x.sum(axis=0)
        return np.asarray(sums[:1] if self.private.kind == "laplace" else sums, dtype=np.float64)

    def execute_without_noise(self, x: Array, y: Array) -> Array:
        return self.train(x, y, None) if self.private.kind in GRADIENT else self.query(x)

    def execute(
        self, sides: Sequence[Array], y: Array, which: Sequence[int], random: np.random.Generator, tally: NoiseTally
    ) -> Iterator[Array]:
        """Yield one output per index in ``which``, on ``sides[index]``, and add its noise to ``tally``."""
        m = self.private
        exact = [] if m.kind in GRADIENT else [self.query(x) for x in sides]
        for side in which:
            if not exact:
                yield self.train(sides[side], y, random, tally)
                continue
            output = self.add_noise(exact[side], random)
            if m.kind == "gaussian":
                tally.add((output - exact[side]) / m.sigma)
            if m.kind == "laplace":  # 2 |x| / scale is chi-squared with two degrees of freedom
                tally.add(np.sqrt(np.repeat(np.abs(output - exact[side]) / m.sigma, 2)))
            yield output

    def add_noise(self, exact: Array, random: np.random.Generator) -> Array:
        m = self.private
        if m.kind == "gaussian":
            return np.asarray(exact + random.normal(0.0, m.sigma, exact.shape), dtype=np.float64)
        if m.kind == "laplace":
            return np.asarray(exact + random.laplace(0.0, m.sigma, exact.shape), dtype=np.float64)
        # Gumbel noise on scaled qualities draws an index with probability proportional to e^(quality / (2 scale)).
        return np.array([float(np.argmax(exact / (2.0 * m.sigma) + random.gumbel(size=exact.shape)))])

    def count_right(self, output: Array, x: Array, y: Array) -> int:
        return int(np.count_nonzero(np.where(x @ output > 0.0, 1.0, -1.0) == y))

    def mean_loss(self, output: Array, x: Array, y: Array) -> float:
        """Mean of ln(1 + e^(-y theta x)), or of (theta x - y)^2 / 2."""
        margins = x @ output
        losses = (margins - y) ** 2 / 2.0 if self.declared.loss == "squared" else np.logaddexp(0.0, -y * margins)
        return float(losses.mean())

    @property
    def largest_loss(self) -> float:
        """Maximum loss of processed records: |theta x| is at most theta_radius times their norm."""
        reach = self.declared.theta_radius * self.radius
        return (reach + 1.0) ** 2 / 2.0 if self.declared.loss == "squared" else float(np.logaddexp(0.0, reach))

    def train(self, x: Array, y: Array, random: np.random.Generator | None, tally: NoiseTally | None = None) -> Array:
        """Train theta (d,) on rows (n, d) with labels -1 or 1, shape (n,); noiseless without ``random``."""
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
                record = step if stop >= 0 else int(random.integers(n)) if random is not None else step % n
                gradient = self.gradients(theta, x[record : record + 1], y[record : record + 1])[0]
            if random is not None:
                noise = random.normal(0.0, m.sigma, gradient.shape)
                gradient = gradient + noise
                if tally is not None:
                    tally.add(noise / m.sigma)
            theta = theta - self.declared.learning_rate * gradient
            norm = float(np.linalg.norm(theta))
            theta = theta * min(1.0, self.declared.theta_radius / norm) if norm > 0.0 else theta
            total += theta
        return theta if stop >= 0 else np.asarray(total / steps, dtype=np.float64)

    def gradients(self, theta: Array, x: Array, y: Array) -> Array:
        margins = x @ theta
        if self.declared.loss == "squared":
            return np.asarray((margins - y)[:, None] * x, dtype=np.float64)
        return np.asarray((-y / (1.0 + np.exp(np.clip(y * margins, -700.0, 700.0))))[:, None] * x, dtype=np.float64)


def require_declared_count(m: PrivateMechanism, x: Array) -> None:
    """Noise and bounds assume the declared number. It is public and equal for neighbours: a refusal reveals nothing."""
    if len(x) != m.records:
        raise ValueError(f"the mechanism is declared for {m.records} records, got {len(x)}: declare the actual number")


def score_output(m: PrivateMechanism, output: Array, present: Array, absent: Array) -> float:
    """Queries: log-likelihood ratio, up to a factor for gaussian. Gradients: projection on the noiseless difference."""
    if m.kind == "laplace":
        return float((abs(output[0] - absent[0]) - abs(output[0] - present[0])) / m.sigma)
    if m.kind == "exponential":
        candidate = int(output[0])
        return float((present[candidate] - absent[candidate]) / (2.0 * m.sigma))
    towards = present - absent
    length = float(np.linalg.norm(towards))
    if length == 0.0:
        return 0.0
    unit = 1.0 if m.kind != "gaussian" else m.sigma / length
    return float((output - 0.5 * (present + absent)) @ towards / (length * length * unit))


def output_ratio(m: PrivateMechanism, output: Array, present: Array, absent: Array) -> float:
    """Log-likelihood ratio of a query's output, up to a constant for exponential."""
    score = score_output(m, output, present, absent)
    return score * float(np.linalg.norm(present - absent)) / m.sigma if m.kind == "gaussian" else score


#: Number of runs per training batch, and replacement of infinite parameters.
_TOGETHER, _LARGE = 16, 1e30


@dataclass(frozen=True, kw_only=True)
class NetworkEngine:
    """Training of the spec's model by its backend, with per-record clipping and noise. The last model is released.

    dp-gd uses all records in every step, sgd-sampled one random record. The mechanisms declare the noise of a mean
    gradient, a backend the noise of a sum: sqrt(T) / noise times the clip norm L, and sqrt(c T) / (noise n).
    """

    private: PrivateMechanism
    training: dps.FrozenMap
    context: dps.Context

    @property
    def batch_size(self) -> int:
        return self.private.records if self.private.kind == "dp-gd" else 1

    @property
    def multiplier(self) -> float:
        """Noise multiplier of a sum of gradients: sigma * batch size / L."""
        return self.private.sigma * self.batch_size / self.private.lipschitz

    def execute_without_noise(self, x: Array, y: Array) -> Array:
        """Parameters of the last model without noise, with the same initial model and batches for all datasets."""
        job = self._job(self._shaped(x), y, self.context.seed(0, "noiseless"), 0.0)
        self.context.trainer.train(job)
        return _parameters(job.model)

    def execute(
        self, sides: Sequence[Array], y: Array, which: Sequence[int], random: np.random.Generator, tally: NoiseTally
    ) -> Iterator[Array]:
        from dpspec.training.device import TransferQueue
        from dpspec.training.loop.native import train_many
        from dpspec.training.measure.logs import StateLog

        shaped = [self._shaped(x) for x in sides]
        for start in range(0, len(which), _TOGETHER):
            block, queue = which[start : start + _TOGETHER], TransferQueue()
            noise = _NoiseLog(tally, self.multiplier * self.private.lipschitz, queue)
            logs = [StateLog() for _ in block]
            jobs = [
                self._job(shaped[side], y, int(random.integers(2**63)), self.multiplier, (noise, log))
                for side, log in zip(block, logs, strict=True)
            ]

            def report(done: int, total: int, start: int = start, together: int = len(block)) -> None:
                steps, records = start * total + together * done, float(self.batch_size)
                self.context.progress(steps, len(which) * total, "training", unit="steps", records=records)

            train_many(self.context.trainer, [replace(jobs[0], progress=report), *jobs[1:]])
            queue.flush()
            tally.released += [log.evidence(job) for job, log in zip(jobs, logs, strict=True)]
            yield from (_parameters(job.model) for job in jobs)

    def count_right(self, output: Array, x: Array, y: Array) -> int:
        import torch

        from dpspec.training.gradients import flat_model
        from dpspec.training.measure.scores import count_right

        model = self.context.model.build(self.context.seed(0, "model"))
        flat_model.load(model, torch.tensor(output, dtype=torch.float32))
        return count_right(model, self._shaped(x), y, self.context.device)

    def _shaped(self, x: Array) -> Array:
        return np.asarray(x.reshape(len(x), *self.context.facts.shape), dtype=np.float32)

    def _job(
        self, x: Array, y: Array, seed: int, multiplier: float, observers: tuple[dps.Observer, ...] = ()
    ) -> dps.TrainingJob:
        m = self.private
        require_declared_count(m, x)
        sampling = {"scheme": "full"} if m.kind == "dp-gd" else {"scheme": "fixed", "batch_size": 1}
        phase = {"steps": m.steps, "noise_multiplier": multiplier, "clip_norm": m.lipschitz, "sampling": sampling}
        return dps.TrainingJob(
            x=x,
            y=y,
            model=self.context.model.build(self.context.seed(0, "model")),
            phases=(dps.Phase(phase),),
            options=self.training,
            expected_batch_size=float(self.batch_size),
            device=self.context.device,
            seed=seed,
            observers=observers,
            cancelled=self.context.cancelled,
        )


class _NoiseLog(dps.Observer):
    def __init__(self, tally: NoiseTally, std: float, queue: TransferQueue) -> None:
        self._tally, self._std, self._queue = tally, std, queue

    def noised(self, step: int, noise: torch.Tensor) -> None:
        self._queue.add(self._count, noise.clone())

    def _count(self, noise: Array) -> None:
        self._tally.add(noise.astype(np.float64) / self._std)


def _parameters(model: torch.nn.Module) -> Array:
    from dpspec.training.gradients import flat_model

    parameters = flat_model.flatten(model).double().cpu().numpy()
    return np.nan_to_num(np.asarray(parameters, dtype=np.float64), nan=0.0, posinf=_LARGE, neginf=-_LARGE)
