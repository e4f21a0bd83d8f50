"""The example of a mechanism: it runs, its audit keeps the contract, and its outcomes have no flaws."""

from __future__ import annotations

import atexit
import difflib
import itertools
import json
import math
import pickle
import random
import shutil
import sys
import tempfile
import unittest
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from dpspec.contract import Audit, Evidence, Finding, FrozenMap, Json, Outcome, Scope, Series, Spec, Trial
from dpspec.contract.events import Event, TrialFinished
from dpspec.contract.frozen import canonical_json
from dpspec.contract.results import Result
from dpspec.engine.preparing.prepare import check
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.language.diagnostics import render
from dpspec.language.load import load_specs
from dpspec.registry.loader import describe
from dpspec.results import codec
from dpspec.results.codec import result_schema
from dpspec.results.differing import differing
from dpspec.results.evidence_weight import TRADE_OFF, claim_scope, covers, is_profile, shortfall
from dpspec.results.inequalities import statement
from dpspec.testing.provider import ProviderSuite, impurities, require, require_light

#: Releases of runs that are compared bit by bit.
RELEASES = 20

_OPTIONS = RunOptions(device="cpu")


@dataclass(frozen=True)
class Executed:
    """A run of the example: its specs, result and store, and the number of trained trials."""

    specs: tuple[Spec, ...]
    result: Result
    store: Store
    trained: int

    def trials(self) -> list[Any]:
        """The reproducible parts of the trials."""
        trials = [trial for audit in self.result.audits for trial in audit.trials]
        return [{"index": t.index, "evidence": t.evidence, "arrays": t.arrays} for t in trials]


@contextmanager
def in_words(step: str) -> Iterator[None]:
    """Turn any error inside into an assertion that names the step of the audit, the error and its place."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{step} raises {describe(error)}") from error


_first: dict[type, Executed | None] = {}
_brief: dict[type, Executed] = {}
_folders: dict[type, Path] = {}


def _folder(suite: type) -> Path:
    if suite not in _folders:
        _folders[suite] = Path(tempfile.mkdtemp(prefix="dpspec-testing-"))
        atexit.register(shutil.rmtree, _folders[suite], ignore_errors=True)
    return _folders[suite]


def example_file(suite: type) -> Path:
    """The file of a suite's example."""
    return _folder(suite) / "example.yaml"


class ExampleSuite(ProviderSuite):
    """The part of the suite for mechanisms that runs the example.

    overrides: Applied to the example in all tests, like ``--set``. Keep the example small: it runs three times.
    monotone: For keys of the spec, the direction in which every upper bound moves when only that key changes.
    quantities: The quantities of the bounds in ``monotone``; all if empty.
    """

    family: ClassVar[str] = "mechanism"
    overrides: ClassVar[Sequence[str]] = ()
    monotone: ClassVar[Mapping[str, Trend]] = {}
    quantities: ClassVar[Sequence[str]] = ()

    @classmethod
    def load(cls, *overrides: str) -> tuple[Spec, ...]:
        """The example's specs, one per cell. Fails with all diagnostics if the example is invalid."""
        path = example_file(cls)
        path.write_text(cls.provider().example, encoding="utf-8")
        loaded = load_specs([path], cls.catalog(), [*cls.overrides, *overrides])
        require(loaded.ok and loaded.specs, f"the example is not a valid spec:\n{render(loaded.diagnostics)}")
        return loaded.specs

    @classmethod
    def run(cls, specs: Sequence[Spec], store: Store | None = None, *, train: bool = True) -> Executed:
        """Run specs on the CPU, in a fresh store unless ``store`` is given."""
        store = store or Store(Path(tempfile.mkdtemp(dir=_folder(cls))))
        events: list[Event] = []
        with in_words("the run"):
            result = run(specs, cls.catalog(), store=store, options=_OPTIONS, listeners=[events.append], train=train)
        return Executed(tuple(specs), result, store, sum(isinstance(event, TrialFinished) for event in events))

    @classmethod
    def first(cls, *, trials: bool = False) -> Executed:
        """The first run of the example, shared by the tests of a suite; skips a test that needs ``trials``."""
        if cls not in _first:
            _first[cls] = None
            _first[cls] = cls.run(cls.load())
        executed = _first[cls]
        if executed is None:
            raise AssertionError("the example does not run to its end: another test of this suite says why")
        if trials and not executed.trials():
            raise unittest.SkipTest("the example has no trials")
        return executed

    @classmethod
    def repeated(cls) -> list[str]:
        """Overrides of the runs that are compared bit by bit: few releases, because all bits of each are compared."""
        releases = [spec.audit.options.get("releases", 0) for spec in cls.load() if spec.audit is not None]
        return [f"audit.releases={RELEASES}"] if any(count > RELEASES for count in releases) else []

    @classmethod
    def brief(cls) -> Executed:
        """The first run with :meth:`repeated`, shared by the tests of a suite."""
        cls.first(trials=True)
        if not cls.repeated():
            return cls.first()
        if cls not in _brief:
            _brief[cls] = cls.run(cls.load(*cls.repeated()))
        return _brief[cls]

    @classmethod
    def audit(cls) -> Audit:
        """A fresh audit."""
        audit = cls.code()()
        require(isinstance(audit, Audit), f"{cls.provider().audit} is not a dpspec.contract.Audit")
        return audit  # type: ignore[no-any-return]

    def test_example_is_valid(self) -> None:
        """The example is a valid spec of this kind, and ``check`` reports no error in it."""
        for spec in self.load():
            require(spec.mechanism.kind == self.kind, f"the example audits kind {spec.mechanism.kind!r}")
            with in_words("check"):
                errors = [d for d in check(spec, self.catalog()) if d.severity == "error"]
            require(not errors, f"check refuses the example:\n{render(errors)}")

    def test_checking_a_spec_imports_neither_torch_nor_scipy(self) -> None:
        """Validating the example imports neither torch nor scipy, so that ``dpspec validate`` is fast."""
        self.load()
        path = str(example_file(type(self)))
        offered = pickle.dumps(
            self.offered()
        ).hex()  # the suite's registry may offer other plugins than the installed ones
        call = f"""found()
        import dataclasses
        import pickle
        from dpspec.registry.loader import load_catalog
        from dpspec.language.load import load_specs
        from dpspec.engine.preparing.prepare import prepare
        catalog = load_catalog()
        offers = {{**catalog.mechanisms, {self.kind!r}: pickle.loads(bytes.fromhex({offered!r}))}}
        catalog = dataclasses.replace(catalog, mechanisms=offers)
        for spec in load_specs([Path({path!r})], catalog).specs:
            prepare(spec, catalog)"""
        advice = " when a spec is checked: import it in bound, trials or conclude"
        require_light(self.provider().audit, call, ("torch", "scipy"), advice)

    def test_outcomes_are_well_formed(self) -> None:
        """Findings, series, checks and evidence are complete and valid, and every claim has an upper bound."""
        for spec, audit in zip(self.first().specs, self.first().result.audits, strict=True):
            outcomes: list[Outcome] = [*audit.findings, *audit.series, *audit.checks, *audit.evidence]
            faults = [*flaws(outcomes), *unanswered(spec, audit.findings)]
            faults += _unimplied(audit.series) if self.offered().is_foreign else ()
            require(not faults, "\n".join(dict.fromkeys(faults)))

    def test_example_runs_as_expected(self) -> None:
        """The example runs to its end, and every verdict is the expected one."""
        result = self.first().result
        require(result.complete, "the example's run is incomplete")
        for audit in result.audits:
            surprises = [f"{v.claim} is {v.verdict}: {v.reason}" for v in audit.verdicts if not v.expected]
            require(not surprises, f"{audit.name}: not as expected: {' '.join(surprises)}")
            require(audit.conformance.expected, f"{audit.name}: {audit.conformance.reason}")
            require(any(f.bound == "upper" for f in audit.findings), f"{audit.name} has no upper bound")

    def test_result_is_of_the_published_schema(self) -> None:
        """The result, written as JSON, validates against ``dpspec/result/v2`` and reads back equal."""
        from jsonschema import Draft202012Validator

        result = self.first().result
        with in_words("writing the result"):
            text = codec.dump(result)
        errors = list(Draft202012Validator(result_schema()).iter_errors(json.loads(text)))
        require(not errors, "\n".join(f"{e.json_path}: {e.message}" for e in errors[:20]))
        with in_words("reading the result back"):
            require(codec.load(text) == result, "the result differs after writing and reading")

    def test_result_can_be_verified(self) -> None:
        """Bounds, conclusions and verdicts recomputed from the result's own trials are equal."""
        first, directory = self.first(), str(_folder(type(self)))
        with in_words("verifying the result"):
            mismatches = verify(first.result, self.catalog(), directory=directory, store=first.store)
        require(not mismatches, "\n".join(f"{m.what}: {m.before}, again {m.after}" for m in mismatches))

    def test_trials_are_reproducible_by_seed(self) -> None:
        """The same spec in an empty store gives equal bytes; another ``audit.seed`` gives other bytes."""
        first, again = self.brief(), self.run(self.load(*self.repeated()))
        path, once, then = next(differing(first.trials(), again.trials(), "trials"), ("trials", "", ""))
        require(
            first.trials() == again.trials(),
            "two runs of the same spec gave different trials: all randomness must come from context.seed(index, ...)"
            f"\n{path}: {once} first, {then} then",
        )
        seeds = {spec.audit.seed for spec in first.specs if spec.audit is not None}
        of_other_seed = self.run(self.load(*self.repeated(), f"audit.seed={max(seeds) + 1}"))
        require(of_other_seed.trials() != first.trials(), "the trials do not depend on audit.seed")

    def test_stored_trials_are_found_again(self) -> None:
        """A second run on the same store trains nothing."""
        again = self.run(self.load(), self.first(trials=True).store)
        require(again.trained == 0, f"{again.trained} stored trials were trained again: trial_inputs must not vary")

    def test_trial_inputs_hold_nothing_that_trials_may_not_read(self) -> None:
        """Trial inputs depend on the seed, but not on name, claims, confidence or number of runs."""
        for spec in self.load():
            inputs = self._inputs(spec)
            # Everything changes that trials may not depend on.
            document = {**spec.to_json(), "claims": [], "name": "other", "description": "other"}
            changed = replace(spec, name="other", description="other", claims=(), document=FrozenMap(document))
            if spec.audit is not None:
                confidence = (1 + spec.audit.confidence) / 2
                changed = _changed(changed, confidence=confidence, runs=spec.audit.runs + 1, expect="deviates")
            require(
                self._inputs(changed) == inputs,
                "trial_inputs change with the claims, the confidence, the number of runs or the name: "
                "every such change would train again",
            )
            if spec.audit is not None:
                seeded = self._inputs(_changed(spec, seed=spec.audit.seed + 1))
                require(seeded != inputs, "trial_inputs leave audit.seed out")

    def test_conclude_is_pure(self) -> None:
        """Concluding twice gives equal results, draws no global randomness, and uses neither files nor network."""
        import numpy as np

        first = self.first(trials=True)
        for spec, audit in zip(first.specs, first.result.audits, strict=True):
            stored = first.store.get_all({record.index: record.key for record in audit.trials})
            trials = [s.trial for s in stored.values()]
            once = self._conclude(spec, trials)  # imports what it needs
            # Code that uses a global random generator gives another result after these draws.
            random.random()
            np.random.random()
            if "torch" in sys.modules:
                sys.modules["torch"].rand(1)
            again, touched = impurities(lambda s=spec, t=trials: self._conclude(s, t))  # type: ignore[misc]
            require(repr(once) == repr(again), f"conclude gives different answers:\n{once}\n{again}")
            require(not touched, "conclude is not pure: " + "; ".join(touched))

    def test_bounds_are_monotone_where_declared(self) -> None:
        """If a key in ``monotone`` changes, every upper bound follows in the declared direction."""
        if not self.monotone:
            raise unittest.SkipTest("only the plugin's own tests can: there, `monotone` names keys of the spec")
        for key, trend in self.monotone.items():
            specs = [self.load(f"{key}={json.dumps(value)}")[0] for value in trend.values]
            audits = [self.run([spec], train=False).result.audits[0] for spec in specs]
            uppers = [[f for f in audit.findings if f.bound == "upper"] for audit in audits]
            if self.quantities:
                uppers = [[f for f in findings if f.quantity in self.quantities] for findings in uppers]
            tables = [{_conditions(f): f.value for f in findings} for findings in uppers]
            common = [conditions for conditions in tables[0] if all(conditions in t for t in tables)]
            require(common, f"{key}: no upper bound at any of {trend.values}")
            problems = [(c, trend.problem([t[c] for t in tables])) for c in common]
            require(not any(p for _, p in problems), "\n".join(f"{key}: the bound {c} {p}" for c, p in problems if p))

    def _inputs(self, spec: Spec) -> str:
        with in_words("trial_inputs"):
            return canonical_json(self.audit().trial_inputs(spec))

    def _conclude(self, spec: Spec, trials: Sequence[Trial]) -> list[Outcome]:
        with in_words("conclude"):
            return list(self.audit().conclude(spec, trials))


def _conditions(finding: Finding) -> str:
    usual = asdict(Scope())
    conditions = [f"{key} {value}" for key, value in finding.at.items()]
    conditions += [f"{key} {value}" for key, value in asdict(finding.scope).items() if value != usual[key]]
    return f"on {finding.quantity} by {finding.method}" + f" at {', '.join(conditions)}" * bool(conditions)


def _changed(spec: Spec, **audit: Any) -> Spec:
    """Replace audit options in the spec and in its document."""
    assert spec.audit is not None
    document = spec.to_json()
    document["audit"] = {**document["audit"], **audit}
    return replace(spec, audit=replace(spec.audit, **audit), document=FrozenMap(document))


#: The quantities of claims. A plugin may report others; a near miss is a typo.
QUANTITIES = ("epsilon", "delta", "mu", "rho", "gamma", "tpr", "fpr", "advantage", "accuracy")

#: The valid values of :class:`~dpspec.contract.Scope`.
_SCOPE = {
    "adjacency": ("add-remove", "replace-one", "zero-out"),
    "direction": ("add", "remove", "both"),
    "access": ("all-iterates", "final-model", "transcript"),
    "adversary": ("gradient", "record", "none"),
    "data": ("all", "collection", "this", "planted"),
    "pipeline": ("declared", "executed"),
}


def unanswered(spec: Spec, findings: Sequence[Finding]) -> Iterator[str]:
    """Describe claims without an upper bound of their quantity and scope: they stay open at any value."""
    quantities = sorted({f.quantity for f in findings if f.bound == "upper"})
    bounds = ", ".join(sorted({f.bound for f in findings})) or "absent"
    available = f"upper bounds are of {', '.join(quantities)}" if quantities else f"bounds are {bounds}"
    for claim in spec.claims:
        for quantity in {part.quantity: None for part in statement(claim).parts if part.side == "at-most"}:
            if quantity not in quantities:
                yield f"claim {claim.id!r} needs an upper bound of {quantity}, which is missing ({available})"
            elif "proved" in claim.expect:
                scopes = {f.scope: f.method for f in findings if f.bound == "upper" and f.quantity == quantity}
                needed_scope = claim_scope(spec, claim)
                for scope, method in {} if any(covers(s, needed_scope) for s in scopes) else scopes.items():
                    bound = f"the bound of {quantity} by {method!r}"
                    missing = "; ".join(shortfall(scope, needed_scope))
                    yield f"claim {claim.id!r} expects to be proved, and {bound} does not apply to it: {missing}"


def _unimplied(series: Sequence[Series]) -> Iterator[str]:
    """Describe columns of upper bounds that no attack tests: a report would print them as maxima."""
    for table in series:
        proved = table.rigor in ("certified", "theorem")
        columns = [name for name, side in table.bounds.items() if side == "upper"]
        if proved and columns and not is_profile(table) and table.name != TRADE_OFF:
            yield (
                f"the series {table.name!r} states upper bounds in {', '.join(columns)}, which no finding implies and "
                "no attack tests: yield findings, or a profile of delta against epsilon (kit.profile)"
            )


def flaws(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Describe every flaw that a run does not refuse."""
    ids = [outcome.id for outcome in outcomes if isinstance(outcome, Evidence)]
    for repeated in sorted({i for i in ids if ids.count(i) > 1}):
        yield f"the audit yields two pieces of evidence with the id {repeated!r}"
    for outcome in outcomes:
        kind = type(outcome).__name__.lower()
        name = next(getattr(outcome, k) for k in ("id", "quantity", "assumption", "name") if hasattr(outcome, k))
        yield from (f"the audit yields {kind} {name!r}: {flaw}" for flaw in _flaws(outcome))


def _flaws(outcome: Outcome) -> Iterator[str]:
    yield from (f"its {field} is empty" for field in _TEXTS if not getattr(outcome, field, field).strip())
    if isinstance(outcome, Finding | Evidence):
        for key, allowed in _SCOPE.items():
            value = getattr(outcome.scope, key)
            if value not in allowed:
                yield f"its scope's {key} is {value!r} (valid: {', '.join(allowed)})"
    if isinstance(outcome, Finding):
        close = difflib.get_close_matches(outcome.quantity, QUANTITIES, 1, cutoff=0.8)
        if outcome.quantity not in QUANTITIES and close:
            yield f"claims have no quantity {outcome.quantity!r}; did you mean {close[0]!r}?"
        if outcome.rigor == "statistical" and not (outcome.confidence and 0 < outcome.confidence < 1):
            yield "it is statistical and states no confidence"
        if outcome.lower is not None and outcome.bound == "upper" and outcome.lower > outcome.value:
            yield f"its lower end {outcome.lower} is above its value {outcome.value}"
    if isinstance(outcome, Series) and (missing := sorted(set(outcome.columns) - set(outcome.units))):
        yield f"its columns {', '.join(missing)} have no unit; for no unit, write an empty string"


#: Fields of outcomes that may not be empty: readers see them.
_TEXTS = ("source", "method", "test", "title")

#: Relative tolerance of comparisons: certified bounds may be computed on different grids.
SLACK = 1e-3


@dataclass(frozen=True)
class Trend:
    """Ascending ``values`` of a key along which every upper bound is ``increasing``, ``decreasing`` or ``constant``.

    With ``partial``, bounds may also stay, such as the bounds of one of several theorems.
    """

    direction: Literal["increasing", "decreasing", "constant"]
    values: tuple[Json, ...]
    partial: bool = False

    def __post_init__(self) -> None:
        if len(self.values) < 2 or list(self.values) != sorted(self.values):
            raise ValueError(f"a trend needs two values or more in ascending order, got {self.values!r}")

    def problem(self, bounds: Sequence[float]) -> str | None:
        """Describe a bound that moves in the wrong direction, or bounds that do not move."""
        for (value, bound), (next_value, next_bound) in itertools.pairwise(zip(self.values, bounds, strict=True)):
            if self.direction == "constant":
                if bound != next_bound and not math.isclose(bound, next_bound, rel_tol=SLACK):
                    return f"is not constant: {bound} at {value}, {next_bound} at {next_value}"
                continue
            low, high = (bound, next_bound) if self.direction == "increasing" else (next_bound, bound)
            if low > high and not math.isclose(low, high, rel_tol=SLACK):
                return f"is not {self.direction}: {bound} at {value}, {next_bound} at {next_value}"
        if self.direction != "constant" and not self.partial and bounds[0] == bounds[-1] and math.isfinite(bounds[0]):
            return f"does not move: {bounds[0]} at {self.values[0]} and at {self.values[-1]}"
        return None


def increasing(*values: Json, partial: bool = False) -> Trend:
    """State that upper bounds grow along ascending ``values``, such as of ``mechanism.steps``; ``partial``: some do."""
    return Trend("increasing", values, partial)


def decreasing(*values: Json, partial: bool = False) -> Trend:
    """State that upper bounds shrink along ascending ``values``, such as of the noise; ``partial``: some do."""
    return Trend("decreasing", values, partial)


def constant(*values: Json) -> Trend:
    """State that upper bounds are the same along ascending ``values`` of a key, such as ``mechanism.label``."""
    return Trend("constant", values)
