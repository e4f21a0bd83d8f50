"""The suite for mechanisms: its example, and a reviewer's tests of the bound and of the attack."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import DataError, Evidence, Facts, Finding, Json, LoadedData, Scope, Series, Spec, thaw
from dpspec.contract.results import AuditResult
from dpspec.engine.judging.claim_tests import bound_hypotheses
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import Prepared, prepare
from dpspec.kit.mechanisms import AttackedMechanism
from dpspec.language.load import load_specs
from dpspec.results.evidence_weight import group_size, implied_pairs, is_profile, proven_bound, series_bounds
from dpspec.testing.attained import Neighbors, exceeded
from dpspec.testing.example import SLACK, ExampleSuite, example_file, in_words
from dpspec.testing.provider import require
from dpspec.testing.second_process import differences_of_runs

if TYPE_CHECKING:
    import numpy as np

#: Attacks reject a bound at this level, as in a run.
LEVEL = 1e-6

#: Factors of the noise under which an attack must show nothing; the next one if the schema refuses a value.
_MORE_NOISE = (1000.0, 100.0, 30.0)

#: The share of its value below which a bound has fallen with the noise.
_FALLEN = 0.2

#: Numbers of every spec, with the factor of a second value, and whether upper bounds grow with them.
_CORE_KEYS = (
    ("mechanism.steps", 2.0, True),
    ("mechanism.noise_multiplier", 2.0, False),
    ("mechanism.sampling.rate", 0.5, True),
)


@dataclass(frozen=True)
class Curve:
    """The points (epsilon, delta) of the proved upper bounds for one group size and scope by one method.

    ``method``: how the bounds are computed, their quantity, and their conditions besides group size and delta.
    """

    group_size: int
    scope: Scope
    method: tuple[str, ...]
    points: tuple[tuple[float, float], ...]

    def at(self, delta: float) -> tuple[int, Scope, tuple[str, ...], float]:
        """The identity of the point at ``delta`` in another version of the curve."""
        return self.group_size, self.scope, self.method, delta


def curves(outcomes: Sequence[object]) -> list[Curve]:
    """The curves of all bounds that a run tests, with the bounds of series."""
    findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
    series = [outcome for outcome in outcomes if isinstance(outcome, Series)]
    points: dict[tuple[int, Scope, tuple[str, ...]], list[tuple[float, float]]] = {}
    for finding in [*findings, *series_bounds(findings, series)]:
        if finding.bound == "upper" and proven_bound(finding):
            conditions = (f"{k} {v}" for k, v in finding.at.items() if k not in ("group_size", "delta"))
            method = (finding.method, finding.source, finding.quantity, *conditions)
            points.setdefault((group_size(finding), finding.scope, method), []).extend(implied_pairs(finding))
    return [Curve(*key, tuple(pairs)) for key, pairs in points.items() if pairs]


class MechanismSuite(ExampleSuite):
    """Subclass it and set ``kind``; :meth:`neighbors` and ``monotone`` let it test the bound.

    overrides: Applied to the example in all tests, like ``--set``. Keep the example small: it runs five times.
    monotone: For keys of the spec, the direction in which every upper bound moves when only that key changes, or
        ``constant``. Every number of the mechanism's block needs one.
    quantities: The quantities of the bounds in ``monotone``; all if empty.
    noise: The key of the spec with the size of the noise. Default: a key that ``monotone`` declares as decreasing.
    compares_itself: Whether the run of this process is compared with another one's; else two others are compared.
    """

    noise: ClassVar[str] = ""
    compares_itself: ClassVar[bool] = False

    def neighbors(self, spec: Spec, group_size: int) -> Iterable[Neighbors]:
        """Neighboring datasets that differ in ``group_size`` units, by the laws of their outputs. Default: none.

        Write the laws of the worst case that you know down from the mechanism's definition.
        """
        return ()

    def test_bounds_hold_between_explicit_neighbors(self) -> None:
        """No proved bound is below the loss that the suite's ``neighbors`` attain, in any direction of its scope."""
        tested = 0
        for spec in self.load():
            for curve in curves(self._bounds(spec)):
                directions = ("add", "remove") if curve.scope.direction == "both" else (curve.scope.direction,)
                for pair in self.neighbors(spec, curve.group_size):
                    problems = [str(problem) for problem in exceeded(pair, curve.points, directions)]
                    name = f"{pair.name}: " if pair.name else ""
                    groups = f"group size {curve.group_size}"
                    require(not problems, f"{name}the bound for {groups} is too small: {'; '.join(problems)}")
                    tested += 1
        if not tested:
            raise unittest.SkipTest("only the author knows two neighbors: define `neighbors` in the plugin's own suite")

    def test_a_bound_is_a_curve(self) -> None:
        """Epsilon falls with delta, is not negative, and grows with the size of the group."""
        for spec in self.load():
            negative = [value for outcome in self._bounds(spec) for value in _epsilons(outcome) if value < 0.0]
            require(not negative, f"an upper bound on epsilon is negative: {negative[:3]}")
            of_sizes: dict[tuple[Scope, tuple[str, ...], float], list[tuple[int, float]]] = {}
            for curve in curves(self._bounds(spec)):
                ordered = sorted(curve.points, key=lambda point: point[1])
                where = f"the bound for group size {curve.group_size}"
                for (epsilon, delta), (next_epsilon, next_delta) in itertools.pairwise(ordered):
                    rises = next_delta > delta and next_epsilon > epsilon * (1.0 + SLACK) + 1e-9
                    text = f"is {epsilon:.6g} at delta {delta:g} and {next_epsilon:.6g} at the larger {next_delta:g}"
                    require(not rises, f"{where} {text}: epsilon may not rise with delta")
                for epsilon, delta in ordered:
                    of_sizes.setdefault((curve.scope, curve.method, delta), []).append((curve.group_size, epsilon))
            for (_, _, delta), sizes in of_sizes.items():
                for (size, epsilon), (larger, of_larger) in itertools.pairwise(sorted(sizes)):
                    falls = larger > size and of_larger < epsilon * (1.0 - SLACK)
                    text = f"{epsilon:.6g} for groups of {size} and {of_larger:.6g} for {larger}, at delta {delta:g}"
                    require(not falls, f"the bound is {text}: a larger group contains a smaller one")

    def test_bounds_grow_with_groups_steps_and_rates(self) -> None:
        """Bounds grow with the group size, the steps, the rate and repeated phases, and fall with more noise."""
        (spec, *_) = self.load()
        sizes = [*spec.threat_model.group_size]
        doubled = [2 * size for size in sizes]
        self._require_order(
            "threat_model.group_size", sizes, doubled, grows=True, renamed=dict(zip(sizes, doubled, strict=True))
        )
        for key, factor, grows in _CORE_KEYS:
            value = _number(spec.document, key)
            if value is not None:
                second = int(value * factor) if isinstance(value, int) else value * factor
                low, high = sorted((value, second))
                self._require_order(key, low, high, grows=grows)
        phases = spec.document["mechanism"].get("phases")
        if phases:
            self._require_order("mechanism.phases", thaw(phases), [*thaw(phases), thaw(phases)[-1]], grows=True)

    def test_every_number_of_the_mechanism_has_a_trend(self) -> None:
        """``monotone`` says for each number that the example has or defaults to how bounds move with it."""
        if not self.monotone:
            raise unittest.SkipTest("only the plugin's own tests can: there, `monotone` names keys of the spec")
        (spec, *_) = self.load()
        properties, declared = thaw(self.provider().schemas.mechanism)["properties"], spec.document["mechanism"]
        numbers = [
            f"mechanism.{key}"
            for key, schema in properties.items()
            # an alternative to a key of the example cannot be set with it
            if schema.get("type") in ("number", "integer") and (key in declared or "default" in schema)
        ]
        missing = [key for key in numbers if key not in self.monotone and key not in [k for k, *_ in _CORE_KEYS]]
        require(not missing, f"monotone lacks {', '.join(missing)}: declare increasing, decreasing or constant values")

    def test_bounds_of_all_data_ignore_the_rows(self) -> None:
        """A bound with the scope ``data: all`` is the same on other, constant and duplicated rows and on fewer ones."""
        for spec in self.load():
            prepared = self._prepared(spec)
            if prepared.facts.digest is None:
                continue
            usual, reads_rows = self._usual_bounds(spec)
            for name, change in _ROWS.items() if reads_rows else ():
                try:
                    changed = self._bounds(spec, rows=change(prepared.source.load()))
                except DataError:
                    continue  # outside of the declared collection of datasets
                self._require_equal(usual, changed, f"on {name}")
            for records in sorted({max(1, prepared.facts.records // 2), 1}, reverse=True):
                facts = replace(prepared.facts, records=records, digest=f"{records} records")
                rows = _first(prepared.source.load(), records)
                try:
                    fewer = self._bounds(spec, rows=rows, facts=facts)
                except (ValueError, ArithmeticError, IndexError, DataError):
                    continue  # the options need more records
                self._require_equal(usual, fewer, f"with {records} records", records)

    def test_much_noise_hides_the_inclusion_bits(self) -> None:
        """With a thousand times the noise, no attack shows more than the bound: scores do not read the bits."""
        if not any(attacked_curves(audit) for audit in self.first(trials=True).result.audits):
            raise unittest.SkipTest("no attack of the example tests a bound on epsilon")
        tried = 0
        for key in self._noise_keys():
            (spec, *_) = self.load()
            value = _number(spec.document, key)
            usual = _least(curves(self._bounds(spec)))
            for factor in _MORE_NOISE if value is not None else ():
                loaded = self._try(f"{key}={json.dumps(value * factor)}")  # type: ignore[operator]
                if loaded is None:
                    continue
                if not _least(curves(self._bounds(loaded[0]))) < _FALLEN * usual:
                    break  # another key than the noise
                tried += 1
                for audit in self.run(loaded).result.audits:
                    problem = attack_above_bound(audit)
                    require(not problem, f"with {factor:g} times {key} {problem}: does the attack read the bits?")
                break
        if not tried:
            raise unittest.SkipTest("no key of the noise is known: name it as `noise`")

    def test_noise_has_the_size_of_the_neighbors_law(self) -> None:
        """``Releases.values`` vary, and move with the group, as the ``neighbors`` say, at two sizes of the noise."""
        import numpy as np

        audit = self._attacked()
        tried = 0
        for spec in self._at_two_sizes_of_noise():
            for size in spec.threat_model.group_size:
                for pair in self.neighbors(spec, size):
                    releases = self._release(audit, spec, size, 0)
                    if releases.values is None:
                        continue
                    values = np.asarray(releases.values, dtype=np.float64).reshape(len(releases.values), -1)
                    law = np.asarray(pair.absent(np.random.default_rng(3), 100_000), dtype=np.float64)
                    law = law.reshape(len(law), -1)
                    if law.shape[1] != values.shape[1]:
                        continue
                    tried += 1
                    for column in range(law.shape[1]):
                        z, ratio = _spread(values[:, column], law[:, column])
                        text = f"noise of {ratio:.4g} times the size that the law of `neighbors` says"
                        setting = _noise_text(spec, self._noise_keys())
                        require(abs(z) < _FAR, f"released values at {setting} have {text}")
                    with_group = self._release(audit, spec, size, 0, coin=1).values
                    moved = _moved(np.asarray(with_group, dtype=np.float64).reshape(values.shape), values)
                    allowed = _moved(_matrix(pair.present(np.random.default_rng(4), 100_000)), law)
                    beyond = moved[0] - allowed[0] > _FAR * math.hypot(moved[1], allowed[1])
                    text = f"the group's values move by {moved[0]:.4g}, and by the law of `neighbors` {allowed[0]:.4g}"
                    require(not beyond, text)
        if not tried:
            raise unittest.SkipTest("release() returns no `values` of the form of the `neighbors`' outputs")

    def test_reported_noise_is_in_the_released_values(self) -> None:
        """The values without the group are a constant and a multiple of the reported noise."""
        import numpy as np

        audit = self._attacked()
        (spec, *_) = self.load()
        size = spec.threat_model.group_size[0]
        if self._release(audit, spec, size, 0, most=_PAIR).values is None:  # a release may be a whole training
            raise unittest.SkipTest("release() returns no `values`")
        releases = self._release(audit, spec, size, 0)
        values, noise = (
            np.asarray(releases.values, dtype=float).ravel(),
            np.asarray(releases.noise, dtype=float).ravel(),
        )
        if values.size != noise.size or len(values) < 10:
            raise unittest.SkipTest("release() returns other numbers of `values` and `noise`")
        columns = max(1, values.size // len(releases.values))
        for column in range(columns):
            of_column = np.corrcoef(values[column::columns], noise[column::columns])[0, 1]
            require(
                of_column > 1.0 - 1e-6,
                f"the values contain other noise than the reported one (correlation {of_column:.4f})",
            )

    def test_noise_follows_the_seed(self) -> None:
        """Other seeds and trials have other noise for the same inclusion bits, and no release repeats noise."""
        import numpy as np

        audit = self._attacked()
        (spec, *_) = self.load()
        assert spec.audit is not None
        (reseeded, *_) = self.load(f"audit.seed={spec.audit.seed + 1}")
        size = spec.threat_model.group_size[0]
        drawn = {
            "two seeds": self._release(audit, reseeded, size, 0, most=_PAIR),
            "two trials": self._release(audit, spec, size, 1, most=_PAIR),
        }
        first = self._release(audit, spec, size, 0, most=_PAIR)
        again = self._release(audit, spec, size, 0, most=_PAIR)
        require(_shared(first.noise, again.noise) == 1.0, "the same seed gives other noise")
        several = self._release(audit, spec, size, 0, most=_FEW).noise
        distinct = len(np.unique(several)) / max(1, np.size(several))
        require(distinct > 0.5, f"noise repeats: {distinct:.1%} of its numbers are distinct")
        for pair, releases in drawn.items():
            share = _shared(first.noise, releases.noise)
            require(share < 0.5, f"{pair} have the same noise: derive it from context.seed(index, ...)")

    def test_another_process_repeats_the_run(self) -> None:
        """Processes with other hash seeds at other times give the same trials, conclusions and verdicts."""
        self.load()
        overrides = [*self.overrides, *self.repeated()]
        own_result = self.brief().result if self.compares_itself else None
        differences = differences_of_runs(self.registry(), example_file(type(self)), overrides, own_result)
        require(
            not differences,
            "another process gives another result: use no hash(), no clock, no process and no global state\n"
            + "\n".join(differences[:5]),
        )

    def test_trials_and_audits_can_travel(self) -> None:
        """The audit, its inputs and its trials survive pickling, as executors on other machines need."""
        first = self.first()
        # Ray sends objects with cloudpickle, local processes with pickle.
        tools: list[Any] = [pickle, *(import_module(name) for name in ("cloudpickle",) if find_spec(name))]
        for spec, audit in zip(first.specs, first.result.audits, strict=True):
            stored = first.store.get_all({record.index: record.key for record in audit.trials})
            trials = [s.trial for s in stored.values()]
            sent = {"audit": self.audit(), "inputs": self.audit().trial_inputs(spec), "trials": trials}
            for name, part in sent.items():
                for tool in tools:
                    with in_words(f"pickling its {name}"):
                        back = pickle.loads(tool.dumps(part))  # noqa: S301 - our own object
                    if name != "audit":
                        require(repr(back) == repr(part), f"its {name} change when they are pickled")

    def weakest_passing(self) -> Iterator[str]:
        """How wrong a bound would still pass the example's attacks: a sentence for each attack."""
        from dpspec.accounting import bisect
        from dpspec.stats.attacks import evidence_tests

        for audit in self.first().result.audits:
            tested = False
            for points, evidence in attacked_curves(audit):
                finite = [point for point in points if math.isfinite(point[0])]
                if not finite:
                    continue
                tested = True

                def rejects(share: float, evidence: Evidence = evidence, finite: Any = finite) -> bool:
                    scaled = [(share * epsilon, delta) for epsilon, delta in finite]
                    return evidence_tests.curve_p_value(evidence, scaled) <= LEVEL

                share = 1.0 if rejects(1.0) else bisect(rejects, 0.0, 1.0, within=1e-3)[0] if rejects(0.0) else 0.0
                epsilon, delta = min(finite, key=lambda point: (point[1], point[0]))
                least = evidence_tests.epsilon_lower(evidence, delta, 1.0 - LEVEL)
                yield (
                    f"{audit.name}: a bound down to {min(least, epsilon):.3g} at delta {delta:g}, where {epsilon:.4g} "
                    f"is stated, or {share:.0%} of the curve would pass this attack ({evidence.method}, group size "
                    f"{group_size(evidence)})"
                )
            if not tested:
                yield f"{audit.name}: any bound would pass: no attack tests one"

    # -- parts of the tests

    def _prepared(self, spec: Spec) -> Prepared:
        return prepare(spec, self.catalog())

    def _context(
        self, spec: Spec, rows: LoadedData | None = None, facts: Facts | None = None
    ) -> tuple[Prepared, RunContext]:
        prepared = self._prepared(spec)
        if facts is not None:
            prepared = replace(prepared, facts=facts)
        context = RunContext(prepared, self.catalog(), prepared.trial_inputs(), device="cpu")
        if rows is not None:
            context._rows = rows
        return prepared, context

    def _bounds(self, spec: Spec, rows: LoadedData | None = None, facts: Facts | None = None) -> list[Finding | Series]:
        if rows is None and facts is None:
            return self._usual_bounds(spec)[0]
        prepared, context = self._context(spec, rows, facts)
        return list(prepared.audit.bound(spec, context))

    def _usual_bounds(self, spec: Spec) -> tuple[list[Finding | Series], bool]:
        """The bounds of a spec and whether they read rows, computed once."""
        bounds = _bounds_of.setdefault(type(self), {})
        if spec.document not in bounds:
            prepared, context = self._context(spec)
            with in_words("bound"):
                computed = list(prepared.audit.bound(spec, context))
            bounds[spec.document] = computed, context._rows is not None
        return bounds[spec.document]

    def _attacked(self) -> AttackedMechanism:
        audit = self.audit()
        if not isinstance(audit, AttackedMechanism):
            raise unittest.SkipTest("only for a kit.AttackedMechanism")
        self.first(trials=True)
        return audit

    def _release(
        self, audit: AttackedMechanism, spec: Spec, group_size: int, index: int, coin: int = 0, most: int = 2000
    ) -> Any:
        """At most ``most`` releases without the group, or with it for the ``coin`` 1."""
        import numpy as np

        _, context = self._context(spec)
        count = min(most, int(context.inputs["audit"]["releases"]))
        with in_words("release"):
            return audit.release(context.inputs, context, index, group_size, np.full(count, coin, dtype=np.int64))

    def _noise_keys(self) -> list[str]:
        if self.noise:
            return [self.noise]
        declared = [key for key, trend in self.monotone.items() if trend.direction == "decreasing"]
        if self.monotone:
            return declared
        block = self.load()[0].document["mechanism"]
        return [f"mechanism.{key}" for key, value in block.items() if _is_number(value)]

    def _at_two_sizes_of_noise(self) -> Iterator[Spec]:
        (spec, *_) = self.load()
        yield spec
        for key in self._noise_keys():
            value = _number(spec.document, key)
            loaded = self._try(f"{key}={json.dumps(3 * value)}") if value is not None else None
            if loaded is not None:
                yield loaded[0]

    def _try(self, *overrides: str) -> tuple[Spec, ...] | None:
        """The example with overrides; None if the schema or ``check`` refuses it."""
        self.load()
        loaded = load_specs([example_file(type(self))], self.catalog(), [*self.overrides, *overrides])
        if not (loaded.ok and loaded.specs):
            return None
        try:
            problems = [d for spec in loaded.specs for d in self._prepared(spec).diagnostics if d.severity == "error"]
        except Exception:
            return None
        return None if problems else loaded.specs

    def _require_order(
        self, key: str, low: Json, high: Json, *, grows: bool, renamed: Mapping[int, int] | None = None
    ) -> None:
        """Require that each bound grows from ``low`` to ``high``, or falls; an equal one passes."""
        tables = []
        for value in (low, high):
            loaded = self._try(f"{key}={json.dumps(value)}", *(["claims=[]"] if renamed else []))
            if loaded is None:
                return
            tables.append({c.at(d): e for c in curves(self._bounds(loaded[0])) for e, d in c.points})
        sizes = renamed or {}
        for (size, scope, method, delta), epsilon in tables[0].items():
            second = tables[1].get((sizes.get(size, size), scope, method, delta))
            if second is None:
                continue
            smaller, larger = (epsilon, second) if grows else (second, epsilon)
            fails = smaller > larger * (1.0 + SLACK) + 1e-9
            moves = f"{epsilon:.6g} at {low} and {second:.6g} at {high}"
            word = "grow" if grows else "fall"
            require(not fails, f"{key}: the bound at delta {delta:g} must {word} with it, and is {moves}")

    def _require_equal(
        self,
        usual: Sequence[Finding | Series],
        changed: Sequence[Finding | Series],
        where: str,
        records: int | None = None,
    ) -> None:
        """Require equal bounds for all data; with ``records``, only that none of these is larger."""
        any_records = [replace(c, scope=replace(c.scope, min_records=0)) for c in curves(changed)]
        epsilons: dict[object, list[float]] = {}  # a finding and a table may have the same bound, of other widths
        for curve in any_records:
            for epsilon, delta in curve.points:
                epsilons.setdefault(curve.at(delta), []).append(epsilon)
        for curve in curves(usual):
            if curve.scope.data != "all" or (records is not None and curve.scope.min_records > records):
                continue
            for epsilon, delta in curve.points:
                same = epsilons.get(replace(curve, scope=replace(curve.scope, min_records=0)).at(delta), ())
                again = min(same, key=lambda other_end: abs(other_end - epsilon), default=None)
                if again is None or (math.isinf(epsilon) and math.isinf(again)):
                    continue
                differs = abs(again - epsilon) > 1e-6 * (abs(epsilon) + abs(again))
                fails = again > epsilon * (1.0 + SLACK) if records is not None else differs
                text = f"{epsilon:.6g} is {again:.6g} {where}, at delta {delta:g}"
                require(
                    not fails,
                    f"the bound differs among datasets: {text}. Give its scope data='this' with "
                    "privacy=spec.data_privacy, or min_records",
                )


def attacked_curves(audit: AuditResult) -> list[tuple[Sequence[tuple[float, float]], Evidence]]:
    """The points (epsilon, delta) of each proved bound that an attack tests, with its evidence."""
    bounds = [*audit.findings, *series_bounds(audit.findings, audit.series)]
    hypotheses = bound_hypotheses(0, bounds, audit.evidence)
    return [(points, evidence) for (_, _, kind, points), evidence, _ in hypotheses if kind == "curve"]


def attack_above_bound(audit: AuditResult) -> str:
    """The attack that rejects a proved bound of the audit, in words; empty if none does."""
    from dpspec.stats.attacks import evidence_tests

    for points, evidence in attacked_curves(audit):
        if evidence_tests.curve_p_value(evidence, points) <= LEVEL:
            epsilon, delta = min(points, key=lambda point: point[0])
            shown = evidence_tests.epsilon_lower(evidence, delta, 1.0 - LEVEL)
            return f"the attack shows epsilon >= {shown:.4g} at delta {delta:g}, and the bound is {epsilon:.4g}"
    return ""


def _epsilons(outcome: Finding | Series) -> list[float]:
    """The upper bounds on epsilon that a finding or a profile states."""
    if isinstance(outcome, Finding):
        return [outcome.value] if (outcome.quantity, outcome.bound) == ("epsilon", "upper") else []
    return [v for v in outcome.columns.get("epsilon", ()) if _is_number(v)] if is_profile(outcome) else []


def _number(document: Mapping[str, Any], key: str) -> float | int | None:
    value: Any = document
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if _is_number(value) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _noise_text(spec: Spec, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} = {_number(spec.document, key)}" for key in keys)


def _least(of_spec: Sequence[Curve]) -> float:
    """The finite epsilon at the smallest delta with one."""
    values = [(d, e) for curve in of_spec for e, d in curve.points if math.isfinite(e)]
    return min((e for _, e in sorted(values)[:1]), default=math.inf)


#: By suite and document of a spec.
_bounds_of: dict[type, dict[Mapping[str, Any], tuple[list[Finding | Series], bool]]] = {}

#: Standard errors beyond which the size of noise is another one: a chance of 2e-9 for a normal estimate.
_FAR = 6.0

#: Releases that show repeated noise. A release may be a whole training.
_FEW = 20

#: Releases that show whether noise follows the seed: all of its numbers are compared.
_PAIR = 2


def _spread(values: np.ndarray[Any, Any], law: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The difference of two standard deviations in standard errors, and their ratio."""
    import numpy as np

    spreads, errors = [], []
    for sample in (values, law):
        squares = (sample - sample.mean()) ** 2
        spreads.append(float(squares.mean()))
        errors.append(float(squares.var()) / len(sample))
    error = math.sqrt(sum(errors))
    difference = spreads[0] - spreads[1]
    z = difference / error if error > 0.0 else (0.0 if difference == 0.0 else math.inf)
    return z, float(np.sqrt(spreads[0] / spreads[1])) if spreads[1] > 0.0 else math.inf


def _matrix(values: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    array = np.asarray(values, dtype=np.float64)
    return array.reshape(len(array), -1)


def _moved(present: np.ndarray[Any, Any], absent: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The distance of two means, and its standard error."""
    import numpy as np

    variances = present.var(axis=0) / len(present) + absent.var(axis=0) / len(absent)
    return float(np.linalg.norm(present.mean(axis=0) - absent.mean(axis=0))), float(np.sqrt(variances.sum()))


def _shared(first: Any, second: Any) -> float:
    """The share of equal numbers."""
    import numpy as np

    first, second = np.asarray(first, dtype=float).ravel(), np.asarray(second, dtype=float).ravel()
    count = min(len(first), len(second))
    return float((first[:count] == second[:count]).mean()) if count else 0.0


def _first(rows: LoadedData, records: int) -> LoadedData:
    owners = None if rows.owners is None else rows.owners[:records]
    return replace(rows, train_x=rows.train_x[:records], train_y=rows.train_y[:records], owners=owners)


def _shuffled_labels(rows: LoadedData) -> LoadedData:
    return replace(rows, train_y=rows.train_y[::-1].copy())


def _constant(rows: LoadedData) -> LoadedData:
    return replace(rows, train_x=rows.train_x * 0, train_y=rows.train_y * 0)


def _duplicated(rows: LoadedData) -> LoadedData:
    first = [0] * len(rows.train_x)
    return replace(rows, train_x=rows.train_x[first], train_y=rows.train_y[first])


def _scaled(rows: LoadedData) -> LoadedData:
    return replace(rows, train_x=rows.train_x * 100)


#: Other rows of the same number and types, by name.
_ROWS: Mapping[str, Callable[[LoadedData], LoadedData]] = {
    "reversed labels": _shuffled_labels,
    "rows of zeros": _constant,
    "copies of the first row": _duplicated,
    "features times 100": _scaled,
}
