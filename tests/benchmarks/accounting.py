"""Our numerics beside dp-accounting on the same settings: time, peak memory, interval. Run by hand:

    python tests/benchmarks/accounting.py [--quick] [--alone]

Every measurement runs in a process of its own, one after the other, so that peak memory is its own. Times are CPU
seconds without imports; machines are noisy, so read the ratios. dp-accounting gives an upper value only, at its default
grid of 1e-4. ``--alone`` leaves it out, ``--quick`` measures only what is fast on both sides.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

#: name, k, rate, sigma, steps, delta, whether dp-accounting is asked too, whether it is quick.
SETTINGS: list[tuple[str, int, float, float, int, float, bool, bool]] = [
    ("k=1", 1, 0.01, 1.0, 2000, 1e-6, True, True),
    ("k=4", 4, 0.01, 1.0, 2000, 1e-6, True, False),
    ("k=16", 16, 0.01, 1.0, 2000, 1e-6, True, False),
    ("k=64", 64, 0.01, 1.0, 2000, 1e-6, False, True),
    ("k=1024", 1024, 0.01, 1.0, 2000, 1e-6, False, True),
    ("10,000 steps", 1, 0.004, 1.0, 10_000, 1e-5, True, True),
    ("10^7 steps", 1, 1e-4, 1.0, 10_000_000, 1e-6, False, True),
    ("delta 1e-30", 8, 0.01, 1.0, 2000, 1e-30, False, True),
]


def ours(k: int, rate: float, sigma: float, steps: int, delta: float) -> dict[str, Any]:
    """Both directions, certified, at a relative width of 1e-3 or better."""
    from dpspec.accounting.group import group_epsilon
    from dpspec.accounting.mixture import Mixture

    def work() -> tuple[float, float]:
        interval = group_epsilon([(Mixture.poisson(k, rate, sigma), steps)], delta, "both", 1e-3)
        return interval.lower, interval.upper

    return _timed(work)


def theirs(k: int, rate: float, sigma: float, steps: int, delta: float) -> dict[str, Any]:
    """dp-accounting through the event that the paper names, both directions, upper value."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from scipy.stats import binom

    def work() -> tuple[float, float]:
        accountant = PLDAccountant()
        event = dp_event.MixtureOfGaussiansDpEvent(sigma, list(range(k + 1)), binom.pmf(range(k + 1), k, rate).tolist())
        accountant.compose(event, steps)
        return 0.0, float(accountant.get_epsilon(delta))

    return _timed(work)


def _timed(work: Callable[[], tuple[float, float]]) -> dict[str, Any]:
    import resource

    started = time.process_time()
    lower, upper = work()
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"lower": lower, "upper": upper, "seconds": seconds, "mib": peak}


def measure(side: str, setting: tuple[Any, ...]) -> dict[str, Any]:
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
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "SETTING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        side, setting = options.one
        print(json.dumps({"ours": ours, "theirs": theirs}[side](*json.loads(setting))))
        return
    ours_head = f"{'setting':<14}{'ours: interval':<30}{'width':>9}{'s':>8}{'MiB':>6}"
    print(f"{ours_head}   {'theirs':>12}{'s':>8}{'MiB':>6}{'ratio':>8}")
    for name, k, rate, sigma, steps, delta, compare, quick in SETTINGS:
        if options.quick and not quick:
            continue
        setting = (k, rate, sigma, steps, delta)
        a = measure("ours", setting)
        width = (a["upper"] - a["lower"]) / a["upper"]
        line = f"{name:<14}[{a['lower']:.8g}, {a['upper']:.8g}]"
        line = f"{line:<44}{width:>9.1e}{a['seconds']:>8.3f}{a['mib']:>6.0f}"
        if compare and not options.alone:
            b = measure("theirs", setting)
            ratio = b["seconds"] / a["seconds"]
            line += f"   {b['upper']:>12.8g}{b['seconds']:>8.2f}{b['mib']:>6.0f}{ratio:>7.0f}x"
        print(line, flush=True)


if __name__ == "__main__":
    main()
