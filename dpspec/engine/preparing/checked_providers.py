"""What plugins of others return, looked at where it arrives: of another type than the contract's, it is told as theirs.

dpspec's own providers are not wrapped; tests hold them to the same contract.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from dpspec.contract import (
    Audit,
    Check,
    Claim,
    Context,
    DataSource,
    Diagnostic,
    Evidence,
    Facts,
    Finding,
    FrozenMap,
    LoadedData,
    ModelFactory,
    Outcome,
    Plan,
    Series,
    Spec,
    Trainer,
    Trial,
)
from dpspec.contract.audit import Dominating
from dpspec.contract.canonical import canonical_json
from dpspec.contract.catalog import Offered
from dpspec.engine.preparing.texts import texts_flaw
from dpspec.registry.foreign_calls import called, is_foreign, listed, made, misbehaved


def audit_of(offered: Offered) -> Audit:
    """A fresh audit of a mechanism."""
    audit = made(offered, offered.provider.audit, "its audit")
    if not isinstance(audit, Audit):
        raise misbehaved(offered, f"{offered.provider.audit} makes a {type(audit).__name__}, not an Audit")
    return _CheckedAudit(offered, audit) if is_foreign(offered) else audit


def source_of(offered: Offered, options: FrozenMap, directory: object) -> DataSource:
    """The source of a data kind."""
    source = made(offered, offered.provider.source, "its source", options, directory)
    return cast(DataSource, _CheckedSource(offered, source, options) if is_foreign(offered) else source)


def factory_of(offered: Offered, options: FrozenMap, facts: Facts) -> ModelFactory:
    """The factory of a model kind. Raises what it raises, ``ValueError`` where options and facts do not fit."""
    factory = made(offered, offered.provider.factory, "its factory", options, facts)
    return cast(ModelFactory, _CheckedFactory(offered, factory) if is_foreign(offered) else factory)


def trainer_of(offered: Offered) -> Trainer:
    """A fresh trainer of a backend."""
    trainer = made(offered, offered.provider.trainer, "its trainer")
    if not callable(getattr(trainer, "train", None)):
        raise misbehaved(offered, f"{offered.provider.trainer} makes a {type(trainer).__name__}, which cannot train")
    return cast(Trainer, _Named(offered, trainer) if is_foreign(offered) else trainer)


class _Named:
    """A provider's object, whose methods are called under its name."""

    def __init__(self, offered: Offered, thing: Any) -> None:
        self._offered, self._thing = offered, thing

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = called(self._offered, name, lambda: getattr(self._thing, name))
        if not callable(value):
            return value
        return lambda *given, **named: called(self._offered, f"{name}()", lambda: value(*given, **named))


class _CheckedSource(_Named):
    """A data source whose facts are facts, and whose rows are as many and as wide as those say."""

    def __init__(self, offered: Offered, thing: Any, options: FrozenMap) -> None:
        super().__init__(offered, thing)
        self._options = options

    def facts(self) -> Facts:
        """The public facts."""
        facts = called(self._offered, "facts()", lambda: self._thing.facts())
        _require(self._offered, "facts()", facts, Facts)
        counts = (facts.records, facts.features, facts.classes, facts.test_records, facts.vocabulary or 0, *facts.shape)
        if min(counts) < 0:
            raise misbehaved(self._offered, f"facts() holds a negative count: {min(counts)}")
        return cast(Facts, facts)

    def remarks(self) -> tuple[Diagnostic, ...]:
        """Nothing: what is worth a remark besides, dpspec's own sources know of their files."""
        return ()

    def load(self) -> LoadedData:
        """The rows."""
        rows = called(self._offered, "load()", lambda: self._thing.load())
        if not isinstance(rows, LoadedData):
            raise misbehaved(self._offered, f"load() returns a {type(rows).__name__}, not LoadedData")
        facts = self.facts()
        for part, number in (("train", facts.records), ("test", facts.test_records or None)):
            wrong = _rows_flaw(rows, part, number, tuple(facts.shape), bool(self._options.get("missing")))
            if wrong := wrong or texts_flaw(getattr(rows, f"{part}_x"), part, facts.vocabulary):
                raise misbehaved(self._offered, f"load(): {wrong}")
        return rows


class _CheckedFactory(_Named):
    """A model factory that counts parameters and builds modules."""

    def parameters(self) -> int:
        """How many there are."""
        number: Any = called(self._offered, "parameters()", lambda: self._thing.parameters())
        if _misfit(number, int, "") or number < 0:
            raise misbehaved(self._offered, f"parameters() returns {number!r}, not a count")
        return int(number)

    def build(self, seed: int) -> Any:
        """A module."""
        module: Any = called(self._offered, "build()", lambda: self._thing.build(seed))
        if not all(callable(getattr(module, name, None)) for name in ("forward", "parameters", "state_dict")):
            raise misbehaved(self._offered, f"build() returns a {type(module).__name__}, not a torch.nn.Module")
        return module


class _CheckedAudit(Audit):
    """An audit of which every step yields what the contract says."""

    def __init__(self, offered: Offered, audit: Audit) -> None:
        self._offered, self._audit = offered, audit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._audit, name)

    def check(self, spec: Spec, facts: Facts) -> Iterator[Diagnostic]:
        return cast("Iterator[Diagnostic]", self._each("check()", lambda: self._audit.check(spec, facts), Diagnostic))

    def bound(self, spec: Spec, context: Context) -> Iterator[Finding | Series]:
        outcomes = self._each("bound()", lambda: self._audit.bound(spec, context), Finding, Series)
        return cast("Iterator[Finding | Series]", outcomes)

    def dominating(self, spec: Spec, facts: Facts, claim: Claim) -> Dominating | None:
        found = called(self._offered, "dominating()", lambda: self._audit.dominating(spec, facts, claim))
        if found is not None:
            _require(self._offered, "dominating()", found, Dominating)
        return found

    def plan(self, spec: Spec, facts: Facts) -> Plan:
        plan = called(self._offered, "plan()", lambda: self._audit.plan(spec, facts))
        _require(self._offered, "plan()", plan, Plan)
        indices = [index for chunk in plan.chunks for index in chunk]
        if len(set(indices)) < len(indices) or min(indices, default=0) < 0 or not all(plan.chunks):
            raise misbehaved(
                self._offered,
                "plan() must put every trial into one chunk: an index is negative or stands twice, or a chunk is empty",
            )
        if not (math.isfinite(plan.seconds) and plan.seconds >= 0.0 and plan.memory_bytes >= 0):
            raise misbehaved(self._offered, f"plan() takes {plan.seconds} s and {plan.memory_bytes} bytes")
        return plan

    def trial_inputs(self, spec: Spec) -> FrozenMap:
        inputs = called(self._offered, "trial_inputs()", lambda: self._audit.trial_inputs(spec))
        if not isinstance(inputs, FrozenMap):
            raise misbehaved(self._offered, f"trial_inputs() returns a {type(inputs).__name__}, not a FrozenMap")
        return inputs

    def trials(self, inputs: FrozenMap, context: Context, indices: Sequence[int]) -> Iterator[Trial]:
        missing = set(indices)
        for trial in self._each("trials()", lambda: self._audit.trials(inputs, context, indices), Trial):
            if trial.index not in missing:
                raise misbehaved(self._offered, f"trials() makes trial {trial.index}, which was not requested")
            missing.discard(trial.index)
            if wrong := _trial_flaw(trial):
                raise misbehaved(self._offered, f"trials(): {wrong}")
            yield trial
        if missing:
            raise misbehaved(self._offered, f"trials() ends without trial {min(missing)}")

    def conclude(self, spec: Spec, trials: Sequence[Trial]) -> Iterator[Outcome]:
        outcomes = self._each(
            "conclude()", lambda: self._audit.conclude(spec, trials), Finding, Series, Check, Evidence
        )
        return cast("Iterator[Outcome]", outcomes)

    def _each(self, what: str, items: Any, *kinds: type) -> Iterator[Any]:
        for item in listed(self._offered, what, items):
            kind = next((kind for kind in kinds if isinstance(item, kind)), None)
            if kind is None:
                names = " or ".join(kind.__name__ for kind in kinds)
                raise misbehaved(self._offered, f"{what} yields a {type(item).__name__}, not a {names}")
            if kind is not Trial:
                _require(self._offered, what, item, kind)
            yield item


def _rows_flaw(rows: LoadedData, part: str, number: int | None, shape: tuple[int, ...], missing: bool) -> str:
    """Why a part of the rows is not what the facts say; empty where it is."""
    import numpy as np

    x, y = getattr(rows, f"{part}_x"), getattr(rows, f"{part}_y")
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        return f"{part}_x and {part}_y are a {type(x).__name__} and a {type(y).__name__}, not arrays"
    if x.dtype.kind != "f" or y.dtype.kind not in "iu":
        return f"{part}_x is of {x.dtype} and {part}_y of {y.dtype}, not of float32 and int64"
    if y.shape != (len(x),) or (len(x) and shape and x.shape[1:] != shape):
        return f"{part}_x has the shape {x.shape} and {part}_y {y.shape}, where facts() says {('n', *shape)}"
    if number is not None and len(x) != number:
        return f"{part}_x has {len(x)} rows, where facts() says {number}"
    if not (np.isfinite(x) | np.isnan(x)).all() or (not missing and np.isnan(x).any()):
        return f"{part}_x holds values that are not finite"
    return ""


def _trial_flaw(trial: Trial) -> str:
    """Why a trial could not be kept; empty where it can."""
    import numpy as np

    evidence, arrays = cast(Any, trial.evidence), cast(Any, trial.arrays)
    if not isinstance(evidence, Mapping) or not isinstance(arrays, Mapping):
        return f"evidence is a {type(evidence).__name__} and arrays a {type(arrays).__name__}, not mappings"
    for name, array in arrays.items():
        if not isinstance(name, str) or not name.isidentifier():
            return f"the array {name!r} is not named by an identifier"
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            return f"the array {name!r} is no array of numbers"
    try:
        canonical_json(trial.evidence)
    except (TypeError, ValueError, RecursionError) as error:
        return f"its evidence cannot be kept: {error}"
    return ""


def _require(offered: Offered, what: str, value: Any, hint: type) -> None:
    if wrong := _misfit(value, hint, hint.__name__):
        raise misbehaved(offered, f"{what}: {wrong}")


def _misfit(value: Any, hint: Any, place: str) -> str:
    """Why a value is not of a type; empty where it is. Lists pass for tuples, and numpy's numbers for Python's."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        reasons = [_misfit(value, each, place) for each in get_args(hint)]
        return "" if "" in reasons else reasons[0]
    if dataclasses.is_dataclass(hint):
        cls = cast(type, hint)
        if not isinstance(value, cls):
            return f"{place} is a {type(value).__name__}, not a {cls.__name__}"
        hints = _hints(cls)
        fields = (_misfit(getattr(value, f.name), hints[f.name], f"{place}.{f.name}") for f in dataclasses.fields(hint))
        return next(filter(None, fields), "")
    if origin is Literal:
        return (
            "" if value in get_args(hint) else f"{place} is {value!r}, not one of {', '.join(map(str, get_args(hint)))}"
        )
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return f"{place} is a {type(value).__name__}, not a tuple"
        inner = get_args(hint)[0]
        return next(filter(None, (_misfit(each, inner, f"{place}[{i}]") for i, each in enumerate(value))), "")
    ok = {
        FrozenMap: isinstance(value, Mapping),
        float: isinstance(value, numbers.Real) and not isinstance(value, bool),
        int: isinstance(value, numbers.Integral) and not isinstance(value, bool),
        type(None): value is None,
    }.get(hint, isinstance(value, hint) if isinstance(hint, type) else True)
    return "" if ok else f"{place} is a {type(value).__name__}, not a {getattr(hint, '__name__', hint)}"


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)
