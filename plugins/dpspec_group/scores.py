"""Scores of canaries and their distribution under the declaration. Higher scores favor presence. Imports no torch.

The score is the log-likelihood ratio summed over steps; its declared distribution, a convolution, only serves to choose
guess counts and thresholds in advance and to predict power.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from scipy.special import gammaln, ndtr, ndtri

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats, Mixture
from dpspec.stats.attacks import canary_power, guess_counts, one_run, sequential, thresholds
from dpspec_group.options import DEFAULT_DELTA, EDGES, Attack
from dpspec_group.theory import accounted, group_epsilons

Array: TypeAlias = np.ndarray[Any, Any]

#: Number of cells of the grid, and its reach beyond the means in standard deviations.
_CELLS, _REACH = 1 << 14, 12.0

#: Replacement of infinite scores, independent of the coins.
_LARGE = 1e30


@dataclass(frozen=True, kw_only=True)
class ScoreDistribution:
    """Probabilities of an ``absent`` and a ``present`` canary on one ascending grid of ``scores``, shape (n,) each."""

    scores: Floats
    absent: Floats
    present: Floats

    @classmethod
    def normal(
        cls, absent_mean: float, absent_std: float, present_mean: float, present_std: float
    ) -> "ScoreDistribution":
        spread = _REACH * max(absent_std, present_std)
        edges = np.linspace(
            min(absent_mean, present_mean) - spread, max(absent_mean, present_mean) + spread, _CELLS + 1
        )
        return cls(
            scores=0.5 * (edges[1:] + edges[:-1]),
            absent=np.diff(ndtr((edges - absent_mean) / absent_std)),
            present=np.diff(ndtr((edges - present_mean) / present_std)),
        )

    def correct(self, low: int, high: int, canaries: int) -> float:
        """Expected number of correct guesses: ``low`` lowest scores as absent, ``high`` highest as present."""
        lowest, absent, highest, present = self._tails
        right = float(np.interp(low / canaries, lowest, absent)) + float(np.interp(high / canaries, highest, present))
        return min(float(low + high), 0.5 * canaries * right)

    @cached_property
    def _tails(self) -> list[Floats]:
        """Cumulative masses from 0 on: of the mixture and absent from below, of the mixture and present from above."""
        both = 0.5 * (self.absent + self.present)
        tails = (both, self.absent, both[::-1], self.present[::-1])
        return [np.concatenate([[0.0], np.cumsum(masses)]) for masses in tails]

    def mu(self) -> float:
        """Mu of a Gaussian curve with the same chance that a present canary scores above an absent one."""
        below = np.cumsum(self.absent) - 0.5 * self.absent
        return math.sqrt(2.0) * float(ndtri(min(float(self.present @ below), 1.0 - 1e-12)))

    def rates(self, threshold: float) -> tuple[float, float]:
        """True-positive and false-positive rate of the guess "present" for scores of at least ``threshold``."""
        above = self.scores >= threshold
        return min(1.0, float(self.present[above].sum())), min(1.0, float(self.absent[above].sum()))


def score_distribution(phases: Sequence[tuple[Mixture, int]]) -> ScoreDistribution:
    """Distribution of the summed log-likelihood ratio; each ratio is split between the two nearest grid points."""
    steps = []
    for mixture, count in phases:  # one step on a fine grid of outputs
        sigma, top = mixture.noise_multiplier, float(np.max(mixture.sensitivities))
        points = int(max(4001.0, min(400_001.0, (top / sigma + 24.0) * 100.0)))
        x = np.linspace(-12.0 * sigma, top + 12.0 * sigma, points)
        absent = np.exp(-0.5 * (x / sigma) ** 2)
        present: Floats = np.zeros_like(x)
        for sensitivity, probability in zip(mixture.sensitivities, mixture.probabilities, strict=True):
            present += probability * np.exp(-0.5 * ((x - sensitivity) / sigma) ** 2)
        steps.append((mixture.log_ratio(x), absent / absent.sum(), present / present.sum(), count))
    means = [sum(count * float(masses[coin] @ loss) for loss, *masses, count in steps) for coin in (0, 1)]
    variances = [
        sum(count * float(masses[coin] @ (loss - float(masses[coin] @ loss)) ** 2) for loss, *masses, count in steps)
        for coin in (0, 1)
    ]
    spread = _REACH * math.sqrt(max(*variances, 1e-300))
    low, high = min(means) - spread, max(means) + spread
    spacing = (high - low) / _CELLS
    laws = []
    for coin in (0, 1):
        transform = np.ones(_CELLS // 2 + 1, dtype=np.complex128)
        for loss, *masses, count in steps:
            below = np.floor(loss / spacing)
            share, cell = loss / spacing - below, below.astype(np.int64) % _CELLS
            cells = np.bincount(cell, masses[coin] * (1.0 - share), minlength=_CELLS)
            cells += np.bincount((cell + 1) % _CELLS, masses[coin] * share, minlength=_CELLS)
            transform *= np.fft.rfft(cells) ** count
        masses_of_sum = np.clip(np.fft.irfft(transform, _CELLS), 0.0, None)
        laws.append(np.roll(masses_of_sum, -(math.floor(low / spacing) % _CELLS)) / masses_of_sum.sum())
    scores: Floats = spacing * (math.floor(low / spacing) + np.arange(_CELLS, dtype=np.float64))
    return ScoreDistribution(scores=scores, absent=laws[0], present=laws[1])


@dataclass(frozen=True, kw_only=True)
class EndToEnd:
    """Sum of all updates along the direction of a canary group: its mean and std, and the std of the noise."""

    mean: float
    std: float
    noise: float

    def log_ratio(self, along: Floats) -> Floats:
        """Log-likelihood ratio of presence at the sum ``along``, with equal variances."""
        ratio: Floats = (along - 0.5 * self.mean) * self.mean / self.noise**2
        return ratio

    def law(self) -> ScoreDistribution:
        effect = self.mean / self.noise
        spread = effect * math.sqrt(self.noise**2 + self.std**2) / self.noise
        return ScoreDistribution.normal(-0.5 * effect**2, effect, 0.5 * effect**2, spread)


def end_to_end(
    pairs: Sequence[tuple[Mixture, int]], clip_norms: Sequence[float], steps_per_canary: int = 1
) -> EndToEnd:
    noise = mean = variance = 0.0
    done = 0
    for (pair, steps), clip_norm in zip(pairs, clip_norms, strict=True):
        canary_steps = (done + steps) // steps_per_canary - done // steps_per_canary
        done += steps
        first = float(pair.probabilities @ pair.sensitivities)
        noise += steps * (clip_norm * pair.noise_multiplier) ** 2
        mean += canary_steps * clip_norm * first
        variance += canary_steps * clip_norm**2 * max(0.0, float(pair.probabilities @ pair.sensitivities**2) - first**2)
    return EndToEnd(mean=mean, std=math.sqrt(variance), noise=math.sqrt(noise))


def replace_non_finite(values: Array) -> Array:
    tamed: Array = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=_LARGE, neginf=-_LARGE)
    return tamed


def canary_pairs(
    phases: Sequence[dps.Phase], attack: Attack, records: int, group_size: int, *, summed: bool = False
) -> list[tuple[Mixture, int]]:
    """One-step distribution along the direction of a canary group and number of steps, per phase.

    The drawn members have norm one, and other records are orthogonal.
    """
    pairs = []
    for phase in phases:
        sigma, rate = phase.noise_multiplier / math.cos(attack.spread), phase.rate(records)
        pair = Mixture.full(group_size, sigma) if rate >= 1.0 else Mixture.poisson(group_size, rate, sigma)
        if summed and phase.sampling.epoch_steps is not None and attack.every == 1:
            a_step = group_size * phase.sampling.batches_per_epoch / phase.sampling.epoch_steps
            pair = Mixture([a_step], [1.0], pair.noise_multiplier)
        pairs.append((pair, phase.steps))
    return pairs


def stepwise_scores(
    phases: Sequence[dps.Phase], attack: Attack, records: int, sizes: Array, projections: Array
) -> Array:
    """Log-likelihood ratios of presence (m,) from projections (steps, m) in clip norms; their sums without noise.

    Groups of several members with several batches per epoch are scored as if steps were independent.
    """
    scores = np.zeros(len(sizes))
    projections = projections / math.cos(attack.spread)
    for size in attack.sizes:
        of_size, start = np.flatnonzero(sizes == size), 0
        for phase in phases:
            rows = projections[start : start + phase.steps, of_size]
            start += phase.steps
            if phase.noiseless:
                scores[of_size] += rows.sum(axis=0)
            elif phase.sampling.epoch_steps is not None and 1 in (size, phase.sampling.batches_per_epoch):
                sigma = phase.noise_multiplier / math.cos(attack.spread)
                for epoch in np.split(rows, phase.steps // phase.sampling.epoch_steps):
                    if phase.sampling.batches_per_epoch == 1:
                        scores[of_size] += allocated_log_ratio(epoch, size, sigma)
                    else:
                        scores[of_size] += several_log_ratio(epoch, phase.sampling.batches_per_epoch, sigma)
            else:
                ((pair, _),) = canary_pairs([phase], attack, records, size)
                scores[of_size] += pair.log_ratio(rows).sum(axis=0)
    return scores


def counted_phases(phases: Sequence[dps.Phase], attack: Attack, records: int) -> list[dps.Phase]:
    """Phases with the noise of projections and centered counts together: see :func:`with_counts`.

    The real ``records`` add at most q (1 - q) / 4 each to the variance of a count, unless the adversary sees the batch.
    """
    counted = []
    for phase in phases:
        clipping = phase.get("clipping") or {}
        if clipping.get("scheme") == "adaptive" and not phase.noiseless:
            rate = 1.0 if attack.others_drawn else phase.rate(records)
            count_std = math.hypot(float(clipping["count_std"]), 0.5 * math.sqrt(records * rate * (1.0 - rate)))
            joint = 1.0 / math.hypot(1.0 / phase.noise_multiplier, 0.5 / count_std)
            phase = phase.replace(noise_multiplier=joint)
        counted.append(phase)
    return counted


def with_counts(phases: Sequence[dps.Phase], counted: Sequence[dps.Phase], projections: Array, counts: Array) -> Array:
    """Estimates (steps, m) of the number J of drawn members from projections (steps, m) and counts (steps,).

    A projection is J + N(0, s^2). A clipped member adds -1/2 to a centered count, so that -2 times the count minus its
    expectation is J + N(0, 4 v). Their mean with weights inverse to the variances is J + N(0, t^2), with the noise
    multiplier t of ``counted``, 1 / t^2 = 1 / s^2 + 1 / (4 v), and sufficient for J.
    """
    weights = [
        (joint.noise_multiplier / phase.noise_multiplier) ** 2 if phase.noise_multiplier else 1.0
        for phase, joint in zip(phases, counted, strict=True)
    ]
    of_steps = np.repeat(weights, [phase.steps for phase in phases])[:, None]
    estimates: Array = of_steps * projections - (1.0 - of_steps) * 2.0 * counts[:, None]
    return estimates


def allocated_log_ratio(projections: Array, group_size: int, sigma: float) -> Array:
    """Log-likelihood ratios (m,) for k members, each in one of t steps, from an epoch's projections (t, m).

    Given the numbers of members c_s per step, the ratio is the product of exp((c_s z_s - c_s^2 / 2) / sigma^2). Its
    mean over the multinomial c is k! / t^k times the coefficient of x^k in the product over s of
    sum_j x^j / j! exp((j z_s - j^2 / 2) / sigma^2).
    """
    steps, count = projections.shape
    members = np.arange(group_size + 1)[:, None]
    logs = np.full((group_size + 1, count), -np.inf)
    logs[0] = 0.0
    for row in projections:
        terms = (members * row - 0.5 * members**2) / sigma**2 - gammaln(members + 1.0)
        logs = np.stack([np.logaddexp.reduce(logs[: d + 1] + terms[d::-1], axis=0) for d in range(group_size + 1)])
    log_ratios: Array = logs[group_size] + gammaln(group_size + 1.0) - group_size * math.log(steps)
    return log_ratios


def several_log_ratio(projections: Array, batches: int, sigma: float) -> Array:
    """Log-likelihood ratios (m,) for one member in r of t steps, from an epoch's projections (t, m).

    The mean over all sets of r steps of the products of exp((z_s - 1/2) / sigma^2) is their r-th elementary symmetric
    polynomial divided by the number of sets.
    """
    steps, count = projections.shape
    logs = np.full((batches + 1, count), -np.inf)
    logs[0] = 0.0
    for row in (projections - 0.5) / sigma**2:
        logs[1:] = np.logaddexp(logs[1:], logs[:-1] + row)
    sets = gammaln(steps + 1.0) - gammaln(batches + 1.0) - gammaln(steps - batches + 1.0)
    log_ratios: Array = logs[batches] - sets
    return log_ratios


def along(phases: Sequence[dps.Phase], attack: Attack, records: int, sizes: Array, moved: Array) -> Array:
    """Log-likelihood ratios of presence, shape (m,), from the sums of all updates along the directions (m,)."""
    moved = moved / math.cos(attack.spread)
    if any(phase.noiseless for phase in phases):
        return moved
    scores = np.zeros(len(sizes))
    for size in attack.sizes:
        of_size = sizes == size
        pairs = canary_pairs(phases, attack, records, size, summed=True)
        scores[of_size] = end_to_end(pairs, [phase.clip_norm for phase in phases], attack.every).log_ratio(
            moved[of_size]
        )
    return scores


def tested(canaries: int) -> Array:
    """Mask of guessed canaries of one size if the others calibrate the score, shape (canaries,)."""
    return np.arange(canaries) >= canaries // 2


_UNKNOWN = "the expected bound is unknown"

#: The share of the proved epsilon for which a plan names the number of canaries.
TARGET = 0.8

#: The largest number of canaries of that search.
_MOST = 30_000_000

#: Candidate shares of guessed canaries on each side, "present" and "absent".
_SHARES = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.014, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)

#: Minimum number of guesses with any power.
_MIN_GUESSES = 8

#: Candidate thresholds are every n-th edge of the grid.
_COARSE = 16


@dataclass(frozen=True, kw_only=True)
class Design:
    """One-run design: each rung (low, high) guesses the ``low`` lowest scores absent and the ``high`` highest present.

    ``expected_epsilon`` is NaN if the accuracy is unknown; ``largest_epsilon`` is the bound of correct guesses.
    """

    rungs: tuple[guess_counts.Rung, ...]
    expected_epsilon: float
    largest_epsilon: float


def _expected_rungs(
    law: ScoreDistribution, canaries: int, delta: float, confidence: float
) -> tuple[tuple[guess_counts.Rung, ...], float]:
    """Guess counts around the ones with the largest expected epsilon for ``canaries`` coins, and that epsilon.

    Rungs with fewer guesses serve pipelines that leak more than declared, the rung of all canaries broken ones.
    """
    # The pair of guess counts with the largest epsilon at one standard deviation below the expected accuracy; if all
    # show 0, the pair that deviates most from random guessing.
    best, worth = (0, 0), (-1.0, 0.0)
    sides = sorted({0, *(round(share * canaries) for share in _SHARES), canaries // 2})
    for rung in itertools.product(sides, sides):
        guesses = sum(rung)
        if guesses < min(_MIN_GUESSES, canaries):
            continue
        right = law.correct(*rung, canaries)
        unlucky = max(0, math.floor(right - math.sqrt(right * max(0.0, 1.0 - right / guesses))))
        if worth[0] > 0.0 and one_run.p_value(canaries, guesses, unlucky, worth[0], delta) > 1.0 - confidence:
            continue  # its epsilon is smaller
        shown = one_run.epsilon_lower(canaries, guesses, unlucky, delta, confidence)
        value = (shown, (right - 0.5 * guesses) / math.sqrt(guesses))
        if value > worth:
            best, worth = rung, value
    rungs = guess_counts.around(*best, canaries)
    counts = [sum(rung) for rung in rungs]
    correct = guess_counts.fitting(counts, [law.correct(*rung, canaries) for rung in rungs])
    return rungs, guess_counts.epsilon_lower(canaries, counts, correct, delta, confidence)


def design(law: ScoreDistribution, canaries: int, delta: float, confidence: float) -> Design:
    """The guess counts of ``_expected_rungs``."""
    rungs, expected = _expected_rungs(law, canaries, delta, confidence)
    largest = guess_counts.largest(canaries, [sum(rung) for rung in rungs], delta, confidence)
    return Design(rungs=rungs, expected_epsilon=expected, largest_epsilon=largest)


def blind(canaries: int, delta: float, confidence: float, *, all_only: bool = False) -> Design:
    """Guess counts for an unknown distribution: a geometric sequence up to all canaries, or only all canaries."""
    rungs = guess_counts.blind(canaries, least=_MIN_GUESSES)
    rungs = rungs[-1:] if all_only else rungs
    largest = guess_counts.largest(canaries, [sum(rung) for rung in rungs], delta, confidence)
    return Design(rungs=rungs, expected_epsilon=math.nan, largest_epsilon=largest)


def threshold(
    law: ScoreDistribution, scores: Sequence[float], present: int, absent: int, delta: float, confidence: float
) -> tuple[float, float]:
    """The score from which on a many-run design guesses "present", and its expected lower bound."""

    def expected(score: float, deviations: float = 0.0) -> float:
        tpr, fpr = law.rates(score)
        hits = present * tpr - deviations * math.sqrt(present * tpr * (1.0 - tpr))
        false = absent * fpr + deviations * math.sqrt(absent * fpr * (1.0 - fpr))
        counts = max(0, math.floor(hits)), min(absent, math.ceil(false - 1e-9))
        return thresholds.fixed_epsilon_lower(present, absent, *counts, delta, confidence)

    def worth(score: float) -> tuple[float, float]:
        tpr, fpr = law.rates(score)
        return expected(score, 1.0), tpr - fpr

    best = max(scores, key=worth)
    return best, expected(best)


def attack_delta(spec: dps.Spec, group_size: int) -> float:
    """Delta of the lower bounds for a group size: the largest claimed one."""
    return kit.claimed_deltas(spec, group_size, default=DEFAULT_DELTA)[-1]


def declared_distribution(
    spec: dps.Spec, records: int, group_size: int, attack: Attack | None = None
) -> ScoreDistribution | None:
    """Distribution of the scores of one group size; None if unknown (no noise, input canaries, external scores)."""
    attack = attack or Attack.of(spec)
    if attack.elsewhere or attack.space != "gradient" or any(phase.noiseless for phase in spec.phases):
        return None
    present = records + attack.records_on_average
    phases = counted_phases(spec.phases, attack, records) if attack.score_counts else spec.phases
    pairs = canary_pairs(phases, attack, present, group_size, summed=not attack.white_box)
    if attack.white_box:
        return score_distribution(pairs)
    return end_to_end(pairs, [phase.clip_norm for phase in spec.phases], attack.every).law()


@lru_cache(maxsize=64)  # a plan, the audit and its verification compute the same design
def one_run_design(spec: dps.Spec, records: int, canaries: int, group_size: int) -> Design:
    attack, law = Attack.of(spec), declared_distribution(spec, records, group_size)
    delta, confidence = attack_delta(spec, group_size), attack.confidence
    if law is None:
        all_only = any(phase.noiseless for phase in spec.phases) and not attack.elsewhere
        return blind(canaries, delta, confidence, all_only=all_only)
    return design(law, canaries, delta, confidence)


def records_note(spec: dps.Spec, records: int, canaries: int, group_size: int) -> str:
    """What input canaries showed in a measured training, and what as many gradient canaries are expected to show."""
    attack, note = Attack.of(spec), _UNKNOWN
    if attack.elsewhere or attack.space != "input":
        return note
    note = f"{note}; {canary_power.measured(attack.kind, all_iterates=attack.white_box)}"
    gradients = replace(attack, space="gradient", access="all-iterates", every=1)
    law = declared_distribution(spec, records, group_size, gradients)
    if law is None:
        return note
    expected = _expected(law, attack_delta(spec, group_size), attack.confidence, canaries)
    return f"{note}; computed for as many gradient canaries (space: gradient) and all iterates: about {expected:.2f}"


def many_run_design(spec: dps.Spec, records: int, runs: int, group_size: int) -> tuple[float, float] | None:
    """The threshold for ``runs`` runs, half with the record; None if the distribution of scores is unknown."""
    law, delta = declared_distribution(spec, records, group_size), attack_delta(spec, group_size)
    if law is None:
        return None
    return threshold(law, EDGES[::_COARSE], runs - runs // 2, runs // 2, delta, Attack.of(spec).confidence)


def what(attack: Attack, rows: int, size: int) -> str:
    """Text of the tested ``rows``, runs or canaries."""
    if attack.method == "many-run":
        return f"{rows} runs with and without a group of {size}"
    return f"{rows} canary groups of {size}"


def proved_epsilon(spec: dps.Spec, records: int, group_size: int, delta: float) -> float:
    """The upper bound of the declared steps, within a percent; infinite without one."""
    phases = accounted(spec)
    try:
        ends = [group_epsilons(phases, group_size, records, [delta], side, width=1e-2) for side in ("remove", "add")]
    except ValueError:  # no theorem for these batches
        return math.inf
    return max(end.upper for (end,) in ends)


def _expected(law: ScoreDistribution, delta: float, confidence: float, canaries: int) -> float:
    _, epsilon = _expected_rungs(law, canaries, delta, confidence)
    return epsilon


def needed(proved: float, count: int, unit: str, expected_of: Callable[[int], float]) -> str:
    """The number of ``unit`` at which the expected lower bound is the share :data:`TARGET` of the proved epsilon."""
    if not 0.0 < proved < math.inf:
        return ""
    goal, share = TARGET * proved, f"{100.0 * TARGET:g}% of the proved epsilon {proved:.3g}"
    if expected_of(count) >= goal:
        return f"{share} is expected"
    most = (0.0, count)
    for larger in (digit * 10**power for power in range(1, 8) for digit in (1, 3)):
        if larger <= count:
            continue
        if (expected := expected_of(larger)) >= goal:
            return f"{share} needs about {larger:,} {unit}"
        most = max(most, (expected, larger))
    return f"{share} is not expected from up to {_MOST:,} {unit}; the best number is {most[1]:,}: about {most[0]:.3g}"


def power(spec: dps.Spec, records: int, rows: Mapping[int, tuple[int, int]] | None = None) -> tuple[dps.Power, ...]:
    """Largest and expected lower bounds; ``rows`` are the present and absent rows by size of an external table."""
    attack, powers = Attack.of(spec), []
    runs, confidence = attack.runs, attack.confidence
    for size in rows or attack.sizes:
        delta, expected, further = attack_delta(spec, size), math.nan, ""
        if attack.method == "one-run":
            count = sum(rows[size]) if rows else attack.share * runs
            planned = one_run_design(spec, records, count if rows else attack.tested(attack.share) * runs, size)
            largest, expected = planned.largest_epsilon, planned.expected_epsilon
            law = None if rows or math.isnan(expected) else declared_distribution(spec, records, size)
            if law is not None:
                proved = proved_epsilon(spec, records, size, delta)
                further = needed(
                    proved,
                    attack.tested(attack.share) * runs,
                    "canary groups",
                    partial(_expected, law, delta, confidence),
                )
        else:
            sides = rows[size] if rows else (runs - runs // 2, runs // 2)
            count = sum(sides)
            fixed = None if rows or attack.sequential else many_run_design(spec, records, runs, size)
            if attack.sequential:
                largest = sequential.largest(runs, delta, confidence)
            elif fixed is None:
                largest = thresholds.largest(*sides, delta, confidence)
            else:
                largest, expected = thresholds.fixed_largest(*sides, delta, confidence), fixed[1]
        further = further and f"; {further}"
        powers.append(
            dps.Power(
                at=dps.FrozenMap({"delta": delta, "group_size": size}),
                epsilon=largest,
                method=f"{attack.description}, {what(attack, count, size)}",
                note=(records_note(spec, records, count, size) if attack.method == "one-run" else _UNKNOWN)
                if math.isnan(expected)
                else f"about {expected:.2f} expected if the pipeline is as declared{further}",
            )
        )
    return tuple(powers)
