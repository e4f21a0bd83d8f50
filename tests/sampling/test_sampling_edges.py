"""Bounds of all schemes at the edges of their options, against enumerated batches of all neighbors of few records.

Each dataset has scalar gradients of one clip norm or 0. Its batches are enumerated with their probabilities, by the
definition of the scheme and not by its sampler, so that the noisy sums of one or two steps have an exact density.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support.phases import phase_of

from dpspec.accounting import PrivacyLoss
from dpspec.contract.sampling import SCHEMES
from dpspec.sampling.scheme import Theory, scheme_named

#: Sums of each step, with the probability of the batches that have them.
Sums = Mapping[tuple[float, ...], float]

SIGMA, EPSILONS = 0.8, (0.0, 0.4, 1.1, 2.3)

#: Gradients of other records and of the group. A null record has the gradient 0 and stays in the dataset.
OTHERS, GROUP = (-1.0, 0.0, 1.0), (1.0, -1.0)


def subsets(records: int, size: int) -> Iterator[tuple[int, ...]]:
    return itertools.combinations(range(records), size)


def batches_of(sampling: Mapping[str, Any], records: int) -> Iterator[tuple[Fraction, tuple[tuple[int, ...], ...]]]:
    """Yield the batches of one step, or of all steps of an epoch, with their probability."""
    everyone = tuple(range(records))
    match sampling["scheme"]:
        case "full":
            yield Fraction(1), (everyone,)
        case "poisson" | "truncated-poisson":
            rate, cap = Fraction(sampling["rate"]), sampling.get("max_batch", records)
            for drawn in range(records + 1):
                for chosen in subsets(records, drawn):
                    probability = rate**drawn * (1 - rate) ** (records - drawn)
                    kept = list(itertools.combinations(chosen, min(cap, drawn)))
                    for batch in kept:
                        yield probability / len(kept), (batch,)
        case "fixed":
            possible = list(subsets(records, min(sampling["batch_size"], records)))
            for batch in possible:
                yield Fraction(1, len(possible)), (batch,)
        case "shuffled":
            size = sampling["batch_size"]
            for order in itertools.permutations(everyone):
                batches = tuple(order[first : first + size] for first in range(0, records, size))
                yield Fraction(1, math.factorial(records)), batches
        case "random-allocation":
            steps, several = sampling["epoch_steps"], sampling.get("batches_per_epoch", 1)
            sets = list(subsets(steps, several))
            for places in itertools.product(sets, repeat=records):
                batches = tuple(tuple(i for i in everyone if step in places[i]) for step in range(steps))
                yield Fraction(1, len(sets) ** records), batches


def sums_of(sampling: Mapping[str, Any], gradients: tuple[float, ...]) -> Sums:
    sums: Counter[tuple[float, ...]] = Counter()
    for probability, batches in batches_of(sampling, len(gradients)):
        sums[tuple(sum(gradients[i] for i in batch) for batch in batches)] += probability
    return {means: float(probability) for means, probability in sums.items()}


def density(sums: Sums) -> tuple[np.ndarray[Any, Any], float]:
    """The density of noisy sums on a grid of all steps, and the volume of a cell."""
    steps = len(next(iter(sums)))
    grid = np.linspace(-10.0, 10.0, 4001 if steps == 1 else 501)
    total = np.zeros((len(grid),) * steps)
    for means, probability in sums.items():
        factors = [np.exp(-0.5 * ((grid - mean) / SIGMA) ** 2) / (SIGMA * math.sqrt(2.0 * math.pi)) for mean in means]
        total += probability * (factors[0] if steps == 1 else np.multiply.outer(*factors))
    return total, float(grid[1] - grid[0]) ** steps


def delta(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], cell: float, epsilon: float) -> float:
    """The hockey-stick divergence by the trapezoid rule, up to a relative error of 2e-4."""
    return float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum()) * cell


def neighbors(relation: str, smaller: int, members: int) -> Iterator[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Yield the gradients of pairs of datasets: without the members (or with others in their place), and with them."""
    for others in itertools.combinations_with_replacement(OTHERS, smaller):
        for group in itertools.combinations_with_replacement(GROUP, members):
            if relation == "add-remove":
                yield others, others + group
            elif relation == "zero-out":
                yield others + (0.0,) * members, others + group
            else:
                yield others + tuple(-g for g in group), others + group
                yield others + (0.0,) * members, others + group


#: Options at an edge, the number of records including the members, and the number of members.
EDGES: list[tuple[dict[str, Any], int, int]] = [
    ({"scheme": "full"}, 3, 1),
    ({"scheme": "full"}, 3, 2),
    ({"scheme": "poisson", "rate": 1.0}, 3, 1),
    ({"scheme": "poisson", "rate": 1.0}, 3, 3),
    ({"scheme": "poisson", "rate": 0.5}, 1, 1),
    ({"scheme": "poisson", "rate": 2.0**-20}, 3, 2),
    ({"scheme": "truncated-poisson", "rate": 1.0, "max_batch": 3}, 3, 1),
    ({"scheme": "truncated-poisson", "rate": 1.0, "max_batch": 2}, 3, 1),
    ({"scheme": "truncated-poisson", "rate": 1.0, "max_batch": 1}, 3, 2),
    ({"scheme": "truncated-poisson", "rate": 0.5, "max_batch": 4}, 3, 1),
    ({"scheme": "truncated-poisson", "rate": 0.5, "max_batch": 1}, 2, 1),
    ({"scheme": "truncated-poisson", "rate": 0.5, "max_batch": 3}, 3, 3),
    ({"scheme": "fixed", "batch_size": 3}, 4, 1),
    ({"scheme": "fixed", "batch_size": 2}, 4, 2),
    ({"scheme": "fixed", "batch_size": 1}, 2, 1),
    ({"scheme": "shuffled", "batch_size": 3}, 3, 1),
    ({"scheme": "shuffled", "batch_size": 3}, 3, 2),
    ({"scheme": "shuffled", "batch_size": 2}, 3, 1),
    ({"scheme": "shuffled", "batch_size": 2}, 4, 2),
    ({"scheme": "random-allocation", "epoch_steps": 1}, 3, 1),
    ({"scheme": "random-allocation", "epoch_steps": 2}, 1, 1),
    ({"scheme": "random-allocation", "epoch_steps": 2}, 2, 2),
    ({"scheme": "random-allocation", "epoch_steps": 2, "batches_per_epoch": 2}, 2, 1),
]

#: The number of steps that the enumeration of an epoch has.
STEPS = {"shuffled": lambda s, n: -(-n // s["batch_size"]), "random-allocation": lambda s, n: s["epoch_steps"]}

#: The neighbors that each scheme's bound covers, as ``docs/explanation/threat-models.md`` says.
COVERED = {
    "full": ("add-remove", "zero-out", "replace-one"),
    "poisson": ("add-remove", "zero-out", "replace-one"),
    "truncated-poisson": ("add-remove",),
    "fixed": ("add-remove", "replace-one"),
    "shuffled": ("zero-out", "replace-one"),
    "random-allocation": ("add-remove", "zero-out"),
}

CASES = [(relation, *edge) for edge in EDGES for relation in COVERED[edge[0]["scheme"]]]


def theory_of(scheme: str, relation: str) -> Theory | None:
    """The theory that covers the neighbors; None if specs with this scheme and relation are refused."""
    named = scheme_named(scheme)
    theory = named.replaced if relation == "replace-one" else named.theory
    if theory is None or (relation == "add-remove" and theory.uncovered):
        return None
    return None if relation == "zero-out" and not theory.zero_out else theory


def test_each_scheme_covers_the_neighbors_of_the_table() -> None:
    relations = ("add-remove", "zero-out", "replace-one")
    assert {name: tuple(r for r in relations if theory_of(name, r)) for name in SCHEMES} == COVERED


def is_large(records: int, members: int, sampling: dict[str, Any]) -> bool:
    """Whether the enumeration takes long; a smaller case of the same scheme runs on every change."""
    return (records, members) == (4, 2) or (members == 2 and sampling["scheme"] == "random-allocation")


@pytest.mark.parametrize(
    ("relation", "sampling", "records", "members"),
    [
        pytest.param(relation, sampling, *size, marks=[pytest.mark.ci] * is_large(*size, sampling))
        for relation, sampling, *size in CASES
    ],
    ids=str,
)
def test_no_neighbors_leak_more(relation: str, sampling: dict[str, Any], records: int, members: int) -> None:
    """Of ``records`` records the members are removed, replaced or null, or as many are added."""
    steps = STEPS.get(sampling["scheme"], lambda *_: 1)(sampling, records)
    theory = theory_of(sampling["scheme"], relation)
    assert theory is not None
    pairs = theory.composed(phase_of(steps=steps, noise=SIGMA, **sampling), members, records)
    losses = {side: PrivacyLoss(pairs, side) for side in ("present-first", "absent-first")}
    uppers = {(side, e): loss.delta(e, width=1e-3).upper for side, loss in losses.items() for e in EPSILONS}
    largest = dict.fromkeys(uppers, 0.0)
    sizes = (records - members, records) if relation == "add-remove" else (records - members,)
    assert min(sizes) + (0 if relation == "add-remove" else members) >= theory.min_records(records, members)
    for without in sizes:
        for absent, present in neighbors(relation, without, members):
            (q, cell), (p, _) = (density(sums_of(sampling, gradients)) for gradients in (absent, present))
            for e in EPSILONS:
                forward, back = delta(p, q, cell, e), delta(q, p, cell, e)
                largest["present-first", e] = max(largest["present-first", e], forward)
                largest["absent-first", e] = max(largest["absent-first", e], back)
                if relation == "replace-one":  # either dataset may be the one with the members
                    largest["present-first", e] = max(largest["present-first", e], back)
                    largest["absent-first", e] = max(largest["absent-first", e], forward)
    for question, upper in uppers.items():
        assert largest[question] <= upper * (1.0 + 2e-4) + 1e-9, (question, largest[question], upper)
