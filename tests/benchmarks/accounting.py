"""Our numerics beside dp-accounting on the same settings: interval and CPU seconds. Run by hand:

    python tests/benchmarks/accounting.py [--only SETTING]

Times are CPU seconds without imports, the minimum of three rounds (of one, if that took over five seconds). Machines
are noisy, so read the ratios. Nothing here is random.

dp-accounting gives an upper value only, at its default grid of 1e-4 and at the coarsest grid (of those in a ratio of
the fourth root of two) at which its value is no larger than our upper end. That column is the fair one: equal accuracy,
though one-sided and not certified. Settings without it need a finer grid than a minute allows, or have no peer: of
batches with a cap dp-accounting composes another pair, and it does not know random allocation.
"""

import argparse
import time
from collections.abc import Callable
from itertools import chain
from multiprocessing import get_context
from typing import Any

from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom

from dpspec.accounting import Laplace, Mixture, PrivacyLoss, RandomAllocation, TruncatedPoisson

#: name, kind of composition and its arguments (delta is the last), and what is asked of dp-accounting.
SETTINGS: list[tuple[str, str, list[Any], str]] = [
    ("k=1", "group", [1, 0.01, 1.0, 2000, 1e-6], "default, fair"),
    ("k=4", "group", [4, 0.01, 1.0, 2000, 1e-6], "default"),
    ("k=16", "group", [16, 0.01, 1.0, 2000, 1e-6], "default"),
    ("k=1024", "group", [1024, 0.01, 1.0, 2000, 1e-6], ""),
    ("10,000 steps", "group", [1, 0.004, 1.0, 10_000, 1e-5], "default, fair"),
    ("10^7 steps", "group", [1, 1e-4, 1.0, 10_000_000, 1e-6], ""),
    ("delta 1e-30", "group", [8, 0.01, 1.0, 2000, 1e-30], ""),
    ("50 sigmas", "sigmas", [0.01, 0.7, 0.02, 40, 1e-6], "default, fair"),
    ("Laplace", "laplace", [0.01, 1.0, 2000, 1e-6], "default, fair"),
    ("a cap", "capped", [60_000, 0.01, 660, 1.0, 2000, 1e-6], "default"),
    ("one of 100", "allocated", [100, 1.0, 20, 1e-6], ""),
    ("2: Poisson", "group", [1, 0.001, 1.175, 100_000, 1e-10], "default, fair"),
    ("2: allocated", "allocated", [1000, 1.175, 100, 1e-10], ""),
]

WIDTH, DEFAULT = 1e-3, 1e-4

#: The least number of rounds, and the seconds above which one is enough.
ROUNDS, LONG = 3, 5.0


def ours(kind: str, arguments: list[Any]) -> tuple[float, float]:
    """Both directions, certified, at a relative width."""
    *given, delta = arguments
    if kind == "sigmas":
        rate, least, more, steps = given
        loss = PrivacyLoss(tuple((Mixture.poisson(1, rate, least + more * i), steps) for i in range(50)))
    else:
        *pair, steps = given
        if kind == "capped":
            records, rate, cap, sigma = pair
            made: Any = TruncatedPoisson(1, rate, cap, records, sigma).above()
        elif kind == "laplace":
            made = Laplace(pair[1], 1.0, pair[0])
        else:
            made = {"group": Mixture.poisson, "allocated": RandomAllocation}[kind](*pair)
        loss = PrivacyLoss.of(made).compose(steps)
    interval = loss.epsilon(delta, width=WIDTH)
    return interval.lower, interval.upper


def theirs(kind: str, arguments: list[Any], grid: float) -> tuple[float, float]:
    """dp-accounting through its accountant, for groups by the event that the paper names; both directions, upper."""
    *given, delta = arguments
    accountant = PLDAccountant(value_discretization_interval=grid)
    if kind == "sigmas":
        rate, least, more, steps = given
        for i in range(50):
            step = dp_event.GaussianDpEvent(least + more * i)
            accountant.compose(dp_event.PoissonSampledDpEvent(rate, step), steps)
    else:
        *pair, steps = given
        if kind == "group" and pair[0] == 1:  # what one writes for single records; it is the faster of the two
            event: dp_event.DpEvent = dp_event.PoissonSampledDpEvent(pair[1], dp_event.GaussianDpEvent(pair[2]))
        elif kind == "group":
            k, rate, sigma = pair
            event = dp_event.MixtureOfGaussiansDpEvent(sigma, list(range(k + 1)), binom.pmf(range(k + 1), k, rate))
        elif kind == "capped":
            event = dp_event.TruncatedSubsampledGaussianDpEvent(*pair)
        else:
            event = dp_event.PoissonSampledDpEvent(pair[0], dp_event.LaplaceDpEvent(pair[1]))
        accountant.compose(event, steps)
    return 0.0, float(accountant.get_epsilon(delta))


def measured(work: Callable[..., tuple[float, float]], *arguments: Any) -> tuple[float, float, float]:
    started = time.process_time()
    return *work(*arguments), time.process_time() - started


def timed(work: Callable[..., tuple[float, float]], *arguments: Any) -> tuple[float, float, float]:
    """Both ends, and the minimum of CPU seconds; each round in a fork, without what others left in caches."""
    found: list[tuple[float, float, float]] = []
    while len(found) < ROUNDS and (not found or found[0][2] <= LONG):
        with get_context("fork").Pool(1) as pool:
            found.append(pool.apply(measured, (work, *arguments)))
    return min(found, key=lambda one: one[2])


def fair_grid(kind: str, arguments: list[Any], most: float) -> float:
    """The coarsest grid at which dp-accounting's value is at most ``most``."""
    halves = (0.5**i for i in range(1, 20))
    grid = next(grid for grid in halves if theirs(kind, arguments, grid)[1] <= most)
    between = (grid * 2.0 ** (i / 4) for i in (3, 2, 1))
    return next(one for one in chain(between, [grid]) if theirs(kind, arguments, one)[1] <= most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="SETTING", help="these rows alone")
    options = parser.parse_args()
    for name, kind, arguments, asked in SETTINGS:
        if options.only and name not in options.only:
            continue
        lower, upper, seconds = timed(ours, kind, arguments)
        line = f"{name:<14}[{lower:.8g}, {upper:.8g}] {seconds:8.3f} s"
        for label, grid in (("default", DEFAULT), ("fair", None)):
            if label in asked:
                grid = fair_grid(kind, arguments, upper) if grid is None else grid
                _, value, spent = timed(theirs, kind, arguments, grid)
                line += f"   {label} {grid:.2g}: {value:.8g} {spent:8.3f} s {spent / seconds:6.1f}x"
        print(line, flush=True)


if __name__ == "__main__":
    main()
