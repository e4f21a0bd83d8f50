"""Lower bounds of one run beside those of other programs, on mechanisms whose truth is known. Run by hand:

    python tests/benchmarks/attacks.py [--seeds 400] [--canaries 100 1000 10000] [--rules TEXT]

Three tables, of simulated scores, seeds 0, 1, ...: how much of the true epsilon each rule shows where every canary is
seen through a Gaussian mechanism of its own; how often each is above the truth where there is nothing to see; and both
where the curve is not Gaussian. Level 95%, delta 1e-5.

The class says what a rule rests on. A: nothing. A': nothing, as a statement about mu, of which epsilon follows if the
curve is Gaussian. C: independent canaries and a Gaussian curve. X: not valid as it is commonly used. Other programs'
rules are those of ``peer_bounds.py`` and ``peer_thresholds.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import peer_bounds as peers
import peer_thresholds as jax_privacy
from attack_cases import DELTA, Case, gaussian, mu_of, not_gaussian, samples
from peer_bounds import Array
from support.guess_design import gaussian_design

from dpspec.stats.attacks import curve_lines, guess_counts, one_run

CONFIDENCE = 0.95


class Counted(NamedTuple):
    """A rule that asks only how many of a fixed number of guesses are right, and shows more the more are: its median is
    that of the median count, and which counts show more than some mu is found by bisection.

    count: of scores, coins and case. mu: of canaries and count. rejects: whether that mu is above a given one.
    """

    count: Callable[[Array, Array, Case], int]
    mu: Callable[[int, int], float]
    rejects: Callable[[int, int, float], bool]


Rule = Callable[[Array, Array, Case], float] | Counted


def ranked(scores: Array, coins: Array) -> str:
    """Coins from the lowest score to the highest."""
    return "".join(map(str, coins[np.argsort(scores, kind="stable")]))


def ladder(scores: Array, coins: Array, case: Case) -> float:
    """What dpspec reports as epsilon: a ladder of guess counts, designed for the declared mu."""
    m = len(coins)
    rungs = _rungs(m, case)
    return guess_counts.epsilon_lower(m, *guess_counts.counts([ranked(scores, coins)], rungs), DELTA, CONFIDENCE)


def _curve_count(scores: Array, coins: Array, case: Case) -> int:
    return guess_counts.counts([ranked(scores, coins)], [guess_counts.of_curve(len(coins))])[1][0]


def _curve_rejects(canaries: int, correct: int, mu: float) -> bool:
    guesses = sum(guess_counts.of_curve(canaries))
    points = curve_lines.gaussian(mu)
    return one_run.curve_p_value(canaries, guesses, correct, points) <= 1.0 - CONFIDENCE


#: What dpspec reports as mu.
CURVE = Counted(
    _curve_count,
    lambda m, count: one_run.mu_lower(m, sum(guess_counts.of_curve(m)), count, CONFIDENCE),
    _curve_rejects,
)


#: Other programs' rules of that kind: a mu above another one is theirs to say.
FDP = Counted(
    lambda x, b, c: peers.half_right(x, b, c.centre),
    lambda m, count: peers.fdp_mu(m, m // 2, count),
    lambda m, count, mu: peers.fdp_mu(m, m // 2, count) > mu,
)
XIANG = Counted(
    lambda x, b, c: peers.half_right(x, b, c.centre),
    lambda m, count: peers.xiang_mu(m, m // 2, count),
    lambda m, count, mu: peers.xiang_mu(m, m // 2, count) > mu,
)


_designs: dict[tuple[int, float], tuple[guess_counts.Rung, ...]] = {}


def _rungs(canaries: int, case: Case) -> tuple[guess_counts.Rung, ...]:
    mu = 2.0 * case.centre
    if (canaries, mu) not in _designs:
        _designs[canaries, mu] = gaussian_design(canaries, mu, DELTA, CONFIDENCE)
    return _designs[canaries, mu]


#: Class, name, rule, and how many seeds at most: those that are slow have fewer.
RULES: list[tuple[str, str, Rule, int]] = [
    ("A", "dpspec: epsilon", ladder, 60),
    ("A", "Steinke et al., 15 counts (jax-privacy)", lambda x, b, c: _steinke(x, b, c, True), 60),
    ("X", "Steinke et al., best of 15 counts", lambda x, b, c: _steinke(x, b, c, False), 60),
    ("A'", "dpspec: mu", CURVE, 400),
    ("A'", "Mahloujifar et al., half (PrivacyGuard)", FDP, 400),
    ("C", "Xiang et al., half", XIANG, 400),
    ("C", "GDP, 15 thresholds (jax-privacy HEAD)", lambda x, b, c: peers.gdp(x, b, DELTA, corrected=True), 400),
    ("X", "jax-privacy 2.0.0: one_run", lambda x, b, c: jax_privacy.steinke(x, b, DELTA), 100),
    ("X", "jax-privacy 2.0.0: one_run_fdp", lambda x, b, c: jax_privacy.fdp(x, b, DELTA), 60),
    ("X", "jax-privacy 2.0.0: from_gdp", lambda x, b, c: jax_privacy.gdp(x, b, DELTA), 400),
    ("X", "GDP, best threshold", lambda x, b, c: peers.gdp(x, b, DELTA, corrected=False), 400),
]


def median_and_above(rule: Rule, case: Case, drawn: Sequence[tuple[Array, Array]], mu: float) -> tuple[float, float]:
    """The median epsilon of a rule, and the share of samples in which it is above that of mu on a Gaussian curve."""
    if not isinstance(rule, Counted):
        found = np.array([rule(x, b, case) for x, b in drawn])
        return float(np.median(found)), float((found > curve_lines.gaussian_epsilon(mu, DELTA) + 1e-9).mean())
    canaries = len(drawn[0][1])
    counts = sorted(rule.count(x, b, case) for x, b in drawn)
    low, high = 0, len(counts)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if rule.rejects(canaries, counts[middle], mu) else (middle + 1, high)
    shown = curve_lines.gaussian_epsilon(rule.mu(canaries, counts[(len(counts) - 1) // 2]), DELTA)
    return shown, (len(counts) - low) / len(counts)


def _steinke(scores: Array, coins: Array, case: Case, corrected: bool) -> float:
    return peers.steinke(scores, coins, DELTA, corrected=corrected, centre=case.centre)


def shown(cases: Sequence[Case], sizes: Sequence[int], seeds: int) -> None:
    """The first table: median over the truth, and in brackets the share above it."""
    for canaries in sizes:
        print(f"\n{canaries:,} canaries: median over true epsilon (share of seeds above it), at most {seeds} seeds\n")
        print("| class | rule | seeds | " + " | ".join(f"epsilon {case.epsilon:g}" for case in cases) + " |")
        print("|---|---|---|" + "---|" * len(cases))
        made = [samples(case, canaries, seeds) for case in cases]
        for class_, name, rule, most in RULES:
            cells = []
            for case, drawn in zip(cases, made, strict=True):
                median, above = median_and_above(rule, case, drawn[:most], case.mu)
                cells.append(f"{median / case.epsilon:.2f}" + (f" ({above:.3f})" if above else ""))
            print(f"| {class_} | {name} | {min(most, seeds)} | " + " | ".join(cells) + " |", flush=True)


def nothing(sizes: Sequence[int], seeds: int) -> None:
    """The second table: how often each rule shows something where there is nothing."""
    case = gaussian(0.0)
    print(f"\nTrue epsilon 0: share of seeds with a bound above 0, at most {seeds} seeds\n")
    print("| class | rule | seeds | " + " | ".join(f"{m:,} canaries" for m in sizes) + " |")
    print("|---|---|---|" + "---|" * len(sizes))
    for class_, name, rule, most in RULES:
        shares = [median_and_above(rule, case, samples(case, m, min(seeds, most)), 0.0)[1] for m in sizes]
        print(
            f"| {class_} | {name} | {min(most, seeds)} | " + " | ".join(f"{s:.3f}" for s in shares) + " |", flush=True
        )


def elsewhere(sizes: Sequence[int], seeds: int) -> None:
    """The third table: how often epsilon is above the truth where a curve is not Gaussian."""
    cases = not_gaussian()
    for canaries in sizes:
        print(f"\n{canaries:,} canaries: share of seeds above the true epsilon (median bound), at most {seeds} seeds\n")
        print("| class | rule | seeds | " + " | ".join(f"{c.name}, {c.epsilon:.2f}" for c in cases) + " |")
        print("|---|---|---|" + "---|" * len(cases))
        made = [samples(case, canaries, seeds) for case in cases]
        for class_, name, rule, most in RULES:
            cells = []
            for case, drawn in zip(cases, made, strict=True):
                median, above = median_and_above(rule, case, drawn[:most], mu_of(case.epsilon))
                cells.append(f"{above:.3f} ({median:.2f})")
            print(f"| {class_} | {name} | {min(most, seeds)} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--canaries", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--rules", default="", help="print the rules alone whose names hold this text")
    given = parser.parse_args()
    RULES[:] = [rule for rule in RULES if given.rules in rule[1]]
    shown([gaussian(epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0)], given.canaries, given.seeds)
    nothing(given.canaries, given.seeds)
    elsewhere(given.canaries, given.seeds)


if __name__ == "__main__":
    main()
