"""Scores of canaries, the higher the more likely one was planted; and how scores are distributed. No torch.

The adversary scores a canary by its log-likelihood ratio, which adds up over independent steps: if the pipeline is as
declared, the law of the total is a convolution, done on a grid by the FFT. Nothing rests on it but the choice of guess
counts and thresholds before any coin is seen, and what ``plan`` promises: tests hold for whatever was fixed in advance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from scipy.special import gammaln, ndtr

import dpspec.contract as dps
from dpspec.accounting import Floats, Mixture
from dpspec_group import theory
from dpspec_group.options import Attack

Array: TypeAlias = np.ndarray[Any, Any]

#: Cells of the grid, and how many standard deviations it reaches beyond the means.
_CELLS, _REACH = 1 << 14, 12.0

#: What stands for scores that are not finite: ranks that know nothing of the coins.
_LARGE = 1e30


@dataclass(frozen=True, kw_only=True)
class ScoreLaw:
    """Two laws on one grid of scores, ascending: of a canary that is absent and of one that is present.

    scores, absent, present: (n,) each; the last two are probabilities.
    """

    scores: Floats
    absent: Floats
    present: Floats

    @classmethod
    def normal(cls, absent_mean: float, absent_std: float, present_mean: float, present_std: float) -> ScoreLaw:
        """Both laws normal."""
        spread = _REACH * max(absent_std, present_std)
        edges = np.linspace(
            min(absent_mean, present_mean) - spread, max(absent_mean, present_mean) + spread, _CELLS + 1
        )
        return cls(
            scores=0.5 * (edges[1:] + edges[:-1]),
            absent=np.diff(ndtr((edges - absent_mean) / absent_std)),
            present=np.diff(ndtr((edges - present_mean) / present_std)),
        )

    def moments(self) -> tuple[float, float, float, float]:
        """Mean and standard deviation of the absent law, then of the present one."""
        moments: list[float] = []
        for masses in (self.absent, self.present):
            mean = float(masses @ self.scores)
            moments += [mean, math.sqrt(float(masses @ (self.scores - mean) ** 2))]
        return moments[0], moments[1], moments[2], moments[3]

    def correct(self, low: int, high: int, canaries: int) -> float:
        """How many guesses are right on average: ``low`` lowest scores guessed absent, ``high`` highest present."""
        (lowest, absent), (highest, present) = self._tails
        right = float(np.interp(low / canaries, lowest, absent)) + float(np.interp(high / canaries, highest, present))
        return min(float(low + high), 0.5 * canaries * right)

    @cached_property
    def _tails(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """From below, what the first cells hold of both laws together and of the absent one; from above, of both and of
        the present one."""
        both = 0.5 * (self.absent + self.present)
        return (_sums(both), _sums(self.absent)), (_sums(both[::-1]), _sums(self.present[::-1]))

    def rates(self, threshold: float) -> tuple[float, float]:
        """The true-positive and the false-positive rate of "present" at scores of ``threshold`` and above."""
        above = self.scores >= threshold
        return min(1.0, float(self.present[above].sum())), min(1.0, float(self.absent[above].sum()))


def score_law(phases: Sequence[tuple[Mixture, int]]) -> ScoreLaw:
    """The law of the log-likelihood ratio summed over the steps of all phases.

    Each step's ratio is spread over the two nearest points of the grid, which keeps its mean; what that adds to the
    variance is far below what the steps have.
    """
    steps = [(*_one_step(mixture), count) for mixture, count in phases]
    means = [sum(count * float(masses[at] @ loss) for loss, *masses, count in steps) for at in (0, 1)]
    variances = [
        sum(count * float(masses[at] @ (loss - float(masses[at] @ loss)) ** 2) for loss, *masses, count in steps)
        for at in (0, 1)
    ]
    spread = _REACH * math.sqrt(max(*variances, 1e-300))
    low, high = min(means) - spread, max(means) + spread
    spacing = (high - low) / _CELLS
    laws = []
    for at in (0, 1):
        transform = np.ones(_CELLS // 2 + 1, dtype=np.complex128)
        for loss, *masses, count in steps:
            transform *= np.fft.rfft(_on_grid(loss / spacing, masses[at])) ** count
        masses_of_sum = np.clip(np.fft.irfft(transform, _CELLS), 0.0, None)
        laws.append(np.roll(masses_of_sum, -(math.floor(low / spacing) % _CELLS)) / masses_of_sum.sum())
    scores: Floats = spacing * (math.floor(low / spacing) + np.arange(_CELLS, dtype=np.float64))
    return ScoreLaw(scores=scores, absent=laws[0], present=laws[1])


@dataclass(frozen=True, kw_only=True)
class EndToEnd:
    """What a planted group adds to the sum of all updates along its direction, and what stands there anyway.

    mean, std: of the group's part. noise: the standard deviation of the noise. In the units of the clip norms given.
    """

    mean: float
    std: float
    noise: float

    def log_ratio(self, along: Floats) -> Floats:
        """ln of present over absent where the sum along the direction is ``along``, both taken to spread alike."""
        ratio: Floats = (along - 0.5 * self.mean) * self.mean / self.noise**2
        return ratio

    def law(self) -> ScoreLaw:
        """The law of that ratio, normal."""
        effect = self.mean / self.noise
        spread = effect * math.sqrt(self.noise**2 + self.std**2) / self.noise
        return ScoreLaw.normal(-0.5 * effect**2, effect, 0.5 * effect**2, spread)


def end_to_end(pairs: Sequence[tuple[Mixture, int]], clip_norms: Sequence[float], every: int = 1) -> EndToEnd:
    """From each phase's one-step pair, in units of its clip norm, and its steps.

    every: canaries have gradients in the steps with a number that this divides, and noise comes in all of them.
    """
    noise = mean = variance = 0.0
    done = 0
    for (pair, steps), clip_norm in zip(pairs, clip_norms, strict=True):
        speaking = (done + steps) // every - done // every
        done += steps
        first = float(pair.probabilities @ pair.sensitivities)
        noise += steps * (clip_norm * pair.sigma) ** 2
        mean += speaking * clip_norm * first
        variance += speaking * clip_norm**2 * max(0.0, float(pair.probabilities @ pair.sensitivities**2) - first**2)
    return EndToEnd(mean=mean, std=math.sqrt(variance), noise=math.sqrt(noise))


def replace_non_finite(values: Array) -> Array:
    """In float64, 0 for what is not a number and finite where it is infinite."""
    tamed: Array = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=_LARGE, neginf=-_LARGE)
    return tamed


def planted_pairs(
    phases: Sequence[dps.Phase], attack: Attack, records: int, group_size: int, *, summed: bool = False
) -> list[tuple[Mixture, int]]:
    """Per phase what one step shows along the direction of a planted group, and the steps.

    records: how many the adversary takes to be in the run, planted ones included. summed: for sums over all steps, to
    which every member adds as many gradients an epoch as it has batches there, where these are allocated.
    """
    pairs = []
    for phase in phases:
        pair = theory.planted_mixture(phase, group_size, records, spread=attack.spread)
        if summed and phase.sampling.epoch_steps is not None and attack.every == 1:
            a_step = group_size * phase.sampling.batches_per_epoch / phase.sampling.epoch_steps
            pair = Mixture([a_step], [1.0], pair.sigma)
        pairs.append((pair, phase.steps))
    return pairs


def step_by_step(phases: Sequence[dps.Phase], attack: Attack, records: int, sizes: Array, seen: Array) -> Array:
    """Log-likelihood ratios (m,) of planted against not, from projections (steps, m) in units of the clip norm.

    Without declared noise there is no likelihood; the plain sum over the steps ranks the groups then. Groups of several
    members, each in several batches of an epoch, are scored as if steps were independent: that ranks them less well
    than their likelihood would, which has no product form, and every test holds for it as for any score.
    """
    scores = np.zeros(len(sizes))
    seen = seen / math.cos(attack.spread)
    for size in attack.sizes:
        at, start = np.flatnonzero(sizes == size), 0
        for phase in phases:
            rows = seen[start : start + phase.steps, at]
            start += phase.steps
            if phase.noiseless:
                scores[at] += rows.sum(axis=0)
            elif phase.sampling.epoch_steps is not None and 1 in (size, phase.sampling.batches_per_epoch):
                sigma = phase.noise_multiplier / math.cos(attack.spread)
                for epoch in np.split(rows, phase.steps // phase.sampling.epoch_steps):
                    if phase.sampling.batches_per_epoch == 1:
                        scores[at] += allocated_log_ratio(epoch, size, sigma)
                    else:
                        scores[at] += several_log_ratio(epoch, phase.sampling.batches_per_epoch, sigma)
            else:
                ((pair, _),) = planted_pairs([phase], attack, records, size)
                scores[at] += pair.log_ratio(rows).sum(axis=0)
    return scores


def allocated_log_ratio(seen: Array, group_size: int, sigma: float) -> Array:
    """ln of present over absent (m,) for k members, each in one of t steps, from an epoch's projections (t, m).

    Given the members' numbers c_s at each step the ratio is the product of exp((c_s z_s - c_s^2 / 2) / sigma^2); its
    mean over the multinomial c is k! / t^k times the coefficient of x^k in the product over s of
    sum_j x^j / j! exp((j z_s - j^2 / 2) / sigma^2).
    """
    steps, count = seen.shape
    members = np.arange(group_size + 1)[:, None]
    logs = np.full((group_size + 1, count), -np.inf)
    logs[0] = 0.0
    for row in seen:
        terms = (members * row - 0.5 * members**2) / sigma**2 - gammaln(members + 1.0)
        logs = np.stack([np.logaddexp.reduce(logs[: d + 1] + terms[d::-1], axis=0) for d in range(group_size + 1)])
    found: Array = logs[group_size] + gammaln(group_size + 1.0) - group_size * math.log(steps)
    return found


def several_log_ratio(seen: Array, batches: int, sigma: float) -> Array:
    """ln of present over absent (m,) for one member in r of t steps, from an epoch's projections (t, m).

    Over all sets of r steps the mean of the products of exp((z_s - 1/2) / sigma^2) is their r-th elementary symmetric
    polynomial over the number of sets.
    """
    steps, count = seen.shape
    logs = np.full((batches + 1, count), -np.inf)
    logs[0] = 0.0
    for row in (seen - 0.5) / sigma**2:
        logs[1:] = np.logaddexp(logs[1:], logs[:-1] + row)
    sets = gammaln(steps + 1.0) - gammaln(batches + 1.0) - gammaln(steps - batches + 1.0)
    found: Array = logs[batches] - sets
    return found


def along(phases: Sequence[dps.Phase], attack: Attack, records: int, sizes: Array, moved: Array) -> Array:
    """Log-likelihood ratios (m,) of planted against not, from the sums of all updates along the directions (m,)."""
    moved = moved / math.cos(attack.spread)
    if any(phase.noiseless for phase in phases):
        return moved
    scores = np.zeros(len(sizes))
    for size in attack.sizes:
        at = sizes == size
        pairs = planted_pairs(phases, attack, records, size, summed=True)
        scores[at] = end_to_end(pairs, [phase.clip_norm for phase in phases], attack.every).log_ratio(moved[at])
    return scores


def unit_of_noise(phases: Sequence[dps.Phase], options: dps.FrozenMap, divisor: float) -> float:
    """What noise adds to a parameter, rate sqrt(sum of variances) / divisor; 1 without noise.

    It leaves out schedules and momentum.
    """
    variance = sum(phase.steps * (phase.noise_multiplier * phase.clip_norm) ** 2 for phase in phases)
    scale = float(options["learning_rate"]) * math.sqrt(variance) / divisor
    return scale if scale > 0.0 else 1.0


def tested(canaries: int) -> Array:
    """Which of so many canaries of one size are guessed where the others are fitted to, (canaries,) bool."""
    return np.arange(canaries) >= canaries // 2


def _one_step(mixture: Mixture) -> tuple[Floats, Floats, Floats]:
    """The log-likelihood ratios of one step on a fine grid of outputs, with the probabilities of either law."""
    sigma, top = mixture.sigma, float(np.max(mixture.sensitivities))
    points = int(max(4001.0, min(400_001.0, (top / sigma + 24.0) * 100.0)))
    x = np.linspace(-12.0 * sigma, top + 12.0 * sigma, points)
    absent = np.exp(-0.5 * (x / sigma) ** 2)
    present: Floats = np.zeros_like(x)
    for sensitivity, probability in zip(mixture.sensitivities, mixture.probabilities, strict=True):
        present += probability * np.exp(-0.5 * ((x - sensitivity) / sigma) ** 2)
    return mixture.log_ratio(x), absent / absent.sum(), present / present.sum()


def _on_grid(places: Floats, masses: Floats) -> Floats:
    """Masses at real ``places`` shared between the two nearest whole numbers, modulo the number of cells."""
    below = np.floor(places)
    share = places - below
    at = below.astype(np.int64) % _CELLS
    cells: Floats = np.zeros(_CELLS)
    cells += np.bincount(at, masses * (1.0 - share), minlength=_CELLS)
    cells += np.bincount((at + 1) % _CELLS, masses * share, minlength=_CELLS)
    return cells


def _sums(masses: Floats) -> Floats:
    """The sums of the first 0, 1, ..., all masses."""
    return np.concatenate([[0.0], np.cumsum(masses)])
