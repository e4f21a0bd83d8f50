"""One step with noise on means: Theorem 3.6 by sampled tuples of batches, and Corollary 3.1 with strata.

Formulas: ``docs/explanation/proofs/per-instance.md``. Batches are rows of inclusion bits. One matrix product shared by
all records gives their sums of clipped gradients: a record changes its row's sum by b g and its size by b.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats, whole
from dpspec_per_instance import bounds
from dpspec_per_instance.bounds import Array
from dpspec_per_instance.findings import Analysis
from dpspec_per_instance.one_step import (
    COROLLARY_SOURCE,
    best_corollary,
    epsilons,
    one_step,
    split,
    stratified_distances,
)
from dpspec_per_instance.options import AuditBlock

SOURCE = "Thudi et al. 2024, Theorem 3.6"

#: The first model of a run, the middle one, and the one before the last step.
STAGES = ("initial", "middle", "final")

#: Maximum number of pair products in memory.
_HELD = 2**24


class Estimate(NamedTuple):
    """Plug-in ``value`` (...), and the smallest effective number of tuples over outer batches, ``inner_size`` (...)."""

    value: Floats
    inner_size: Floats


def plug_in(exponents: npt.ArrayLike, order: int) -> Estimate:
    """Mean over outer batches of ln(mean over tuples), from sums of <v_i, v_j> / sigma^2, shape (outer, inner, ...)."""
    e = np.asarray(exponents, dtype=np.float64)
    total = logsumexp(e, axis=1)
    value = np.mean(total - math.log(e.shape[1]), axis=0) / (whole("order", order, 2) - 1.0)
    sizes = np.exp(2.0 * total - logsumexp(2.0 * e, axis=1))
    return Estimate(np.asarray(value), np.asarray(np.min(sizes, axis=0)))


class Batches(NamedTuple):
    """Inclusion bits of outer batches (outer, n) and of tuples (outer, inner, order, n), as float32."""

    outer: Array
    inner: Array


def draw(rng: np.random.Generator, records: int, rate: float, outer: int, inner: int, order: int) -> Batches:
    return Batches(
        (rng.random((outer, records), dtype=np.float32) < rate).astype(np.float32),
        (rng.random((outer, inner, order, records), dtype=np.float32) < rate).astype(np.float32),
    )


def typical_sizes(other_records: int, rate: float) -> range:
    """Sizes above 0 of a batch from ``other_records``, within five standard deviations of the expected size."""
    middle, spread = other_records * rate, 5.0 * math.sqrt(other_records * rate * (1.0 - rate))
    return range(max(1, math.floor(middle - spread)), min(other_records, math.ceil(middle + spread)) + 1)


def mean_changes(
    rng: np.random.Generator, gradients: Array, points: Array, inside: Array | None, sizes: range, draws: int
) -> Array:
    """Change of a batch mean by each record, |g - mean| / (size + 1), shape (sizes, draws, m).

    Batches of all ``sizes`` are prefixes of ``draws`` random orders of the data without the record.
    """
    n, count = len(gradients), np.array(sizes)
    squared_norms = np.square(points, dtype=np.float64).sum(axis=1)
    distances = np.empty((len(count), draws, len(points)))
    for draw in range(draws):
        order = rng.permutation(n)
        sums = np.cumsum(gradients[order[: sizes[-1] + 1]], axis=0, dtype=np.float64)
        squares, along = np.square(sums).sum(axis=1), sums @ points.T.astype(np.float64)
        positions = np.full(len(points), n) if inside is None else np.argsort(order)[inside]
        passed = positions[None, :] < count[:, None]  # the prefix contains the record: extend it by one and subtract it
        last = count[:, None] - 1 + passed
        column = np.arange(len(points))[None, :]
        inner = along[last, column] - passed * squared_norms
        square = squares[last] - passed * (2.0 * along[last, column] - squared_norms)
        far = squared_norms - 2.0 * inner / count[:, None] + square / np.square(count)[:, None]
        distances[:, draw] = np.sqrt(np.maximum(far, 0.0)) / (count[:, None] + 1.0)
    return distances


class _Rows(NamedTuple):
    """Gradient sums, batch sizes, and inclusion bits (..., m) of the records; ``inside``: both include the records."""

    sums: Array
    sizes: Array
    coins: Array


def estimate_kinds(
    gradients: Array, points: Array, inside: Array | None, batches: Batches, coins: Batches | None, sigma: float
) -> Estimate:
    """Estimate D(with || without) and D(without || with) of one step, and the former with noise on sums, shape (3, m).

    ``gradients`` (n, d) and ``points`` (m, d) are clipped. ``inside`` (m,) are the points' positions in the data, or
    None for records outside, whose inclusion bits are ``coins``, shapes (outer, m) and (outer, inner, order, m).
    ``sigma`` is the standard deviation of the noise on the mean, or on the sum.
    """
    rows = [
        _Rows(
            (b.reshape(-1, b.shape[-1]) @ gradients).astype(np.float64).reshape(*b.shape[:-1], -1),
            b.sum(axis=-1, dtype=np.float64),
            b[..., inside] if coins is None else c,
        )
        for b, c in zip(batches, coins or batches, strict=True)
    ]
    order = rows[1].sums.shape[2]
    share = max(1, _HELD // max(1, rows[1].sizes.size * order))
    values, sizes = np.zeros((3, len(points))), np.zeros((3, len(points)))
    for left in range(0, len(points), share):
        block = slice(left, left + share)
        outer, inner = (_Rows(r.sums, r.sizes, r.coins[..., block].astype(np.float64)) for r in rows)
        for kind, (present, divided) in enumerate(((True, True), (False, True), (True, False))):
            e = _exponents(outer, inner, points[block].astype(np.float64), present, coins is None, divided)
            values[kind, block], sizes[kind, block] = plug_in(e / sigma**2, order)
    return Estimate(values, sizes)


def _exponents(outer: _Rows, inner: _Rows, points: Array, present: bool, inside: bool, divided: bool) -> Array:
    """sum_{i<j} <v_i, v_j> of every tuple (outer, inner, m). If not ``present``, the outer batch has the record."""
    beta_o, size_o = _part(outer, not present, inside, divided)  # (o, m)
    beta, size = _part(inner, present, inside, divided)  # (o, i, a, m)
    squared_norms = np.square(points).sum(axis=1)
    along_o, along = outer.sums @ points.T, inner.sums @ points.T  # (o, m), (o, i, a, m)
    gram = np.einsum("oiad,oibd->oiab", inner.sums, inner.sums)
    cross = np.einsum("oiad,od->oia", inner.sums, outer.sums)[..., None]
    square = np.square(outer.sums).sum(axis=1)[:, None]
    # u = <U_i, U_o>, w = |U_o|^2, and the sums over tuples of <U_i, U_j> and |U_i|^2
    u = (
        cross
        + beta_o[:, None, None] * along
        + beta * along_o[:, None, None]
        + beta * beta_o[:, None, None] * squared_norms
    ) / (size * size_o[:, None, None])
    w = (square + 2.0 * beta_o * along_o + beta_o**2 * squared_norms) / size_o**2
    diagonal = np.einsum("oiaa->oia", gram)[..., None]
    norms = (diagonal + 2.0 * beta * along + beta**2 * squared_norms) / size**2
    weights = 1.0 / size
    total = np.einsum("oiam,oiab,oibm->oim", weights, gram, weights, optimize=True)
    reach = (weights * beta).sum(axis=2)
    total += 2.0 * reach * (weights * along).sum(axis=2) + reach**2 * squared_norms
    a = inner.sums.shape[2]
    # |sum v|^2 - sum |v|^2 with v_i = U_i - U_o
    all_pairs = total - 2.0 * a * u.sum(axis=2) + a**2 * w[:, None]
    same = norms.sum(axis=2) - 2.0 * u.sum(axis=2) + a * w[:, None]
    return np.asarray(0.5 * (all_pairs - same))


def _part(rows: _Rows, present: bool, inside: bool, divided: bool) -> tuple[Array, Array]:
    """Multiplicity of g in each row, and the divisor of its sum: the batch size, at least 1, or always 1."""
    sizes = rows.sizes[..., None]
    if inside:
        beta = np.zeros_like(rows.coins) if present else -rows.coins
    else:
        beta = rows.coins if present else np.zeros_like(rows.coins)
    return beta, np.maximum(sizes + beta, 1.0) if divided else np.ones_like(sizes + beta)


#: Number of tabulated distances; lookups use the next larger one.
_DISTANCES = 4096

#: Exponents of the corollary, which holds for each. Tables show the best.
_EXPONENTS = tuple(np.geomspace(1.5, 1e4, 20).tolist())


def mean_rule_tables(spec: dps.Spec, records: Analysis) -> Iterator[dps.Series]:
    """Medians over records. Column sampled uses drawn batches of typical sizes, else a bound, as column bounded."""
    trial = records.trials[0]
    rule = None if spec.audit is None else AuditBlock.of(spec.audit.options).mean_rule
    if rule is None or "mean_rule" not in trial.arrays:
        return
    values, sizes, norms = (trial.arrays[name] for name in ("mean_rule", "mean_rule_sizes", "mean_norms"))
    delta, other_records = kit.claimed_deltas(spec)[-1], records.records - (records.audited.population == "train")
    tuples: list[Sequence[dps.Json]] = []
    steps: list[Sequence[dps.Json]] = []
    for s, stage in enumerate(STAGES):
        sigma = spec.phases[0 if s == 0 else -1].noise_multiplier
        for b, batch in enumerate(rule.batches):
            rate, changes = float(batch) / records.records, trial.arrays[f"mean_changes_{b}"][s]
            inner, slack = split(rate, delta)
            table = _epsilon_table(inner, sigma)
            for o, order in enumerate(rule.orders):
                medians = [float(np.median(values[s, b, o, kind])) for kind in (0, 1, 2)]
                largest = float(bounds.step_divergence(float(order), rate, 1.0 / sigma))
                tuples.append((stage, float(batch), int(order), *medians, largest, float(sizes[s, b, o, :2].min())))
            record_epsilons = []
            for m, norm in enumerate(norms[s]):
                drawn = dict(zip(typical_sizes(other_records, rate), changes[:, :, m], strict=True))
                record_epsilons.append(
                    [
                        _step_epsilon(table, other_records, rate, slack, float(norm), record_changes)
                        for record_changes in (drawn, None)
                    ]
                )
            base, (sampled, bounded) = one_step(rate, sigma, 1.0, delta), np.median(record_epsilons, axis=0).tolist()
            holds = "yes" if base.holds else "no"
            steps.append((stage, float(batch), sampled, bounded, base.amplified, base.printed, holds))
    by_stage = partial(
        kit.series, upper=("data_independent",), rigor="approximate", x="batch", by="stage", log=["x", "y"]
    )
    yield by_stage(
        "mean-rule",
        "One step with noise on the mean of a batch: the median record, by expected batch size",
        kit.columns_of(("stage", "batch", "order", "remove", "add", "sum", "data_independent", "tuples"), tuples),
        source=f"{SOURCE}, sampled",
        privacy=records.privacy_of(values.shape[-1]),
        y=["remove", "data_independent"],
        units=dict.fromkeys(("remove", "data_independent"), "Renyi divergence"),
    )
    title = f"Epsilon of one step at delta {delta:g} with noise on the mean of a batch: the median record"
    yield by_stage(
        "mean-step",
        title.replace("e-0", "e-"),
        kit.columns_of(("stage", "batch", "sampled", "bounded", "data_independent", "printed", "printed_holds"), steps),
        source=f"{COROLLARY_SOURCE}; exact batch sizes, sampled batches of typical sizes",
        privacy=records.privacy_of(norms.shape[1]),
        y=["sampled", "data_independent"],
        units=dict.fromkeys(("sampled", "data_independent"), "epsilon"),
    )


@lru_cache(maxsize=64)  # both stages, a run and its verification repeat the question
def _epsilon_table(delta: float, sigma: float) -> Floats:
    return epsilons(np.linspace(0.0, 1.0, _DISTANCES + 1), delta, sigma)


def _step_epsilon(
    table: Floats, other_records: int, rate: float, slack: float, norm: float, sampled: dict[int, Array] | None
) -> float:
    distances, log_masses = stratified_distances(other_records, rate, norm, sampled)
    table_indices = np.minimum(np.ceil(distances * _DISTANCES), _DISTANCES).astype(np.int64)
    return best_corollary(rate, table[table_indices], log_masses, slack, _EXPONENTS)
