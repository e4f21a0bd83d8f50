"""Our numerics beside others' on the same settings: time, peak memory, interval. Run by hand:

    python tests/benchmarks/accounting.py [--quick] [--alone] [--only SETTING] [--limit SECONDS] [--peer-python PATH]

Every measurement runs in a process of its own, so that peak memory is its own; the sides take turns, and the least of
three rounds counts (of one, where that took over five seconds). Times are CPU seconds without imports; machines are
noisy, so read the ratios. Nothing here is random.

dp-accounting gives an upper value only. It is asked twice: at its default grid of 1e-4, and at the coarsest grid (of
those in a ratio of the fourth root of two) at which its value is no larger than our upper end. That column is the fair
one: equal accuracy, though theirs is one-sided and not certified. The search for it ends after ``--limit`` CPU seconds.
Where no grid was coarse enough by then, the column shows the finest that was tried, ">" before it and before its time:
finer ones take longer. It may be that none would do: of batches with a cap dp-accounting composes another pair.
"2: a cap" shows both ends of what is known of such batches, "a cap" those of the pair that dominates them.

It knows nothing of random allocation ("one of 100": a record is in one of so many steps of an epoch). There the
peer is PLD_accounting, in an environment of its own whose interpreter ``--peer-python`` names. Its grid is refined, as
its own search does it, until its interval is no wider than ours; where that takes over ``--limit`` seconds, the
narrowest by then stands there with ">" before the time of that grid alone. ``--alone`` leaves both out, ``--quick``
measures only what is fast on all sides.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
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
    ("one of 10", "allocated", [10, 1.5, 12, 1e-5], 1e-3, False, True),
    ("one of 100", "allocated", [100, 1.0, 20, 1e-6], 1e-3, False, True),
    ("one of 1000", "allocated", [1000, 0.8, 100, 1e-10], 1e-3, False, True),
    # epsilon 2 at delta 1e-10 after 10^5 steps, by each scheme
    ("2: Poisson", "group", [1, 0.001, 1.175, 100_000, 1e-10], 1e-3, True, True),
    ("2: a cap", "between", [600_000, 0.001, 780, 1.175, 100_000, 1e-10], 1e-3, True, False),
    ("2: allocated", "allocated", [1000, 1.175, 100, 1e-10], 1e-3, False, True),
]


def ours(kind: str, arguments: list[Any], width: float) -> dict[str, Any]:
    """Both directions, certified, at a relative width."""
    from dpspec.accounting import Laplace, Mixture, Pair, PrivacyLoss, RandomAllocation, TruncatedPoisson

    def work() -> tuple[float, float]:
        low: Pair | None = None
        if kind == "sigmas":
            rate, least, more, steps, delta = arguments
            phases: list[tuple[Pair, int]]
            phases = [(Mixture.poisson(1, rate, least + more * i), steps) for i in range(50)]
            interval = PrivacyLoss(tuple(phases)).epsilon(delta, width=width)
            return interval.lower, interval.upper
        if kind == "group":
            k, rate, sigma, steps, delta = arguments
            pair: Pair = Mixture.poisson(k, rate, sigma)
        elif kind in ("capped", "between"):
            records, rate, cap, sigma, steps, delta = arguments
            step = TruncatedPoisson(1, rate, cap, records, sigma)
            pair, low = step.above(), step.attained() if kind == "between" else None
        elif kind == "allocated":
            epoch_steps, sigma, steps, delta = arguments
            pair = RandomAllocation(epoch_steps, sigma)
        else:
            rate, scale, steps, delta = arguments
            pair = Laplace(scale, 1.0, rate)
        interval = PrivacyLoss.of(pair).compose(steps).epsilon(delta, width=width)
        if low is None:
            return interval.lower, interval.upper
        return PrivacyLoss.of(low).compose(steps).epsilon(delta, width=width).lower, interval.upper

    return _timed(work)


#: dp-accounting's own grid, and the coarsest and finest of those among which the fair one is looked for.
DEFAULT, COARSEST, FINEST = 1e-4, 0.5, 1e-6

#: Halves are tried until one does, then so many grids between it and the one before it.
BETWEEN = 4


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
        elif kind in ("capped", "between"):
            records, rate, cap, sigma, steps, delta = arguments
            accountant.compose(dp_event.TruncatedSubsampledGaussianDpEvent(records, rate, cap, sigma), steps)
        else:
            rate, scale, steps, delta = arguments
            accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.LaplaceDpEvent(scale)), steps)
        return 0.0, float(accountant.get_epsilon(delta))

    return _timed(work)


def fair_grids(kind: str, arguments: list[Any], most: float) -> Iterator[dict[str, Any]]:
    """What dp-accounting says at ever finer grids, until it is ``most`` or less, and at some that are coarser again."""
    grid = COARSEST
    while grid > FINEST:
        found = {**theirs(kind, arguments, grid), "grid": grid}
        found["enough"] = found["upper"] <= most
        yield found
        if found["enough"]:
            break
        grid /= 2.0
    for i in range(BETWEEN - 1, 0, -1):
        between = grid * 2.0 ** (i / BETWEEN)
        found = {**theirs(kind, arguments, between), "grid": between}
        found["enough"] = found["upper"] <= most
        yield found
        if found["enough"]:
            return


def allocation_grids(kind: str, arguments: list[Any], width: float) -> Iterator[dict[str, Any]]:
    """What PLD_accounting says of a random allocation at ever finer grids, until its interval is no wider than this.

    Grids are halved and tails cut at a tenth each time, as its own search does it.
    """
    import PLD_accounting as pld

    warnings.simplefilter("ignore")
    assert kind == "allocated"
    steps, sigma, epochs, delta = arguments
    params = pld.PrivacyParams(sigma=sigma, num_steps=steps, num_epochs=epochs, delta=delta)
    for halvings in range(16):
        grid, tail = 0.1 * 0.5**halvings, max(0.1 * delta * 0.1**halvings, 1e-20)
        config = pld.AllocationSchemeConfig(loss_discretization=grid, tail_truncation=tail)

        def work(config: Any = config) -> tuple[float, float]:
            ends = (pld.BoundType.IS_DOMINATED, pld.BoundType.DOMINATES)
            lower, upper = (
                float(pld.gaussian_allocation_epsilon_configurable(params=params, config=config, bound_type=end))
                for end in ends
            )
            return lower, upper

        found = {**_timed(work), "grid": grid}
        found["enough"] = found["upper"] - found["lower"] <= width
        yield found
        if found["enough"]:
            return


def _timed(work: Callable[[], tuple[float, float]]) -> dict[str, Any]:
    import resource

    started = time.process_time()
    lower, upper = work()
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"lower": lower, "upper": upper, "seconds": seconds, "mib": peak}


#: How often times are measured, and the seconds above which once is enough.
ROUNDS, LONG = 3, 5.0


def in_turns(settings: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Of each named (side, setting) the measurement with the least time, all taking turns."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in settings}
    for _ in range(ROUNDS):
        for name, (side, *setting) in settings.items():
            if not found[name] or found[name][0]["seconds"] <= LONG:
                found[name].append(measure(side, setting))
    return {name: min(rounds, key=lambda one: float(one["seconds"])) for name, rounds in found.items()}


def measure(side: str, setting: list[Any]) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--one", side, json.dumps(setting)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def search(python: str, side: str, setting: list[Any], limit: float) -> dict[str, Any] | None:
    """Of grids that a process tries one after the other the coarsest that is enough, else the finest in ``limit`` s.

    None where not even the first was done by then.
    """
    command = [python, __file__, "--one", side, json.dumps(setting), "--limit", str(limit)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, -signal.SIGXCPU):
        raise subprocess.CalledProcessError(done.returncode, command)
    tried: list[dict[str, Any]] = [
        json.loads(line) for line in done.stdout.splitlines(keepends=True) if line.endswith("\n")
    ]
    enough = [one for one in tried if one["enough"]]
    if enough:
        return max(enough, key=lambda one: float(one["grid"]))
    return min(tried, key=lambda one: float(one["grid"]), default=None)


def end_after(seconds: float) -> None:
    """End this process after so many CPU seconds more: by a signal, wherever it is."""
    import resource

    most = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def has_peer(python: str) -> bool:
    """Whether that interpreter finds PLD_accounting."""
    command = [python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('PLD_accounting') is None)"]
    return subprocess.run(command, check=False).returncode == 0


def sign(found: dict[str, Any]) -> str:
    """``>`` before what was found to be not enough."""
    return "" if found["enough"] else ">"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--only", action="append", metavar="SETTING", help="these rows alone")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="of CPU, for a grid")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH", help="that has PLD_accounting")
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "SETTING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        side, setting = options.one[0], json.loads(options.one[1])
        grids = {"fair": fair_grids, "allocation": allocation_grids}
        found = grids[side](*setting) if side in grids else [{"ours": ours, "theirs": theirs}[side](*setting)]
        if side in grids:
            end_after(options.limit)
        for one in found:
            print(json.dumps(one), flush=True)
        return
    head = f"{'setting':<14}{'ours: interval':<30}{'width':>9}{'s':>8}{'MiB':>6}"
    head += f"   {'default grid':>12}{'s':>8}{'MiB':>6}{'ratio':>8}"
    print(f"{head}   {'fair grid':>10}{'value':>12}{'s':>8}{'ratio':>8}   PLD_accounting")
    for name, kind, arguments, width, compare, quick in SETTINGS:
        if (options.quick and not quick) or (options.only and name not in options.only):
            continue
        print(row(name, kind, arguments, width, compare and not options.alone, options), flush=True)


def row(name: str, kind: str, arguments: list[Any], width: float, compare: bool, options: argparse.Namespace) -> str:
    """One setting: ours, and the peers that know of it."""
    sides: dict[str, list[Any]] = {"ours": ["ours", kind, arguments, width]}
    known, fair = measure("ours", [kind, arguments, width]), None
    if compare:
        fair = search(sys.executable, "fair", [kind, arguments, known["upper"]], options.limit)
        sides["default"] = ["theirs", kind, arguments, DEFAULT]
        if fair and fair["enough"]:
            sides["fair"] = ["theirs", kind, arguments, fair["grid"]]
    found = in_turns(sides)
    a = found["ours"]
    line = f"{name:<14}[{a['lower']:.8g}, {a['upper']:.8g}]"
    line = f"{line:<44}{(a['upper'] - a['lower']) / a['upper']:>9.1e}{a['seconds']:>8.3f}{a['mib']:>6.0f}"
    if compare:
        b = found["default"]
        line += f"   {b['upper']:>12.8g}{b['seconds']:>8.2f}{b['mib']:>6.0f}{b['seconds'] / a['seconds']:>7.0f}x"
        if fair is None:
            line += f"   none in {options.limit:g} s"
        else:
            c, more = found.get("fair", fair), sign(fair)
            line += f"   {fair['grid']:>10.2g}{c['upper']:>12.8g}{more + format(c['seconds'], '.3f'):>8}"
            line += f"{more + format(c['seconds'] / a['seconds'], '.1f'):>7}x"
    if kind == "allocated" and not options.alone:
        if not has_peer(options.peer_python):
            return f"{line}   not installed"
        width = known["upper"] - known["lower"]
        peer = search(options.peer_python, "allocation", [kind, arguments, width], options.limit)
        if peer is None:
            return f"{line}   no interval in {options.limit:g} s"
        line += f"   [{peer['lower']:.6g}, {peer['upper']:.6g}] {sign(peer)}{peer['seconds']:.1f} s"
        line += f" {sign(peer)}{peer['seconds'] / a['seconds']:.0f}x"
    return line


if __name__ == "__main__":
    main()
