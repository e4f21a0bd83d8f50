"""The values and CPU seconds of other accountants for ``accounting.py``, run by the interpreter that has them.

Reads one JSON list per line, [rounds, peer, kind, arguments, grid], and writes [epsilon, seconds], with an epsilon of
null after ``LIMIT`` seconds, or null if the peer has no such mechanism. The first line that it writes is a JSON object
with the version of each installed peer.
"""

import importlib.metadata
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from multiprocessing import TimeoutError, get_context
from typing import Any

#: Names of distributions by peer.
PEERS = {"dp-accounting": "dp-accounting", "Opake": "opake-accounting", "jax-privacy": "jax-privacy"}

#: Seconds above which one round is enough, and after which a value is given up: dp-accounting takes 98 CPU seconds for
#: groups of 16, and more than 25 minutes for groups of 1,024.
LONG, LIMIT = 5.0, 240.0


def dp_accounting_epsilon(kind: str, arguments: list[Any], grid: float) -> float:
    """dp-accounting through its accountant, for groups by the event that the paper names; both directions."""
    from dp_accounting import dp_event, privacy_accountant
    from dp_accounting.pld import PLDAccountant
    from scipy.stats import binom

    *parameters, delta = arguments
    relation = privacy_accountant.NeighboringRelation
    neighbors = relation.REPLACE_ONE if kind == "replaced" else relation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(neighbors, value_discretization_interval=grid)
    if kind == "sigmas":
        rate, least, more, steps = parameters
        for i in range(50):
            step = dp_event.GaussianDpEvent(least + more * i)
            accountant.compose(dp_event.PoissonSampledDpEvent(rate, step), steps)
        return float(accountant.get_epsilon(delta))
    *pair, steps = parameters
    if kind in ("group", "replaced") and pair[0] == 1:  # what one writes for single records; the faster of the two
        event: Any = dp_event.PoissonSampledDpEvent(pair[1], dp_event.GaussianDpEvent(pair[2]))
    elif kind == "group":
        k, rate, sigma = pair
        event = dp_event.MixtureOfGaussiansDpEvent(sigma, list(range(k + 1)), binom.pmf(range(k + 1), k, rate))
    elif kind == "capped":
        event = dp_event.TruncatedSubsampledGaussianDpEvent(*pair)
    elif kind == "laplace":
        event = dp_event.PoissonSampledDpEvent(pair[0], dp_event.LaplaceDpEvent(pair[1]))
    else:
        raise NotImplementedError
    return float(accountant.compose(event, steps).get_epsilon(delta))


def opake_epsilon(kind: str, arguments: list[Any], grid: float) -> float:
    """The native functions of Opake, which some versions of Python cannot import with its other modules."""
    files = importlib.metadata.files("opake-accounting") or ()
    library = next(file.locate() for file in files if file.suffix in (".so", ".pyd"))
    spec = importlib.util.spec_from_file_location("opake_accounting", library)
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    *parameters, delta = arguments
    config = native.DiscretizationConfig(discretization=grid)

    def sampled(rate: float, sigma: float) -> Any:
        return native.poisson_pld(native.gaussian_pld(sigma, config), rate)

    if kind == "group" and parameters[0] == 1:
        _, rate, sigma, steps = parameters
        step = sampled(rate, sigma)
    elif kind == "matrix":
        bands, rate, sigma, total = parameters
        step, steps = sampled(rate, sigma), -(-total // bands)
    elif kind == "adaptive":
        rate, sigma, count_std, steps = parameters
        step = sampled(rate, 1.0 / native.adaclip_sensitivity(sigma, count_std))
    elif kind == "capped":
        records, rate, cap, sigma, steps = parameters
        step = native.truncated_poisson_gaussian_pld(sigma, rate, cap, records, config)
    elif kind == "allocated" and parameters[0] <= 100:  # minutes on a finer grid, or of more batches
        batches, sigma, steps = parameters
        config = native.DiscretizationConfig(discretization=10.0 * grid)
        step = native.random_allocation_gaussian_pld(sigma, batches, 1, config)
    else:
        raise NotImplementedError
    return float(step.self_compose(steps).epsilon_at(delta))


def jax_privacy_epsilon(kind: str, arguments: list[Any], grid: float) -> float:
    """The events of jax-privacy in the accountant of dp-accounting."""
    from dp_accounting import privacy_accountant
    from dp_accounting.pld import PLDAccountant
    from jax_privacy.experimental import accounting

    *parameters, delta = arguments
    relation = privacy_accountant.NeighboringRelation
    neighbors = relation.ADD_OR_REMOVE_ONE
    if kind == "group" and parameters[0] == 1:
        _, rate, sigma, steps = parameters
        event = accounting.dpsgd_event(sigma, steps, sampling_prob=rate)
    elif kind == "matrix":
        bands, rate, sigma, steps = parameters
        event = accounting.amplified_bandmf_event(sigma, steps, num_bands=bands, sampling_prob=rate)
    elif kind == "capped":
        records, rate, cap, sigma, steps = parameters
        event = accounting.truncated_dpsgd_event(
            sigma, steps, sampling_prob=rate, num_examples=records, truncated_batch_size=cap
        )
    else:
        raise NotImplementedError
    accountant = PLDAccountant(neighbors, value_discretization_interval=grid)
    return float(accountant.compose(event).get_epsilon(delta))


EPSILONS: dict[str, Callable[[str, list[Any], float], float]] = {
    "dp-accounting": dp_accounting_epsilon,
    "Opake": opake_epsilon,
    "jax-privacy": jax_privacy_epsilon,
}


def measured(peer: str, kind: str, arguments: list[Any], grid: float) -> tuple[float, float] | None:
    try:
        EPSILONS[peer]("group", [1, 0.5, 1.0, 1, 0.1], 0.1)  # imports
        started = time.process_time()
        return EPSILONS[peer](kind, arguments, grid), time.process_time() - started
    except (NotImplementedError, MemoryError):
        return None


def timed(rounds: int, *question: Any) -> tuple[float | None, float] | None:
    """The value and the minimum of CPU seconds; each round in a fork, without what others left in caches."""
    results: list[tuple[float, float]] = []
    while len(results) < rounds and (not results or results[0][1] <= LONG):
        with get_context("fork").Pool(1) as pool:
            try:
                result = pool.apply_async(measured, question).get(LIMIT)
            except TimeoutError:
                return None, LIMIT
        if result is None:
            return None
        results.append(result)
    return min(results, key=lambda result: result[1])


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    versions = {peer: version_of(distribution) for peer, distribution in PEERS.items()}
    print(json.dumps({peer: version for peer, version in versions.items() if version}), flush=True)
    for line in sys.stdin:
        print(json.dumps(timed(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
