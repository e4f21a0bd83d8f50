"""An oracle for scopes: compare bounds with the plugin's executed code on explicit neighbors.

``readings`` takes a mechanism's block and two datasets that differ in one record, and finds their scope. It runs the
pipeline on both as a trial does (clip to the ball, fit the steps, query or gradients, noise of the declared scale),
computes the exact divergence of the two output distributions, and compares it with every bound that covers the pair.
A ratio above 1 refutes the bound. The output of many noisy steps has no closed form, so the constants of the proof are
compared too: norms and smoothness of gradients.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, log_softmax, logsumexp

from dpspec.contract import Claim, Facts, Finding, FrozenMap, Scope, Section, Spec, ThreatModel
from dpspec.results.evidence_weight import covers
from dpspec_preprocessing import PreprocessingAudit, bounds, options, steps
from dpspec_preprocessing.engines import LinearEngine
from dpspec_preprocessing.private import Private
from dpspec_preprocessing.sensitivity import STEPS, read_step, refusal_probability
from support import specs

Rows: TypeAlias = npt.NDArray[np.float64]
Block: TypeAlias = dict[str, Any]

#: Tolerance of a ratio for rounding, and the number of random parameters for gradients.
TOLERANCE, _PLACES = 1e-9, 4

#: The reading of a pair that no bound covers.
NOTHING = "nothing is claimed"

#: The order of Renyi divergences, and the grid of one-dimensional mixtures.
ORDER, _NODES = 2.0, 4001


class Pair(NamedTuple):
    """Two datasets that differ in record 0: rows (n, d) with NaN for missing values, labels -1 and 1."""

    one: Rows
    other: Rows
    labels: Rows
    other_labels: Rows


class Reading(NamedTuple):
    """One bound, and the value of the executed code."""

    what: str
    bound: float
    executed: float

    @property
    def ratio(self) -> float:
        """The ratio of value and bound; above 1 if the bound does not hold."""
        if self.executed <= self.bound:
            return self.executed / self.bound if self.bound > 0.0 and math.isfinite(self.bound) else 0.0
        return self.executed / self.bound if self.bound > 0.0 else math.inf


def declared(mechanism: Mapping[str, Any], records: int, features: int) -> tuple[Spec, Facts]:
    """Return the spec of a mechanism's block, and the facts of declared data."""
    block = {"radius": 1.0, "clip_rows": True, **mechanism}
    access = "final-model" if block["private"]["kind"] == "sgd-iterated" else "all-iterates"
    delta = block["ptr"]["delta"] if block.get("ptr") else 1e-5
    kinds: list[tuple[str, Block]] = [("gdp", {"mu": 1.0}), ("approx-dp", {"epsilon": 1.0, "delta": delta})]
    kinds += [("renyi-dp", {"alpha": ORDER, "epsilon": 1.0})]
    scope: Block = {"adjacency": "replace-one", "access": access}
    claims = (Claim(id=kind, kind=kind, options=FrozenMap(of), direction="both", **scope) for kind, of in kinds)
    threats = ThreatModel(options=FrozenMap({"adversary": "record"}), **scope)
    mechanism_section = Section("preprocessing", FrozenMap(block))
    spec = specs.bare(mechanism=mechanism_section, threat_model=threats, claims=tuple(claims))
    return spec, Facts(records=records, features=features, classes=2, shape=(features,))


def refused(spec: Spec, facts: Facts) -> bool:
    """Whether the plugin rejects the spec, and so states no bound."""
    return any(d.severity == "error" for d in PreprocessingAudit().check(spec, facts))


def readings(mechanism: Mapping[str, Any], records: int, pair: Pair) -> list[Reading]:
    """Return every bound that covers the pair with its executed value. ``records``: the declared number."""
    spec, facts = declared(mechanism, records, pair.one.shape[1])
    if refused(spec, facts):
        return []
    found = options.Declaration.of(spec.mechanism.options).pipeline(facts.records, facts.features)
    ball = {"radius": float(spec.mechanism["radius"]), "clip": bool(spec.mechanism["clip_rows"])}
    own = [steps.in_ball(np.array(x, dtype=np.float64), **ball) for x in pair[:2]]
    processed = [_processed(x, found) for x in own]
    if processed[0] is None or processed[1] is None:
        alike = processed[0] is None and processed[1] is None
        return [] if alike else [Reading("one of two neighbours has no output", 0.0, math.inf)]
    engine = LinearEngine(private=found.private, radius=found.out_radius, declared=Private.of(mechanism["private"]))
    try:
        law = _law(engine, processed, pair)  # type: ignore[arg-type]
    except ValueError:  # rejected: both differ from the declared number of records
        return []
    scope = _scope(spec, found, own)
    counted = [f for f in bounds.upper_bounds(spec, found) if f.bound == "upper" and covers(f.scope, scope)]
    if spec.mechanism.get("ptr"):
        return [r for f in counted for r in _tested(f, law, own, found, spec)]
    return [*(r for f in counted for r in law.against(f)), *_constants(engine, processed, pair)]  # type: ignore[arg-type]


def worst(mechanism: Mapping[str, Any], records: int, pair: Pair) -> Reading:
    """Return the reading with the largest ratio, or ``NOTHING``."""
    return max(readings(mechanism, records, pair), key=lambda r: r.ratio, default=Reading(NOTHING, 1.0, 0.0))


def limits(step: Mapping[str, Any], sets: list[Rows]) -> Block:
    """Return the tightest limits, for a step's repaired bound, of a collection that contains both datasets."""
    declared_step = read_step(step)
    by = declared_step.name
    found = [steps.measure_limits(x, declared_step) for x in sets]
    wanted = {*STEPS[by].required} | ({"max_missing_in_row", "max_mean_norm"} if "impute" in step else set())
    tight: Block = {}
    for key in wanted & found[0].keys():
        values = [f[key] for f in found]
        value = min(values) if key in steps.AT_LEAST else max(values)
        tight[key] = round(value) if key.startswith(("max_missing", "max_ball", "min_observed")) else value
    if tight.get("max_missing_in_row") == 0:
        tight["max_missing_in_row"] = 1
    return tight


class _Law(NamedTuple):
    """The two outputs' distributions.

    effect: the distance of Gaussian or Laplace centers in noise scales. cells: log-probabilities of other kinds.
    """

    kind: str
    effect: float = 0.0
    cells: tuple[Rows, Rows] | None = None

    def against(self, finding: Finding) -> Iterator[Reading]:
        name = f"{finding.method}, {finding.quantity} {dict(finding.at)}, data {finding.scope.data}"
        if not math.isfinite(finding.value) or self.kind == "unknown":
            return
        if finding.quantity == "mu":
            yield Reading(name, finding.value, self.effect)
        elif "alpha" in finding.at:
            yield Reading(name, finding.value, self.divergence(float(finding.at["alpha"])))  # type: ignore[arg-type]
        elif finding.at["delta"] == 0.0:
            yield Reading(name, finding.value, self.largest_loss())
        else:
            yield Reading(name, float(finding.at["delta"]), self.delta(finding.value))  # type: ignore[arg-type]

    def divergence(self, order: float) -> float:
        """Return the larger Renyi divergence of the two directions."""
        if self.kind == "gaussian":
            return 0.5 * order * self.effect**2
        if self.kind == "laplace":
            up = math.log(order / (2.0 * order - 1.0)) + (order - 1.0) * self.effect
            down = math.log((order - 1.0) / (2.0 * order - 1.0)) - order * self.effect
            return float(np.logaddexp(up, down)) / (order - 1.0)
        return max(float(logsumexp(order * p - (order - 1.0) * q)) / (order - 1.0) for p, q in self._both())

    def largest_loss(self) -> float:
        if self.kind == "laplace":
            return self.effect
        return max(float(np.max(p - q)) for p, q in self._both())

    def delta(self, epsilon: float, shares: tuple[float, float] = (1.0, 1.0)) -> float:
        """Return the larger hockey-stick divergence. shares: probabilities of a release, Gaussian only."""
        if self.kind == "gaussian":
            return max(a * _gaussian(epsilon + math.log(b / a), self.effect) for a, b in (shares, shares[::-1]))
        if self.kind == "laplace":
            return max(0.0, -math.expm1(min(0.0, 0.5 * (epsilon - self.effect))))
        return max(_excess(p, q, epsilon) for p, q in self._both())

    def _both(self) -> list[tuple[Rows, Rows]]:
        assert self.cells is not None
        return [self.cells, self.cells[::-1]]


def _excess(p: Rows, q: Rows, epsilon: float) -> float:
    """Return the sum of the positive p - e^epsilon q, from logarithms."""
    over = p > q + epsilon
    return float(np.sum(np.exp(p[over]) * -np.expm1(q[over] + epsilon - p[over])))


def _gaussian(epsilon: float, effect: float) -> float:
    if effect == 0.0:
        return -math.expm1(min(0.0, epsilon))
    upper, lower = log_ndtr(effect / 2.0 - epsilon / effect), epsilon + log_ndtr(-effect / 2.0 - epsilon / effect)
    return float(np.exp(upper) * -np.expm1(min(0.0, lower - upper)))


def _processed(x: Rows, found: options.Pipeline) -> Rows | None:
    try:
        return steps.run_steps(x, found.steps, found.radius)[0]
    except (ValueError, np.linalg.LinAlgError):
        return None


def _law(engine: LinearEngine, processed: list[Rows], pair: Pair) -> _Law:
    """Return both output distributions. Short steps keep all iterates near the initial parameters of the gradients."""
    m = engine.private
    if m.kind in ("gaussian", "laplace", "exponential"):
        one, other = (engine.query(x) for x in processed)
        if m.kind != "exponential":
            return _Law(m.kind, float(np.linalg.norm(one - other)) / m.sigma)
        scores = [q / (2.0 * m.sigma) for q in (one, other)]
        return _Law("cells", cells=tuple(log_softmax(s) for s in scores))  # type: ignore[arg-type]
    # Train only for the errors of the engine; compare gradients at the same parameters.
    for x, y in zip(processed, (pair.labels, pair.other_labels), strict=True):
        engine.train(x, y, np.random.default_rng(0))
    start = np.zeros(processed[0].shape[1])
    own = [engine.gradients(start, x, y) for x, y in zip(processed, (pair.labels, pair.other_labels), strict=True)]
    if m.kind == "dp-gd":
        shift = float(np.linalg.norm(own[0].mean(axis=0) - own[1].mean(axis=0)))
        return _Law("gaussian", shift / m.sigma * math.sqrt(m.steps))
    if m.kind == "sgd-sampled" and own[0].shape[1] == 1 and m.steps == 1:
        return _Law("cells", cells=_mixtures([g[:, 0] / m.sigma for g in own]))
    return _Law("unknown")


def _mixtures(centres: list[Rows]) -> tuple[Rows, Rows]:
    """Return the cell log-probabilities of two mixtures of unit Gaussians, on one fine grid."""
    ends = [min(c.min() for c in centres) - 9.0, max(c.max() for c in centres) + 9.0]
    grid = np.linspace(*ends, _NODES)
    found = []
    for own in centres:
        values, counts = np.unique(own, return_counts=True)
        densities = -0.5 * np.square(grid[:, None] - values) + np.log(counts / counts.sum())
        found.append(logsumexp(densities, axis=1) + math.log((grid[1] - grid[0]) / math.sqrt(2.0 * math.pi)))
    return found[0], found[1]


def _constants(engine: LinearEngine, processed: list[Rows], pair: Pair) -> Iterator[Reading]:
    """Yield constants of the proofs: norms and smoothness of gradients, and weights of queries."""
    m = engine.private
    if m.kind in ("gaussian", "laplace"):
        gaps = np.linalg.norm(processed[0] - processed[1], axis=1)
        moved = float(np.linalg.norm(engine.query(processed[0]) - engine.query(processed[1])))
        total = math.fsum(gaps.tolist())
        yield Reading("lipschitz constant of a query", m.lipschitz * total * (1.0 + TOLERANCE) + 1e-12, moved)
        longest = max(float(np.linalg.norm(x, axis=1).max()) for x in processed)
        yield Reading("sensitivity of a query", m.sensitivity, 2.0 * engine.weight * longest)
        return
    if m.kind == "exponential" or not math.isfinite(m.smooth):
        return
    random = np.random.default_rng(1)
    theta = random.normal(size=(_PLACES, processed[0].shape[1]))
    longest_row = max((x[np.argmax(np.linalg.norm(x, axis=1))] for x in processed), key=np.linalg.norm)
    theta = np.concatenate([theta, [longest_row, -longest_row]])
    for place, label in itertools.product(theta, (-1.0, 1.0)):
        norm = float(np.linalg.norm(place))
        at = place * (engine.declared.theta_radius / norm if norm else 0.0)
        own = [engine.gradients(at, x, np.full(len(x), label)) for x in processed]
        largest = max(float(np.linalg.norm(g, axis=1).max()) for g in own)
        yield Reading("norm of a gradient", m.lipschitz, largest)
        gaps = np.linalg.norm(processed[0] - processed[1], axis=1)
        moved = np.linalg.norm(own[0] - own[1], axis=1)
        far = gaps > 1e-6
        if far.any():
            yield Reading("smoothness of a gradient", m.smooth, float((moved[far] / gaps[far]).max()))
    if m.kind == "sgd-iterated":
        curvature = (0.25 if engine.declared.loss == "logistic" else 1.0) * float(longest_row @ longest_row)
        yield Reading("length of a contracting step", 2.0, engine.declared.learning_rate * curvature)


def _scope(spec: Spec, found: options.Pipeline, own: list[Rows]) -> Scope:
    """Return the smallest scope that contains a pair."""
    counted = len(own[0]) == found.private.records
    inside = found.step is not None and counted and found.repaired is not None
    for x in own if inside else []:
        measured = steps.measure_limits(x, found.step)  # type: ignore[arg-type]
        inside = inside and not steps.broken_limits(measured, found.collection)
    alike = bool(np.array_equal(np.isnan(own[0]), np.isnan(own[1])))
    return Scope(
        adjacency="replace-one",
        access=spec.threat_model.access,
        adversary="record",
        data="collection" if inside else "all",
        min_records=len(own[0]),
        neighbours="same-missing-values" if alike else "all",
    )


def _tested(finding: Finding, law: _Law, own: list[Rows], found: options.Pipeline, spec: Spec) -> Iterator[Reading]:
    """Compare a bound of propose-test-release with the exact probabilities of outputs and refusals."""
    test = spec.mechanism["ptr"]
    distances = [steps.distance_to_edge(x, found) for x in own]
    yield Reading("distance to the collection's edge", 1.0, abs(distances[0] - distances[1]))
    if law.kind != "gaussian" or not math.isfinite(finding.value):
        return
    no = [refusal_probability(d, float(test["epsilon"]), float(test["delta"])) for d in distances]
    shares = (1.0 - no[0], 1.0 - no[1])
    factor = math.exp(min(700.0, finding.value))
    refusals_apart = max(0.0, no[0] - factor * no[1], no[1] - factor * no[0])
    if min(shares) > 0.0:
        apart = law.delta(finding.value, shares) + refusals_apart
        yield Reading(f"{finding.method}, delta", float(finding.at["delta"]), apart)  # type: ignore[arg-type]
