"""Attack trials, and evidence, lower bounds and noise checks from them.

Each trial executes the private mechanism on one of two processed neighbours, chosen by fair coins, and scores the
outputs (``docs/explanation/proofs/preprocessing.md``). Record 0 is the canary.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.json_records import Amount, Count, Record, read
from dpspec.stats import utility
from dpspec.stats.attacks import thresholds
from dpspec.stats.conformance import noise_tests, table
from dpspec.stats.conformance.measurement import Abstention, Observed
from dpspec_preprocessing import sensitivity, steps
from dpspec_preprocessing.engines import BINS, LinearEngine, NetworkEngine, NoiseTally, output_ratio, score_output
from dpspec_preprocessing.options import SAME_MASK, AuditBlock, Declaration, Pipeline
from dpspec_preprocessing.private import GRADIENT
from dpspec_preprocessing.sensitivity import Step

Array: TypeAlias = np.ndarray[Any, Any]

#: In units of eta: distance of a cluster from the canary, and offsets of members of one cluster.
_REACH, _MEMBER_OFFSET, _JITTER = 2.99, 0.95, 0.002


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    declared, options = Declaration.of(inputs["mechanism"]), AuditBlock.of(inputs["audit"])
    pipeline = declared.pipeline(context.facts.records, context.facts.features)
    x, y = steps.flat_rows(context, declared), _labels(context.data.train_y, declared)
    private, declared_mechanism = pipeline.private, declared.private
    engine: LinearEngine | NetworkEngine = LinearEngine(
        private=private, radius=pipeline.out_radius, declared=declared_mechanism
    )
    if declared_mechanism.network:
        engine = NetworkEngine(private=private, training=inputs["training"], context=context)
    y[0], tested = 1, declared.ptr is not None
    device, private_step, noiseless = steps.search_device(context, pipeline), pipeline.private_step, pipeline.steps
    if private_step is not None:  # the only step, fitted in every execution
        noiseless = ()
    try:
        layout = {"clusters": options.clusters, "members": options.members}
        first_step = pipeline.steps[0] if pipeline.steps else None
        neighbours = build_neighbours(x, first_step, pipeline.collection, pipeline.radius, **layout)
        processed = []
        for rows in neighbours:
            if pipeline.step is not None:
                steps.require_in_collection(rows, pipeline, tested=tested, device=device)
            processed.append(steps.run_steps(rows, noiseless, pipeline.radius, device=device)[0])
    except ValueError as error:
        raise dps.DataError(f"the pipeline cannot run on these records: {error}") from error

    measured = _RealRows.of(context, pipeline, declared, x, noiseless, device) if declared.private.loss else None
    exact = [] if private_step is not None else [engine.execute_without_noise(rows, y) for rows in processed]
    distances = [steps.distance_to_edge(rows, pipeline) if tested else 0.0 for rows in neighbours]
    for index in indices:
        coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=options.repeats)
        tests = np.random.default_rng(context.seed(index, "tests"))
        sides = (1 - coins).tolist()
        refused = [False] * len(sides)
        if declared.ptr is not None:
            epsilon, least = declared.ptr.epsilon, sensitivity.threshold(declared.ptr.epsilon, declared.ptr.delta)
            refused = [bool(distances[side] + tests.laplace(0.0, 1.0 / epsilon) <= least) for side in sides]
        executed = [side for side, refusal in zip(sides, refused, strict=True) if not refusal]
        tally = NoiseTally()
        random = np.random.default_rng(context.seed(index, "noise"))
        scores: Iterator[float]
        if private_step is None:
            outputs = engine.execute(processed, y, executed, random, tally)
            scores = (score_output(private, output, *exact) for output in outputs)
        else:
            scores = _scores_after_release(engine, private_step, pipeline.radius, processed, y, executed, random, tally)
        bins = []
        for done, refusal in enumerate(refused):
            if isinstance(engine, LinearEngine):  # the network engine reports steps
                context.progress(done, len(coins), "executing")
            score = 0.0 if refusal else next(scores)
            bins.append(min(BINS - 1, max(0, math.floor(BINS * (0.5 + math.atan(score) / math.pi)))))
        internal: dict[str, dps.Json] = {}
        if measured is not None:
            internal = measured.measure(engine, pipeline, np.random.default_rng(context.seed(index, "twin")))
        evidence: dict[str, dps.Json] = {
            "records": context.facts.records,
            "features": context.facts.features,
            "coins": "".join(map(str, coins.tolist())),
            "bins": bins,
            "noise": {"count": tally.count, "squares": tally.squares},
            "executed": len(executed),
            "internal": internal,
        }
        states = [run["states"] for run in tally.released if run]
        if states:  # a backend released them
            evidence["steps"] = sorted({int(run.get("steps", 0)) for run in tally.released})
            evidence["states"] = {
                "still": sum(state["still"] for state in states),
                "apart": sum(state["apart"] for state in states),
                "blind": any(state["blind"] for state in states),
            }
        yield dps.Trial(index=index, evidence=dps.FrozenMap(evidence))


def _labels(y: Array, declared: Declaration) -> Array:
    """Map class 0 to -1 and other classes to 1; networks keep all classes."""
    return y.copy() if declared.private.network else np.where(y == 0, -1.0, 1.0)


def _scores_after_release(
    engine: LinearEngine | NetworkEngine,
    step: Step,
    radius: float,
    sides: Sequence[Array],
    y: Array,
    which: Sequence[int],
    random: np.random.Generator,
    tally: NoiseTally,
) -> Iterator[float]:
    """Execute a private projection and the mechanism on the projected rows of ``sides[index]``; add all noise.

    The adversary sees the noisy moments and the output. The score is the log-likelihood ratio of the moments, plus for
    queries the ratio of the output given the projection.
    """
    moments, std = [steps.second_moments(rows) for rows in sides], steps.moment_std(step, radius)
    towards, middle = moments[0] - moments[1], 0.5 * (moments[0] + moments[1])
    for side in which:
        noisy = steps.release_moments(sides[side], step, radius, random)
        tally.add(steps.moment_coordinates(noisy - moments[side]) / std)
        project = steps.fit_moments(noisy, step.components)
        output = next(engine.execute([project(sides[side])], y, [0], random, tally))
        score = float(((noisy - middle) * towards).sum()) / std**2
        if engine.private.kind not in GRADIENT:
            exact = [engine.execute_without_noise(project(rows), y) for rows in sides]
            score += output_ratio(engine.private, output, *exact)
        yield score


@dataclass(frozen=True, kw_only=True, eq=False)
class _RealRows:
    """Training and test rows after all noiseless steps, with their labels."""

    train: tuple[Array, Array]
    test: tuple[Array, Array]

    @classmethod
    def of(
        cls,
        context: dps.Context,
        pipeline: Pipeline,
        declared: Declaration,
        x: Array,
        noiseless: Sequence[Step],
        device: str,
    ) -> "_RealRows":
        test_rows = steps.flat_rows(context, declared, test=True)
        train, test = steps.run_steps(x, noiseless, pipeline.radius, test_rows, device)
        train_y, test_y = (_labels(labels, declared) for labels in (context.data.train_y, context.data.test_y))
        return cls(train=(train, train_y), test=(test, test_y))

    def measure(
        self, engine: LinearEngine | NetworkEngine, pipeline: Pipeline, random: np.random.Generator
    ) -> dict[str, dps.Json]:
        """Correct predictions and mean loss by split of one trained model. A network's loss has no maximum."""
        (x, y), (test_x, test_y), step = self.train, self.test, pipeline.private_step
        if step is not None:
            project = steps.fit_moments(steps.release_moments(x, step, pipeline.radius, random), step.components)
            x, test_x = project(x), project(test_x)
        output = next(engine.execute([x], y, [0], random, NoiseTally()))
        splits = [("train", x, y)] + ([("test", test_x, test_y)] if len(test_x) else [])
        measured: dict[str, dps.Json] = {
            "accuracy": {s: {"right": engine.count_right(output, a, b), "records": len(a)} for s, a, b in splits}
        }
        if isinstance(engine, LinearEngine):
            measured["loss"] = {
                s: {"mean": engine.mean_loss(output, a, b), "records": len(a), "largest": engine.largest_loss}
                for s, a, b in splits
            }
        return measured


def build_neighbours(
    x: Array, step: Step | None, collection: Mapping[str, Any], radius: float, *, clusters: int = 5, members: int = 3
) -> tuple[Array, Array]:
    """Both neighbours from real rows (n, d): with the canary as record 0, and with its replacement."""
    rows = np.array(x, dtype=np.float64)
    features, replacement = rows.shape[1], None
    if step is None:
        canary = radius * np.eye(features)[0]
    elif step.merges:
        canary = _insert_clusters(rows, step.eta, radius, clusters, members, together=step.name == "deduplicate")
    elif step.imputes:
        _empty_rows(rows, collection)
        canary = np.full(features, radius / math.sqrt(features))
    elif step.components:
        values, vectors = np.linalg.eigh(np.cov(rows[1:], rowvar=False))
        order = np.argsort(values)[::-1]
        last_kept, first_dropped = vectors[:, order[step.components - 1]], vectors[:, order[step.components]]
        scale = radius / math.sqrt(2.0)
        canary, replacement = scale * (last_kept + first_dropped), scale * (last_kept - first_dropped)
    else:
        canary = radius * np.eye(features)[int(np.argmin(rows.std(axis=0)))]
    present, absent = rows, rows.copy()
    present[0], absent[0] = canary, -canary if replacement is None else replacement
    return present, absent


def directions(count: int, features: int) -> Array:
    """Unit vectors (count, features) with pairwise angles of at least 72 degrees: axes, or five on a circle."""
    if count <= 2 * features:
        axes = np.concatenate([np.eye(features), -np.eye(features)], axis=1).reshape(2 * features, features)
        return np.asarray(axes[:count], dtype=np.float64)
    if count == 5 and features == 2:
        angles = 2.0 * math.pi * np.arange(5) / 5.0
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    raise ValueError(f"{count} clusters do not fit around one record in {features} dimensions")


def _insert_clusters(x: Array, eta: float, radius: float, clusters: int, members: int, *, together: bool) -> Array:
    if clusters * members >= len(x):
        raise ValueError(f"{clusters} clusters of {members} do not fit into {len(x)} records")
    towards = x[0] if np.linalg.norm(x[0]) > 0.0 else np.ones(x.shape[1])
    # Clusters stay inside the ball; a query weighs rows near its boundary most.
    canary = towards / np.linalg.norm(towards) * max(0.0, 0.95 * radius - 3.0 * eta)
    if together:
        around = directions(clusters, x.shape[1])
    else:
        if clusters > x.shape[1]:
            raise ValueError(f"{clusters} clusters need {clusters} features, got {x.shape[1]}")
        axes = np.argsort(-np.abs(canary))[:clusters]
        around = np.zeros((clusters, x.shape[1]))
        around[np.arange(clusters), axes] = -np.where(canary[axes] >= 0.0, 1.0, -1.0)
    row = 1
    for direction in around:
        for member in range(members):
            distance = _REACH - (_JITTER * member if together or member == 0 else _MEMBER_OFFSET)
            x[row] = canary + distance * eta * direction
            row += 1
    return np.asarray(canary, dtype=np.float64)


def _empty_rows(x: Array, collection: Mapping[str, Any]) -> None:
    """Remove all values of as many rows as the collection allows, from the last row."""
    missing = np.isnan(x)
    rows = int(np.count_nonzero(missing.any(axis=1)))
    limit = int(collection.get("max_missing_rows", len(x) // 10)) - rows
    observed = int((~missing).sum(axis=0).min()) - int(collection.get("min_observed", 2))
    if int(collection.get("max_missing_in_row", x.shape[1])) < x.shape[1]:
        return
    for row in range(len(x) - 1, 0, -1):
        if min(limit, observed) <= 0:
            return
        if not missing[row].any():
            x[row] = np.nan
            limit, observed = limit - 1, observed - 1


_COINS = kit.coins("independent fair coins choose which of the two datasets is processed", name="independent-coins")
_NOTE = "relative to the declared scale"


@dataclass(frozen=True, kw_only=True)
class NoiseDrawn(Record):
    """Number of noise values, and their sum of squares (laplace: of absolute values) in declared scales."""

    count: Count
    squares: Amount


@dataclass(frozen=True, kw_only=True)
class Executions(Record):
    noise: NoiseDrawn
    executed: Count = 1
    steps: tuple[Count, ...] = ()


def conclude_trials(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    assert spec.audit is not None
    if not trials:
        return
    repeats = AuditBlock.of(spec.audit.options).repeats
    drawn = "".join(kit.fair_coins(kit.recorded(trial, "coins"), repeats) for trial in trials)
    bins = [kit.whole_number(b, "a bin", most=BINS - 1) for trial in trials for b in kit.recorded(trial, "bins")]
    if len(bins) != len(drawn):
        raise ValueError(f"expected {len(drawn)} bins, one per coin, got {len(bins)}")
    coins = thresholds.outcomes(bins, [coin == "1" for coin in drawn])  # in ascending order of score
    present, absent = coins.count("1"), coins.count("0")
    declared = Declaration.of(spec.mechanism.options)
    checked = len(declared.steps) <= 1 and declared.ptr is None  # trials are then refused outside of the collection
    scope = kit.executed_scope(
        spec,
        adversary="record",
        data="collection" if checked else "planted",
        records=kit.recorded_number(trials[0], "records"),
        access="final-model",
        neighbours=SAME_MASK,  # the canary and its replacement, its negative, have the same missing entries
    )
    method = f"many-run, {len(coins)} executions with one record or its replacement"
    if min(present, absent):
        for delta in kit.claimed_deltas(spec):
            position = dps.FrozenMap({"delta": delta})
            evidence = dps.Evidence(
                id=f"many-run/delta={delta:g}",
                kind="many-run-ranked",
                statistics=dps.FrozenMap({"outcomes": coins}),
                scope=scope,
                at=position,
                method=method,
                source=thresholds.SOURCE,
                power=thresholds.largest(present, absent, delta, spec.audit.confidence),
            )
            yield evidence
            yield kit.lower_from(evidence, spec.audit.confidence, assumptions=(_COINS,))
    yield from check_trials(spec, trials)
    yield from utility.accuracies(spec, trials, "the pipeline on the real records")
    yield from utility.losses(spec, trials, "the pipeline on the real records")


def check_trials(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """Check noise and released states. The exponential mechanism has no check: it releases only the chosen feature."""
    private = Declaration.of(spec.mechanism.options).private
    observed: Observed = "reported" if private.takes_gradients else "measured"
    runs = [read(Executions, trial.evidence, f"evidence of trial {trial.index}") for trial in trials]
    evidence = [dps.FrozenMap({"steps": number}) for run in runs for number in run.steps]
    states = [dps.FrozenMap({"states": t.evidence["states"]}) for t in trials if "states" in t.evidence]
    counted = table.counted((dps.Phase({"steps": private.steps}),), [*evidence, *states])
    yield from (check for _, check in counted)
    if runs and not any(run.executed for run in runs):
        notes: list[tuple[str, Observed, str]] = []
        if private.kind != "exponential":
            notes.append(("noise-scale", observed, _NOTE))
        if private.network:
            notes.append(("steps", "measured", table.TABLE[0].compares))
        for assumption, how, note in notes:
            yield Abstention("every execution was refused").check(assumption, how, note, "executions")
        return
    count = sum(run.noise.count for run in runs)
    if count:
        total = sum(run.noise.squares for run in runs)
        measured = noise_tests.two_sided(total, count, absolute=private.kind == "laplace")
        yield measured.check("noise-scale", observed, _NOTE)


def predict_checks(spec: dps.Spec, facts: dps.Facts, executions: int) -> Iterator[dps.Check]:
    declared = Declaration.of(spec.mechanism.options)
    private = declared.private
    network, steps, kind = private.network, private.steps, private.kind
    if network and "iterates" in facts.capabilities:
        as_declared = dps.FrozenMap({"steps": steps, "states": {"still": 0, "apart": 0, "blind": False}})
        for outcome, released in table.counted((dps.Phase({"steps": steps}),), [as_declared]):
            yield outcome.promise(released)
    width = (facts.parameters or 0) if network else facts.features
    draws = {
        "gaussian": width,
        "laplace": 2,
        "dp-gd": steps * width,
        "sgd-sampled": steps * width,
        "sgd-iterated": (facts.records + 1) // 2 * width,
    }
    draws_of_step = facts.features * (facts.features + 1) // 2 if declared.steps and declared.steps[0].mu else 0
    expected = draws_of_step
    if kind in draws and not (network and "noise-log" not in facts.capabilities):
        expected += draws[kind]
    if not expected:
        return
    count = executions * expected
    measurement = noise_tests.two_sided(float(count), count, absolute=kind == "laplace")
    planned = measurement.check("noise-scale", "reported" if private.takes_gradients else "measured", _NOTE)
    yield measurement.promise(planned)
