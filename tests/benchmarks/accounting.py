"""Our numerics beside other accountants on the same settings: interval and CPU seconds. Run by hand:

    python tests/benchmarks/accounting.py [--peers PYTHON] [--only SETTING]

``PYTHON`` is an interpreter with any of dp-accounting, Opake (opake-accounting) and jax-privacy, whose versions are
printed. Times are CPU seconds without imports, the minimum of three rounds (of one, if that took over five seconds).
Machines are noisy, so read the ratios. Nothing here is random.

Peers give an upper value only, at their default grid of 1e-4 (Opake's random allocation: 1e-3). ``fair`` is
dp-accounting at the coarsest grid (of those in a ratio of the fourth root of two) at which its value is no larger than
our upper end: equal accuracy, though one-sided and not certified. Settings without it need a finer grid than a minute
allows, or have no peer. Of batches with a cap the peers compose another pair.
"""

import argparse
import json
import subprocess
import sys
import time
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dpspec.accounting import (
    DoubleMixture,
    Interval,
    Laplace,
    Mixture,
    PrivacyLoss,
    RandomAllocation,
    TruncatedPoisson,
    joint_noise_multiplier,
    largest_sum_pair,
)
from dpspec.contract import FrozenMap
from dpspec_matrix.encoders import encoder_of
from dpspec_matrix.options import Schedule
from dpspec_matrix.theory import epsilons

#: name, kind of composition and its arguments (delta is the last), and whether dp-accounting has a fair grid.
SETTINGS: list[tuple[str, str, list[Any], bool]] = [
    ("k=1", "group", [1, 0.01, 1.0, 2000, 1e-6], True),
    ("k=4", "group", [4, 0.01, 1.0, 2000, 1e-6], False),
    ("k=16", "group", [16, 0.01, 1.0, 2000, 1e-6], False),
    ("k=1024", "group", [1024, 0.01, 1.0, 2000, 1e-6], False),
    ("10,000 steps", "group", [1, 0.004, 1.0, 10_000, 1e-5], True),
    ("10^7 steps", "group", [1, 1e-4, 1.0, 10_000_000, 1e-6], False),
    ("delta 1e-30", "group", [8, 0.01, 1.0, 2000, 1e-30], False),
    ("50 sigmas", "sigmas", [0.01, 0.7, 0.02, 40, 1e-6], True),
    ("Laplace", "laplace", [0.01, 1.0, 2000, 1e-6], True),
    ("a cap", "capped", [60_000, 0.01, 660, 1.0, 2000, 1e-6], False),
    ("a cap that binds", "capped", [60_000, 0.01, 610, 1.0, 2000, 1e-6], False),
    ("one of 100", "allocated", [100, 1.0, 20, 1e-6], False),
    ("2: Poisson", "group", [1, 0.001, 1.175, 100_000, 1e-10], True),
    ("2: allocated", "allocated", [1000, 1.175, 100, 1e-10], False),
    ("replaced", "replaced", [1, 0.01, 1.0, 2000, 1e-6], True),
    ("replaced, k=4", "replaced", [4, 0.01, 1.0, 2000, 1e-6], False),
    ("BandMF, 4 bands", "matrix", [4, 0.01, 1.0, 2000, 1e-6], False),
    ("BandMF, 16 bands", "matrix", [16, 0.05, 1.0, 2000, 1e-6], False),
    ("adaptive clipping", "adaptive", [0.01, 1.0, 5.0, 2000, 1e-6], False),
    ("shuffled, at least", "shuffled", [100, 1.0, 20, 1e-6], False),
]

WIDTH, DEFAULT = 1e-3, 1e-4

#: Least number of rounds, and seconds above which one is enough.
ROUNDS, LONG = 3, 5.0


def interval_of(kind: str, arguments: list[Any]) -> Interval:
    """Both directions, certified, at a relative width."""
    *parameters, delta = arguments
    if kind == "sigmas":
        rate, least, more, steps = parameters
        loss = PrivacyLoss(tuple((Mixture.poisson(1, rate, least + more * i), steps) for i in range(50)))
        return loss.epsilon(delta, width=WIDTH)
    if kind == "matrix":
        return matrix_interval(*parameters, delta)
    *pair, steps = parameters
    if kind == "capped":
        records, rate, cap, sigma = pair
        step: Any = TruncatedPoisson(1, rate, cap, records, sigma).above()
    elif kind == "adaptive":
        rate, sigma, count_std = pair
        step = Mixture.poisson(1, rate, joint_noise_multiplier(sigma, count_std))
    elif kind == "laplace":
        step = Laplace(pair[1], 1.0, pair[0])
    elif kind == "shuffled":
        step = largest_sum_pair(*pair, 2.0, 1.0)
    elif kind == "replaced":
        step = DoubleMixture.poisson(pair[0], *pair)
    else:
        step = {"group": Mixture.poisson, "allocated": RandomAllocation}[kind](*pair)
    return PrivacyLoss.of(step).compose(steps).epsilon(delta, width=WIDTH)


def matrix_interval(bands: int, rate: float, sigma: float, steps: int, delta: float) -> Interval:
    """The banded square root of a plugin, whose columns have norm one after the scaling of the noise."""
    options: dict[str, Any] = {
        "steps": steps,
        "noise_multiplier": sigma,
        "encoder": {"kind": "square-root", "bands": bands},
        "participation": {"scheme": "cyclic-poisson", "separation": bands, "rate": rate},
    }
    schedule = Schedule.of(FrozenMap(options))
    column = encoder_of(schedule.encoder, steps).column
    assert column is not None  # square roots are Toeplitz
    options["noise_multiplier"] = sigma * float(column[:bands] @ column[:bands]) ** 0.5
    return epsilons(Schedule.of(FrozenMap(options)), 1, [delta], width=WIDTH)[0]


def measured(*question: Any) -> tuple[float, float, float]:
    interval_of("group", [1, 0.5, 1.0, 1, 0.1])  # imports, as for the peers
    started = time.process_time()
    interval = interval_of(*question)
    return interval.lower, interval.upper, time.process_time() - started


def timed(*question: Any) -> tuple[float, float, float]:
    """Both ends, and the minimum of CPU seconds; each round in a fork, without what others left in caches."""
    results: list[tuple[float, float, float]] = []
    while len(results) < ROUNDS and (not results or results[0][2] <= LONG):
        with get_context("fork").Pool(1) as pool:
            results.append(pool.apply(measured, question))
    return min(results, key=lambda result: result[2])


class Peers:
    """The accountants of another interpreter."""

    def __init__(self, interpreter: str) -> None:
        script = Path(__file__).with_name("accounting_peers.py")
        self._process = subprocess.Popen(
            [interpreter, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.versions: dict[str, str] = self._read()

    def ask(
        self, peer: str, kind: str, arguments: list[Any], grid: float, rounds: int = ROUNDS
    ) -> tuple[float | None, float] | None:
        """Epsilon, None if that takes minutes, and CPU seconds; None if the peer has no such mechanism."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([rounds, peer, kind, arguments, grid]) + "\n")
        self._process.stdin.flush()
        answer: tuple[float | None, float] | None = self._read()
        return answer

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def fair_grid(self, kind: str, arguments: list[Any], most: float) -> float:
        """The coarsest grid at which dp-accounting's value is at most ``most``."""

        def is_accurate(grid: float) -> bool:
            answer = self.ask("dp-accounting", kind, arguments, grid, rounds=1)
            return answer is not None and answer[0] is not None and answer[0] <= most

        grid = next(grid for grid in (0.5**i for i in range(1, 20)) if is_accurate(grid))
        between = (grid * 2.0 ** (i / 4) for i in (3, 2, 1))
        return next(grid for grid in chain(between, [grid]) if is_accurate(grid))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="SETTING", help="these rows alone")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="an interpreter with peers")
    options = parser.parse_args()
    peers = Peers(options.peers)
    print(", ".join(f"{peer} {version}" for peer, version in peers.versions.items()), flush=True)
    for name, kind, arguments, has_fair_grid in SETTINGS:
        if options.only and name not in options.only:
            continue
        lower, upper, seconds = timed(kind, arguments)
        line = f"{name:<19}[{lower:.7g}, {upper:.7g}] {seconds:8.3f} s"
        questions = [(peer, DEFAULT) for peer in peers.versions]
        if has_fair_grid and "dp-accounting" in peers.versions:
            questions.append(("dp-accounting", peers.fair_grid(kind, arguments, upper)))
        for peer, grid in questions:
            answer = peers.ask(peer, kind, arguments, grid)
            if answer is None:
                continue
            label, (value, peer_seconds) = peer if grid == DEFAULT else f"{peer} {grid:.2g} (fair)", answer
            if value is None:
                line += f"   {label}: no value in {peer_seconds:.0f} s"
            else:
                line += f"   {label}: {value:.7g} {peer_seconds:.3f} s {peer_seconds / seconds:.1f}x"
        print(line, flush=True)


if __name__ == "__main__":
    main()
