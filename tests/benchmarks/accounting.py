"""Our numerics beside dp-accounting on the same settings: time, peak memory, interval. Run by hand:

    python tests/benchmarks/accounting.py [--quick] [--alone] [--only SETTING]

Every measurement runs in a process of its own, so that peak memory is its own; the sides take turns, and the least of
three rounds counts. Times are CPU seconds without imports; machines are noisy, so read the ratios. dp-accounting gives
an upper value only. It is asked twice: at its default grid of 1e-4, and at the coarsest grid (of those in a ratio of
the fourth root of two) at which its value is no larger than our upper end. That column is the fair one: equal accuracy,
though theirs is one-sided and not certified. It knows nothing of random allocation ("one
of 100": a record is in one of so many steps of an epoch). Nothing here is random. ``--alone`` leaves dp-accounting out,
``--quick`` measures only what is fast on both sides.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

#: name, kind of composition and its arguments, relative width, whether dp-accounting is asked too, whether it is quick.
SETTINGS: list[tuple[str, str, list[Any], float, bool, bool]] = [
    ("k=1", "group", [1, 0.01, 1.0, 2000, 1e-6], 1e-3, True, True),
    ("k=4", "group", [4, 0.01, 1.0, 2000, 1e-6], 1e-3, True, False),
    ("k=16", "group", [16, 0.01, 1.0, 2000, 1e-6], 1e-3, True, False),
    ("k=64", "group", [64, 0.01, 1.0, 2000, 1e-6], 1e-3, False, True),
    ("k=1024", "group", [1024, 0.01, 1.0, 2000, 1e-6], 1e-3, False, True),
    ("10,000 steps", "group", [1, 0.004, 1.0, 10_000, 1e-5], 1e-3, True, True),
    ("... to 2e-4", "group", [1, 0.004, 1.0, 10_000, 1e-5], 9e-5, False, True),
    ("10^7 steps", "group", [1, 1e-4, 1.0, 10_000_000, 1e-6], 1e-3, False, True),
    ("delta 1e-30", "group", [8, 0.01, 1.0, 2000, 1e-30], 1e-3, False, True),
    ("50 sigmas", "sigmas", [0.01, 0.7, 0.02, 40, 1e-6], 1e-3, True, False),
    ("Laplace", "laplace", [0.01, 1.0, 2000, 1e-6], 1e-3, True, True),
    ("a cap", "capped", [60_000, 0.01, 660, 1.0, 2000, 1e-6], 1e-3, True, True),
    ("one of 100", "allocated", [100, 1.0, 20, 1e-6], 1e-3, False, True),
    ("one of 1000", "allocated", [1000, 0.8, 100, 1e-10], 1e-3, False, True),
]


def ours(kind: str, arguments: list[Any], width: float) -> dict[str, Any]:
    """Both directions, certified, at a relative width."""
    from dpspec.accounting import Laplace, Mixture, Pair, PrivacyLoss, RandomAllocation, TruncatedPoisson

    def work() -> tuple[float, float]:
        phases: list[tuple[Pair, int]]
        if kind == "group":
            k, rate, sigma, steps, delta = arguments
            phases = [(Mixture.poisson(k, rate, sigma), steps)]
        elif kind == "sigmas":
            rate, least, more, steps, delta = arguments
            phases = [(Mixture.poisson(1, rate, least + more * i), steps) for i in range(50)]
        elif kind == "capped":  # what dominates; what data are known to attain lies below, and no peer says it
            records, rate, cap, sigma, steps, delta = arguments
            phases = [(TruncatedPoisson(1, rate, cap, records, sigma).above(), steps)]
        elif kind == "allocated":
            epoch_steps, sigma, epochs, delta = arguments
            phases = [(RandomAllocation(epoch_steps, sigma), epochs)]
        else:
            rate, scale, steps, delta = arguments
            phases = [(Laplace(scale, 1.0, rate), steps)]
        interval = PrivacyLoss(tuple(phases)).epsilon(delta, width=width)
        return interval.lower, interval.upper

    return _timed(work)


#: dp-accounting's own grid, and the coarsest and finest of those among which the fair one is looked for.
DEFAULT, COARSEST, FINEST = 1e-4, 0.5, 1e-6

#: Grids that are compared are in this ratio.
RATIO = 2.0**0.25


def theirs(kind: str, arguments: list[Any], grid: float) -> dict[str, Any]:
    """dp-accounting through its accountant, for groups by the event that the paper names; both directions, upper."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from scipy.stats import binom

    def work() -> tuple[float, float]:
        accountant = PLDAccountant(value_discretization_interval=grid)
        if kind == "group":
            k, rate, sigma, steps, delta = arguments
            chances = binom.pmf(range(k + 1), k, rate).tolist()
            event: dp_event.DpEvent = dp_event.MixtureOfGaussiansDpEvent(sigma, list(range(k + 1)), chances)
            if k == 1:  # what one writes for single records; it is the faster of the two
                event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
            accountant.compose(event, steps)
        elif kind == "sigmas":
            rate, least, more, steps, delta = arguments
            for i in range(50):
                step = dp_event.GaussianDpEvent(least + more * i)
                accountant.compose(dp_event.PoissonSampledDpEvent(rate, step), steps)
        elif kind == "capped":
            records, rate, cap, sigma, steps, delta = arguments
            accountant.compose(dp_event.TruncatedSubsampledGaussianDpEvent(records, rate, cap, sigma), steps)
        else:
            rate, scale, steps, delta = arguments
            accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.LaplaceDpEvent(scale)), steps)
        return 0.0, float(accountant.get_epsilon(delta))

    return _timed(work)


def fair_grid(kind: str, arguments: list[Any], most: float) -> dict[str, Any]:
    """The coarsest grid at which dp-accounting says ``most`` or less."""
    grid = COARSEST
    while grid > FINEST and not theirs(kind, arguments, grid)["upper"] <= most:
        grid /= RATIO
    return {"grid": grid}


def _timed(work: Callable[[], tuple[float, float]]) -> dict[str, Any]:
    import resource

    started = time.process_time()
    lower, upper = work()
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"lower": lower, "upper": upper, "seconds": seconds, "mib": peak}


#: How often times are measured.
ROUNDS = 3


def in_turns(settings: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Of each named (side, setting) the measurement with the least time, all taking turns."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in settings}
    for _ in range(ROUNDS):
        for name, (side, *setting) in settings.items():
            found[name].append(measure(side, setting))
    return {name: min(rounds, key=lambda one: float(one["seconds"])) for name, rounds in found.items()}


def measure(side: str, setting: list[Any]) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--one", side, json.dumps(setting)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--only", action="append", metavar="SETTING", help="these rows alone")
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "SETTING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        side, setting = options.one
        asked = {"ours": ours, "theirs": theirs, "fair": fair_grid}[side]
        print(json.dumps(asked(*json.loads(setting))))
        return
    head = f"{'setting':<14}{'ours: interval':<30}{'width':>9}{'s':>8}{'MiB':>6}"
    head += f"   {'default grid':>12}{'s':>8}{'MiB':>6}{'ratio':>8}"
    print(f"{head}   {'fair grid':>10}{'value':>12}{'s':>8}{'ratio':>8}")
    for name, kind, arguments, width, compare, quick in SETTINGS:
        if (options.quick and not quick) or (options.only and name not in options.only):
            continue
        sides: dict[str, list[Any]] = {"ours": ["ours", kind, arguments, width]}
        if compare and not options.alone:
            known = measure("ours", [kind, arguments, width])
            grid = measure("fair", [kind, arguments, known["upper"]])["grid"]
            sides |= {"default": ["theirs", kind, arguments, DEFAULT], "fair": ["theirs", kind, arguments, grid]}
        found = in_turns(sides)
        a = found["ours"]
        line = f"{name:<14}[{a['lower']:.8g}, {a['upper']:.8g}]"
        line = f"{line:<44}{(a['upper'] - a['lower']) / a['upper']:>9.1e}{a['seconds']:>8.3f}{a['mib']:>6.0f}"
        if "fair" in found:
            b, c = found["default"], found["fair"]
            line += f"   {b['upper']:>12.8g}{b['seconds']:>8.2f}{b['mib']:>6.0f}{b['seconds'] / a['seconds']:>7.0f}x"
            line += f"   {grid:>10.2g}{c['upper']:>12.8g}{c['seconds']:>8.3f}{c['seconds'] / a['seconds']:>7.1f}x"
        print(line, flush=True)


if __name__ == "__main__":
    main()
