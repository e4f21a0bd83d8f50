"""The privacy loss of composed releases: intervals of epsilon, delta, tests, Renyi divergences and rho.

``docs/explanation/proofs/composition.md`` has the pairs of each kind of release and the proofs.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dpspec import accounting, decimals, kit
from dpspec.accounting import EPS, Directions, Floats, Interval, Pair, PrivacyLoss
from dpspec_composition.options import ONE_QUERY, Release, samples_of

#: Relative widths of intervals of claimed values, and of curves.
WIDTH, CURVE_WIDTH = 1e-4, 1e-3

#: Relative rounding of a divergence and of sums of at most 1,000 numbers.
_DIVERGENCE, _SUM = 1e-11, 1e-12

#: Orders less 1 for divergences in closed form, and for those by quadrature.
_ORDERS, _SAMPLED_ORDERS = (1e-10, 1e12), (1e-3, 1e4)

#: A delta so small that epsilon there is as good as a pure one.
_SMALLEST_DELTA = 1e-200

#: The largest number of outcomes of a product of pairs.
_MOST_OUTCOMES = 2**17

#: Method of a lower end without a known pair.
NO_PAIR = "no release has a known pair of outputs"


@dataclass(frozen=True, eq=False)
class Step:
    """A release for one group size.

    Attributes:
        above: A pair that dominates one run; None for zCDP, whose rho is added up first.
        below: A pair that some queries and datasets attain; None if only a guarantee is declared.
        rdp: Upper bounds of the divergences of one run.
        rdp_below: Their lower bounds, if ``below`` is known; by default they are exact.
        rho: The limit of divergence / order for large orders, or the zCDP guarantee.
        is_steady: Whether the divergence is ``rho`` times the order.
        largest_loss: The largest loss of one run besides an infinite one of probability ``delta``.
        declared_loss: The same, exactly, if it follows from the decimals of a spec.
        declared_rho: A rho of zCDP that follows from them; of a steady divergence ``rho`` itself.
        declared_delta: ``delta``, likewise.
        is_symmetric: Whether both directions of an unsampled pair have the same loss.
        is_largest_loss_attained: Whether ``largest_loss`` is also a lower bound, if ``below`` is known.
        noise_alone: The releases with a known pair alone, if guarantees share their sample.
    """

    times: int
    above: Pair | None
    below: Pair | None
    rdp: Callable[[Floats], Floats]
    rdp_below: Callable[[Floats], Floats] | None = None
    rho: float = 0.0
    is_steady: bool = False
    largest_loss: float = math.inf
    declared_loss: Fraction | None = None
    declared_rho: Fraction | None = None
    delta: float = 0.0
    declared_delta: Fraction | None = None
    is_sampled: bool = False
    is_choice: bool = False
    is_symmetric: bool = True
    is_largest_loss_attained: bool = True
    noise_alone: "Step | None" = None

    @property
    def attained(self) -> "Step | None":
        """The part of the step whose pair some queries and datasets attain; None if only guarantees are declared."""
        return self if self.below is not None else self.noise_alone


def steps_of(releases: Sequence[Release], group_size: int) -> list[Step]:
    """A step for each release, and one for all releases of a named sample."""
    steps = []
    for release in releases:
        if release.is_guarantee and release.is_sampled and not release.sample:
            of_one_run = _on_one_sample([replace(release, times=1)], group_size)
            steps.append(replace(of_one_run, times=release.times))
        elif not release.sample:
            steps.append(step_of(release, group_size))
    return steps + [_on_one_sample(shared, group_size) for shared in samples_of(releases).values()]


def step_of(release: Release, group_size: int) -> Step:
    """The release for groups: their sensitivities, losses and square roots of rho add up (group privacy)."""
    k, times = group_size, release.times
    change = k * release.sensitivity
    match release.kind:
        case "gaussian" if release.max_batch:
            return _capped_step(release, k)
        case "gaussian" if release.batch_size > max(0, release.records - k):
            return _nearly_full_step(release, k)
        case "gaussian" | "gaussian-mixture":
            noise = release.sigma / release.sensitivity
            if release.kind == "gaussian-mixture":
                pair = accounting.Mixture(release.shifts, release.probabilities, release.sigma)
            elif release.batch_size:
                pair = accounting.Mixture.fixed(k, release.records - k, release.batch_size, noise)
            else:
                pair = accounting.Mixture.poisson(k, release.rate, noise)
            is_known = release.kind == "gaussian" and not release.batch_size
            return Step(
                times,
                pair,
                pair,
                lambda orders: accounting.mixture_rdp_bounds(orders, pair)[1],
                lambda orders: accounting.mixture_rdp_bounds(orders, pair)[0],
                rho=0.5 * pair.dominating_effect**2,
                is_steady=not release.is_sampled,
                declared_rho=_squared_distance(release) * k * k / 2 if is_known else None,
                is_sampled=release.is_sampled,
            )
        case "laplace":
            laplace = accounting.Laplace(release.scale, change, release.rate)
            largest = max(map(laplace.largest_loss, accounting.DIRECTIONS))
            rdp = lambda orders: accounting.composed_rdp([(laplace, 1)], orders)  # noqa: E731
            if release.rate == 1.0:
                rdp = lambda orders: accounting.laplace_rdp(orders, laplace.edge)  # noqa: E731
            declared = k * _declared(release.sensitivity) / _declared(release.scale) if release.rate == 1.0 else None
            return Step(
                times,
                laplace,
                laplace,
                rdp,
                largest_loss=largest,
                declared_loss=declared,
                declared_rho=None if declared is None else declared**2 / 2,
                is_sampled=release.rate < 1.0,
            )
        case "discrete-gaussian":
            shift, sigma = round(change), release.sigma
            above, below = accounting.discrete_gaussian(sigma, shift)
            return Step(
                times,
                above,
                below,
                lambda orders: accounting.discrete_gaussian_rdp(orders, sigma, shift),
                rho=0.5 * (shift / sigma) ** 2,
                is_steady=sigma > 8.0,
                declared_rho=(shift / _declared(sigma)) ** 2 / 2,
            )
        case "randomized-response":  # each member's answer is a separate run
            answer = accounting.randomized_response(release.epsilon, release.answers)
            return Step(
                times * k,
                answer.above(),
                answer.below(),
                answer.rdp,
                largest_loss=release.epsilon,
                declared_loss=_declared(release.epsilon),
                declared_rho=_declared(release.epsilon) ** 2 / 2,
            )
        case "noise":
            named = kit.noise_pair(release.noise, release.scale, change)
            return Step(
                times,
                named,
                named,
                lambda orders: np.full(np.shape(orders), math.inf),
                rho=math.inf,
                largest_loss=max(map(named.largest_loss, accounting.DIRECTIONS)),
                delta=max(map(named.infinite_mass, accounting.DIRECTIONS)),
                is_symmetric=named.is_symmetric,
                is_largest_loss_attained=False,
            )
        case "exponential":
            width = k * release.epsilon
            return Step(
                times,
                accounting.bounded_range(width).above(),
                None,
                lambda orders: accounting.bounded_range_rdp(orders, width),
                largest_loss=width,
                declared_loss=k * _declared(release.epsilon),
                declared_rho=(k * _declared(release.epsilon)) ** 2 / 8,
                is_choice=True,
            )
        case "approx-dp":
            loss, delta = k * release.epsilon, _group_delta(release.epsilon, release.delta, k)
            response = accounting.approximate_dp(loss, delta)
            without = accounting.approximate_dp(loss)
            return Step(
                times,
                response.above(),
                None,
                without.rdp,
                largest_loss=loss,
                declared_loss=k * _declared(release.epsilon),
                declared_rho=(k * _declared(release.epsilon)) ** 2 / 2,
                delta=delta,
                declared_delta=_declared(delta) if k == 1 else None,
            )
        case "zcdp":
            rho = release.rho * k * k
            declared = k * k * _declared(release.rho)
            return Step(times, None, None, lambda orders: rho * orders, rho=rho, is_steady=True, declared_rho=declared)
    mu = k * release.mu
    gaussian = accounting.Mixture([mu], [1.0], 1.0)
    return Step(
        times,
        gaussian,
        None,
        lambda orders: accounting.gaussian_rdp(orders, mu),
        rho=0.5 * mu * mu,
        is_steady=True,
        declared_rho=(k * _declared(release.mu)) ** 2 / 2,
    )


def _on_one_sample(releases: Sequence[Release], k: int) -> Step:
    """All runs of ``releases`` on one drawn sample: Theorem 35."""
    if all(release.kind in ONE_QUERY for release in releases):
        return _one_query(releases, k)
    assert k == 1, "refused for groups"
    return _amplified(releases)


def _one_query(releases: Sequence[Release], k: int) -> Step:
    """Runs with Gaussian noise on one sample: one query, whose squared distance mu^2 is the sum of theirs."""

    def joined(members: Sequence[Release], side: float) -> Step:
        total = _total((member.times, _squared_distance(member)) for member in members)
        sigma = (1.0 + side * 4.0 * EPS) / math.sqrt(total)
        query = replace(releases[0], kind="gaussian", sigma=sigma, sensitivity=1.0, times=1, sample="")
        return replace(step_of(query, k), declared_rho=None if query.batch_size else total * k * k / 2)

    noisy = [release for release in releases if not release.is_guarantee]
    attained = joined(noisy, 1.0) if noisy else None
    step = joined(releases, -1.0)
    if len(noisy) == len(releases):
        assert attained is not None
        return replace(step, below=attained.below, rdp_below=attained.rdp_below)
    return replace(step, below=None, rdp_below=None, noise_alone=attained)


def _amplified(releases: Sequence[Release]) -> Step:
    """Guarantees on one sample, for one record: their composed pair, mixed at the rate of the sample."""
    first = releases[0]
    rate = Fraction(first.batch_size, first.records) if first.batch_size else _declared(first.rate)
    steps = [step_of(replace(r, rate=1.0, batch_size=0, records=0, sample=""), 1) for r in releases]
    _, whole = _added((step.times, step.largest_loss, step.declared_loss) for step in steps)
    delta = _probability_of_any((step.times, step.delta, step.declared_delta) for step in steps)
    rho = _total((step.times, step.declared_rho) for step in steps)
    loss = _sampled_loss(float(rate), whole)
    if first.batch_size:
        above = _replaced_in_sample(float(rate), whole, delta, loss).above()
    else:
        above = _mixed(_composed_pair(steps, delta, rho), float(rate))
    # the joint outputs are (loss, rate * delta)-DP; sampling increases no divergence
    is_unbounded, bound = loss == math.inf, float(rho) * (1.0 + _SUM)
    return Step(
        1,
        above,
        None,
        (lambda orders: bound * orders) if is_unbounded else accounting.approximate_dp(loss).rdp,
        rho=bound if is_unbounded else 0.0,
        is_steady=is_unbounded,
        largest_loss=loss,
        declared_rho=rho,
        delta=float(rate) * delta * (1.0 + _SUM),
        declared_delta=rate * _declared(delta),
        is_sampled=True,
    )


def _sampled_loss(rate: float, loss: float) -> float:
    """ln(1 + rate (e^loss - 1)), rounded up."""
    if loss == math.inf:
        return loss
    if loss < 500.0:
        return math.log1p(rate * math.expm1(loss)) * (1.0 + _SUM)
    return float(np.logaddexp(math.log1p(-rate) if rate < 1.0 else -math.inf, math.log(rate) + loss)) * (1.0 + _SUM)


def _composed_pair(steps: Sequence[Step], delta: float, rho: Fraction) -> accounting.Discrete:
    """A pair that dominates the composition of guarantees on all records.

    It is the product of their pairs. If that has too many outcomes, it is an answer that reveals the dataset with
    probability ``delta``, and the pair of the sum ``rho``.
    """
    concentrated = _total((step.times, step.declared_rho) for step in steps if step.largest_loss == math.inf)
    factors = [
        (
            step.above
            if isinstance(step.above, accounting.Discrete)
            else accounting.approximate_dp(step.largest_loss).above(),
            step.times,
        )
        for step in steps
        if step.largest_loss < math.inf
    ]
    if concentrated:
        factors.append((accounting.concentrated(float(concentrated) * (1.0 + _SUM)).above(), 1))
    if not _has_few_outcomes(factors):
        revealed = accounting.approximate_dp(0.0, delta).above()
        factors = [(revealed, 1), (accounting.concentrated(float(rho) * (1.0 + _SUM)).above(), 1)]
    return _product(factors)


def _mixed(pair: accounting.Discrete, rate: float) -> accounting.Discrete:
    """The pair of a Poisson sample: with probability ``rate`` it contains the record."""
    present = (1.0 - rate) * pair.absent + rate * pair.present
    return accounting.Discrete(present, pair.absent, pair.rounding + 16.0 * EPS)


def _replaced_in_sample(rate: float, whole: float, delta: float, loss: float) -> accounting.ResponseMixture:
    """The pair of a sample of fixed size with a replaced record, whose release is (``whole``, ``delta``)-DP."""
    share = (1.0 - delta) * math.exp(float(np.logaddexp(0.0, loss) - np.logaddexp(0.0, whole)))
    revealed = rate * delta
    weights = np.array([max(0.0, 1.0 - share - revealed), share])
    return accounting.ResponseMixture(np.array([0.0, loss]), weights, revealed)


def _nearly_full_step(release: Release, k: int) -> Step:
    """A sample of fixed size that omits at most ``k - 1`` records, although it seems to be a full batch.

    A dataset of k records more has as large a sample, so that each drawn member takes another record's place: the sum
    moves by up to 2 k. Datasets without enough records have smaller samples, whose sums move less. A Gaussian of this
    distance dominates these sums (Ganesh 2024, Lemma 2.9), and the k more records attain all of it with a probability
    near 1.
    """
    noise = release.sigma / release.sensitivity
    above = accounting.Mixture.full(2 * k, noise)
    attained = accounting.Mixture.fixed(k, release.batch_size, release.batch_size, noise)
    return Step(
        release.times,
        above,
        attained,
        lambda orders: accounting.mixture_rdp_bounds(orders, above)[1],
        lambda orders: accounting.mixture_rdp_bounds(orders, attained)[0],
        rho=0.5 * above.dominating_effect**2,
        is_sampled=True,
    )


def _capped_step(release: Release, k: int) -> Step:
    """A Poisson sample with a cap of ``max_batch`` records: Theorem 4 for groups of 1 to ``k``.

    In any batch a group of j drawn members moves the sum by at most 2 j: these divergences bound the step. The group
    is removed from the dataset of ``records``, or added to it.
    """
    noise = release.sigma / release.sensitivity
    smaller = release.records - k
    step = accounting.TruncatedPoisson(k, release.rate, release.max_batch, release.records, noise, smaller)
    exact = accounting.TruncatedPoisson(k, release.rate, release.max_batch, smaller, noise).attained()
    doubled = accounting.Mixture.poisson(k, release.rate, 0.5 * noise)
    return Step(
        release.times,
        step.above(),
        exact,
        lambda orders: accounting.mixture_rdp_bounds(orders, doubled)[1],
        lambda orders: accounting.mixture_rdp_bounds(orders, exact)[0],
        rho=0.5 * doubled.dominating_effect**2,
        is_sampled=True,
    )


def _group_delta(epsilon: float, delta: float, k: int) -> float:
    """delta (1 + e^epsilon + ... + e^((k - 1) epsilon)), at most 1 (Vadhan 2017, Lemma 2.2)."""
    if delta == 0.0 or k == 1:
        return delta
    log = math.log(delta) + (k - 1) * epsilon + math.log(-math.expm1(-k * epsilon) / -math.expm1(-epsilon))
    return min(1.0, math.exp(min(log, 0.0)) * (1.0 + _SUM))


class Composition:
    """The composition of releases for groups of one size, possibly adaptive.

    Attributes:
        delta: At this delta and above, epsilon of the guarantees, which samples amplify, is finite.
    """

    def __init__(self, releases: Sequence[Release], group_size: int = 1) -> None:
        self.steps = steps_of(releases, group_size)
        self._sampled = any(step.is_sampled for step in self.steps)
        symmetric = all(step.is_symmetric for step in self.steps) and not self._sampled
        self._direction: Directions = "present-first" if symmetric else "both"
        pairs = [(step, step.above) for step in self.steps]
        guaranteed = math.fsum(step.times * step.rho for step, above in pairs if above is None)
        choices = math.fsum(0.125 * step.times * step.largest_loss**2 for step in self.steps if step.is_choice)
        self._uppers = [self._loss([(above, s.times) for s, above in pairs if above is not None], guaranteed)]
        if choices > 0.0:  # rho of a choice is at most epsilon^2 / 8
            without_choices = [(above, s.times) for s, above in pairs if above is not None and not s.is_choice]
            self._uppers.append(self._loss(without_choices, guaranteed + choices))
        self._attained = [step.attained for step in self.steps if step.attained is not None]
        attained = [(step.below, step.times) for step in self._attained if step.below is not None]
        self._lower = PrivacyLoss(_multiplied(attained), self._direction) if attained else None
        self.delta = _probability_of_any((step.times, step.delta, step.declared_delta) for step in self.steps)
        terms = [(step.times, step.declared_rho) for step in self.steps]
        self._declared_rho = _total(terms) if all(rho is not None for _, rho in terms) else None

    def _loss(self, pairs: Sequence[tuple[Pair, int]], rho: float) -> PrivacyLoss:
        guaranteed = [(accounting.concentrated(rho * (1.0 + _SUM)).above(), 1)] if rho > 0.0 else []
        return PrivacyLoss(_multiplied((*pairs, *guaranteed)), self._direction)

    def curve(self, deltas: Sequence[float]) -> list[float]:
        """Upper bounds of epsilon at each delta in (0, 1), by the pairs that are best at the last one."""
        best = min(self._uppers, key=lambda loss: loss.epsilon(deltas[-1], width=CURVE_WIDTH).upper)
        return [end.upper for end in self._upper_epsilons(deltas, [best], CURVE_WIDTH)]

    def epsilons(self, deltas: Sequence[float]) -> list[Interval]:
        """Epsilon at each delta in (0, 1)."""
        lowers = self._lower.epsilons(deltas) if self._lower else None
        uppers = self._upper_epsilons(deltas, self._uppers, WIDTH)
        return [_joined(lowers[i] if lowers else None, upper) for i, upper in enumerate(uppers)]

    def _upper_epsilons(self, deltas: Sequence[float], losses: Sequence[PrivacyLoss], width: float) -> list[Interval]:
        columns = [loss.epsilons(deltas, width=width) for loss in losses]
        columns.append([self._by_addition(delta) for delta in deltas])
        ends = [min(row, key=lambda end: end.upper) for row in zip(*columns, strict=True)]
        for i, (delta, end) in enumerate(zip(deltas, ends, strict=True)):
            # the exact pairs of samples are tighter than their divergences, whose quadrature takes long
            if not self._sampled or end.upper == math.inf:
                ends[i] = min(end, self._by_divergences(delta), key=lambda end: end.upper)
        return ends

    def _by_divergences(self, delta: float) -> Interval:
        target = (delta - self.delta) * (1.0 - 4.0 * EPS) - 4.0 * EPS * self.delta
        if target <= 0.0:
            return Interval(0.0, math.inf).by("Renyi divergences")
        least, most = _SAMPLED_ORDERS if self._sampled else _ORDERS
        return accounting.smallest_epsilon(self._divergences, target, least, most)

    def _by_addition(self, delta: float) -> Interval:
        _, total = _added((step.times, step.largest_loss, step.declared_loss) for step in self.steps)
        is_spent = self.delta <= delta or self.exceeds_by_rounding(delta)
        return Interval(0.0, total if is_spent else math.inf).by("sum of the losses")

    def exceeds_by_rounding(self, delta: float) -> bool:
        """Whether the declared deltas exceed ``delta``, by no more than their rounding."""
        return self.delta > delta and decimals.is_equal(self.delta, delta)

    @property
    def is_pure(self) -> bool:
        """Whether every loss is bounded."""
        return self.delta == 0.0 and all(step.largest_loss < math.inf for step in self.steps)

    def pure(self) -> Interval:
        """Epsilon at delta 0."""
        with_pair = self._attained
        lower, _ = _added((step.times, step.largest_loss, step.declared_loss) for step in with_pair)
        method = "sum of the losses"
        if lower == math.inf or not all(step.is_largest_loss_attained for step in with_pair):
            assert self._lower is not None
            lower, method = self._lower.epsilon(_SMALLEST_DELTA).lower, f"epsilon at delta {_SMALLEST_DELTA:g}"
        upper = self._by_addition(0.0)
        return Interval(min(lower, upper.upper), upper.upper, upper.method, method if with_pair else NO_PAIR)

    def advantage(self) -> Interval:
        """The total variation distance."""
        upper = min((loss.advantage() for loss in self._uppers), key=lambda end: end.upper)
        return _joined(self._lower.advantage() if self._lower else None, upper)

    def tpr(self, fpr: float) -> Interval:
        """The largest true-positive rate at a false-positive rate in (0, 1]."""

        def rate(loss: PrivacyLoss) -> Interval:
            sides = accounting.directions(self._direction)
            return functools.reduce(Interval.worse, (loss.rero(fpr, direction=side) for side in sides))

        upper = min(map(rate, self._uppers), key=lambda end: end.upper)
        return _joined(rate(self._lower) if self._lower else None, upper)

    def rdp(self, order: float) -> Interval:
        """The Renyi divergence at an order above 1."""
        orders = np.array([order])
        upper = float(self._divergences(orders)[0]) if self.delta == 0.0 else math.inf
        lower = float(self._divergences(orders, exact=True)[0])
        method = "sum of divergences"
        lower, upper = lower * (1.0 - _DIVERGENCE), upper * (1.0 + _DIVERGENCE)
        if self.delta == 0.0 and self._declared_rho is not None:
            upper = min(upper, _between(_declared(order) * self._declared_rho)[1])
        return Interval(min(lower, upper), upper, method, method if lower else NO_PAIR)

    def rho(self) -> Interval:
        """The smallest rho of zCDP."""
        upper, method = math.inf, "largest divergence per order"
        if self.delta == 0.0:
            upper = self._rho(exact=False).upper
            if self._declared_rho is not None:
                upper = min(upper, _between(self._declared_rho)[1])
        lower = self._rho(exact=True).lower
        return Interval(min(lower, upper), upper, method, method if lower else NO_PAIR)

    def _rho(self, *, exact: bool) -> Interval:
        steps = self._attained if exact else self.steps
        steady = _added((step.times, step.rho, step.declared_rho) for step in steps if step.is_steady)
        unsteady = [step for step in steps if not step.is_steady]
        lower = upper = 0.0
        if unsteady:
            limit = math.fsum(step.times * step.rho for step in unsteady)
            bounded = [step for step in unsteady if step.largest_loss < math.inf]
            largest = math.fsum(step.times * step.largest_loss for step in bounded)
            if largest == 0.0:  # sampled or discrete Gaussian noise: at most the Gaussian's, and so in the limit
                lower = upper = limit
            else:
                most, width = (_SAMPLED_ORDERS[1], CURVE_WIDTH) if self._sampled else (1e6, WIDTH)
                interval = accounting.smallest_rho(
                    lambda orders: _summed(unsteady, orders, exact=exact), largest, limit, most=most, width=width
                )
                # a choice has at most epsilon^2 / 8, all else of bounded loss epsilon^2 / 2
                added = math.fsum(s.times * (0.125 if s.is_choice else 0.5) * s.largest_loss**2 for s in bounded)
                lower, upper = interval.lower, min(interval.upper, (limit + added) * (1.0 + _SUM))
        if not unsteady:
            return Interval(*steady)
        return Interval((steady[0] + lower) * (1.0 - _SUM), (steady[1] + upper) * (1.0 + _SUM))

    def _divergences(self, orders: Floats, *, exact: bool = False) -> Floats:
        return _summed(self._attained if exact else self.steps, orders, exact=exact)


def _added(terms: Iterable[tuple[int, float, Fraction | None]]) -> tuple[float, float]:
    """Lower and upper end of the sum of times * value, of (times, value, declared value) each.

    The decimals of declared values, and their quotients, are added exactly: three releases of epsilon 0.1 have 0.3
    together, and not the 0.30000000000000004 of binary fractions. Other sums are rounded outward.
    """
    counted = [*terms]
    if all(declared is not None for *_, declared in counted):
        return _between(_total((times, declared) for times, _, declared in counted))
    rounded = math.fsum(times * value for times, value, _ in counted)
    return rounded * (1.0 - _SUM), rounded * (1.0 + _SUM)


def _probability_of_any(terms: Iterable[tuple[int, float, Fraction | None]]) -> float:
    """1 - product of (1 - probability)^times, rounded up, of (times, probability, declared probability) each.

    Of declared ones it is at most S - (S^2 - Q) / 2 + S^3 / 6, with S their sum and Q the sum of their squares.
    """
    counted = [term for term in terms if term[1] > 0.0]
    if not counted:
        return 0.0
    if any(probability >= 1.0 for _, probability, _ in counted):
        return 1.0
    rounded = -math.expm1(math.fsum(times * math.log1p(-probability) for times, probability, _ in counted))
    rounded *= 1.0 + _SUM
    exact = [(times, declared) for times, _, declared in counted if declared is not None]
    if len(exact) < len(counted):
        return rounded
    total = _total(exact)
    squares = _total((times, declared**2) for times, declared in exact)
    return min(rounded, _between(min(total, total - (total**2 - squares) / 2 + total**3 / 6))[1])


def _total(terms: Iterable[tuple[int, Fraction | None]]) -> Fraction:
    """The sum of times * value of the declared values."""
    return sum((times * value for times, value in terms if value is not None), Fraction(0))


def _between(exact: Fraction) -> tuple[float, float]:
    """The nearest floats whose decimals are not above ``exact``, and not below it."""
    nearest = float(exact)
    low = nearest if _declared(nearest) <= exact else math.nextafter(nearest, -math.inf)
    return low, nearest if _declared(nearest) >= exact else math.nextafter(nearest, math.inf)


def _declared(value: float) -> Fraction:
    """The shortest decimal of a number that a spec declares."""
    return Fraction(repr(float(value)))


def _squared_distance(release: Release) -> Fraction:
    """mu^2 of one run with Gaussian noise, or of a Gaussian DP guarantee."""
    if release.kind == "gdp":
        return _declared(release.mu) ** 2
    return (_declared(release.sensitivity) / _declared(release.sigma)) ** 2


def _multiplied(pairs: Sequence[tuple[Pair, int]]) -> tuple[tuple[Pair, int], ...]:
    """The pairs, or their product, whose profile is exact, if it has few outcomes."""
    factors = [(pair, times) for pair, times in pairs if isinstance(pair, accounting.Discrete)]
    if len(factors) < len(pairs) or not _has_few_outcomes(factors) or math.fsum(times for _, times in factors) < 2:
        return tuple(pairs)
    return ((_product(factors), 1),)


def _has_few_outcomes(factors: Sequence[tuple[accounting.Discrete, int]]) -> bool:
    return math.fsum(times * math.log(len(pair.present)) for pair, times in factors) <= math.log(_MOST_OUTCOMES)


def _product(factors: Sequence[tuple[accounting.Discrete, int]]) -> accounting.Discrete:
    """The pair of all runs.

    Its rounding is less than the outward rounding of pairs of :class:`dpspec.accounting.ResponseMixture`.
    """
    present, absent = np.ones(1), np.ones(1)
    for pair, times in factors:
        for _ in range(times):
            present = np.outer(present, pair.present).ravel()
            absent = np.outer(absent, pair.absent).ravel()
    return accounting.Discrete(present, absent, math.fsum(times * pair.rounding for pair, times in factors))


def _summed(steps: Sequence[Step], orders: Floats, *, exact: bool = False) -> Floats:
    total = np.zeros(np.shape(orders))
    for step in steps:
        total = total + step.times * ((step.rdp_below if exact else None) or step.rdp)(orders)
    return total


def _joined(lower: Interval | None, upper: Interval) -> Interval:
    """From the lower end of the attained pairs to the upper end of the dominating ones."""
    if lower is None:
        return Interval(0.0, upper.upper, upper.method, NO_PAIR)
    return Interval(min(lower.lower, upper.upper), upper.upper, upper.method, lower.lower_method)
