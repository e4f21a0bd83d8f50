"""From a spec to its providers: data source, model, backend and audit, with their diagnostics.

Preparing reads no rows and does not import torch, so that ``validate`` and ``plan`` are fast. Initial weights are the
exception: they are compared with the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from dpspec.contract import (
    Assumption,
    Audit,
    DataError,
    DataSource,
    Diagnostic,
    Facts,
    FrozenMap,
    ModelFactory,
    Plan,
    Spec,
)
from dpspec.contract import Path as SpecPath
from dpspec.contract.audit import NO_TRIALS
from dpspec.contract.catalog import Catalog, Offered
from dpspec.engine.preparing.outcome_assumptions import INITIAL, constants_of, with_initial_weights
from dpspec.engine.preparing.refusals import kinds_with, refusals
from dpspec.engine.preparing.trial_keys import maker
from dpspec.errors import PluginError, SpecError
from dpspec.language.load import from_document
from dpspec.language.tree import locate
from dpspec.registry.descriptors import CORE_KEYS
from dpspec.registry.foreign_code import is_foreign, made, misbehaved, resolve

#: Statuses of constants, the weakest first.
_WEAKEST = ("false", "unchecked", "reported", "declared", "not-rejected", "by-construction")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A spec with the objects that its kinds name.

    ``offers`` has the kind and provider of each part of the spec, ``constants`` the statement of the backend, or the
    weakest of the components: audits on the same data that the audit composes. ``missing``: the mechanism takes records
    with missing values.
    """

    spec: Spec
    audit: Audit
    source: DataSource
    facts: Facts
    model: ModelFactory | None
    offers: Mapping[str, tuple[str, Offered]]
    diagnostics: tuple[Diagnostic, ...]
    constants: Assumption
    missing: bool = False
    components: tuple[Prepared, ...] = ()

    @cached_property
    def makers(self) -> FrozenMap:
        return FrozenMap({part: maker(kind, offered) for part, (kind, offered) in self.offers.items()})

    @property
    def revisions(self) -> FrozenMap:
        return FrozenMap({part: [kind, o.provider.trial_revision] for part, (kind, o) in self.offers.items()})

    @property
    def recording(self) -> Any:
        reference = self.offers["backend"][1].provider.recording
        return resolve(reference) if reference else None

    def plan(self) -> Plan:
        return NO_TRIALS if self.spec.audit is None else self.audit.plan(self.spec, self.facts)


def prepare(spec: Spec, catalog: Catalog, *, recorded: Facts | None = None) -> Prepared:
    """Look up the providers of a spec and check them together; ``diagnostics`` lists the problems.

    ``recorded`` are the facts of a result, used if the data is not available.
    """
    mechanism = find(catalog.mechanisms, spec.mechanism.kind, "mechanism kind")
    dataset = find(catalog.datasets, spec.data.kind, "data kind")
    backend = find(catalog.backends, spec.training.kind, "backend kind")
    offers = {
        "mechanism": (spec.mechanism.kind, mechanism),
        "data": (spec.data.kind, dataset),
        "backend": (spec.training.kind, backend),
    }
    try:
        source: DataSource = made(
            dataset, dataset.provider.source, "its source", spec.data.options, Path(spec.directory)
        )
        try:
            facts = source.facts()
        except DataError:
            if recorded is None:
                raise
            facts = recorded
    except DataError as error:
        raise SpecError([data_unreadable(error, spec)]) from None
    capabilities = tuple(sorted(backend.provider.capabilities))
    facts = dataclasses.replace(facts, capabilities=capabilities, initial_weights=None)
    model: ModelFactory | None = None
    if spec.model is not None:
        offered = find(catalog.models, spec.model.kind, "model kind")
        offers["model"] = (spec.model.kind, offered)
        try:
            if facts.vocabulary is not None and not offered.provider.tokens:
                raise ValueError(
                    f"{offered.provider.kind} computes with features, and the records are ids of {facts.vocabulary} "
                    f"tokens; models that take them: {kinds_with(catalog.models, 'tokens')}"
                )
            own = {key: value for key, value in spec.model.options.items() if key != INITIAL}
            factory: ModelFactory = made(offered, offered.provider.factory, "its factory", FrozenMap(own), facts)
            facts = dataclasses.replace(facts, parameters=factory.parameters())
        except ValueError as error:
            raise SpecError([model_mismatch(error, ("model",), spec)]) from None
        try:
            model, digest = with_initial_weights(spec, factory, recorded)
            facts = dataclasses.replace(facts, initial_weights=digest)
        except DataError as error:
            raise SpecError([data_unreadable(error, spec)]) from None
        except ValueError as error:
            raise SpecError([model_mismatch(error, ("model", "initial", "path"), spec)]) from None
    attack = offers_of(spec, catalog)
    offers |= {part: each for part, each in attack.items() if is_foreign(each[1])}
    audit, constants = audit_of(mechanism), constants_of(backend, spec)
    components = _components(audit, spec, catalog, recorded)
    if components:
        audit = audit.compose(components)
        constants = min((each.constants for each in components), key=lambda stated: _WEAKEST.index(stated.status))
    problems = [
        *refusals(spec, facts, source, offers, catalog),
        *(_beyond_limit(spec, facts, attack["canary"][1]) if "canary" in attack else ()),
        *audit.check(spec, facts),
    ]
    if backend.provider.recording:  # it is refused for every attack, with the alternative
        problems = [problem for problem in problems if problem.code != "missing-capability"]
    return Prepared(
        spec=spec,
        audit=audit,
        source=source,
        facts=facts,
        model=model,
        offers=offers,
        diagnostics=tuple(locate(problem, spec.origin) for problem in problems),
        missing=mechanism.provider.missing,
        constants=constants,
        components=components,
    )


def audit_of(offered: Offered) -> Audit:
    audit = made(offered, offered.provider.audit, "its audit")
    if not isinstance(audit, Audit):
        raise misbehaved(offered, f"{offered.provider.audit} makes a {type(audit).__name__}, not an Audit")
    return audit


def _components(audit: Audit, spec: Spec, catalog: Catalog, recorded: Facts | None) -> tuple[Prepared, ...]:
    prepared = []
    for name, path, document in audit.components(spec):
        try:
            prepared.append(prepare(from_document(document, catalog, spec.directory), catalog, recorded=recorded))
        except SpecError as error:
            raise SpecError(
                [
                    locate(dataclasses.replace(d, message=f"{name}: {d.message}", path=path, span=None), spec.origin)
                    for d in error.diagnostics
                ]
            ) from None
    return tuple(prepared)


def check(spec: Spec, catalog: Catalog) -> tuple[Diagnostic, ...]:
    """Every semantic diagnostic of a spec that its schema accepts. No torch, no rows."""
    try:
        return prepare(spec, catalog).diagnostics
    except SpecError as error:
        return error.diagnostics


def data_unreadable(error: DataError, spec: Spec) -> Diagnostic:
    """The diagnostic of a data error, at the responsible key of ``data`` or at a dotted place such as
    ``audit.scores.path``."""
    key = error.key or ("path" if "path" in spec.data.options else "")
    path = tuple(key.split(".")) if "." in key else ("data", key) if key else ("data",)
    return locate(Diagnostic(code="data-unreadable", message=str(error), path=path), spec.origin)


def out_of_range(error: ArithmeticError, spec: Spec) -> Diagnostic:
    what = error.args[-1] if error.args else type(error).__name__
    message = f"bounds cannot be computed in floating point: {what}"
    hint = "a number of the mechanism, or of its rate, noise or limits, is far too large or too small"
    return locate(Diagnostic(code="out-of-range", message=message, path=("mechanism",), help=hint), spec.origin)


def model_mismatch(error: ValueError, place: SpecPath, spec: Spec) -> Diagnostic:
    return locate(Diagnostic(code="model-mismatch", message=str(error), path=place), spec.origin)


def offers_of(spec: Spec, catalog: Catalog) -> dict[str, tuple[str, Offered]]:
    audit, found = spec.audit, {}
    if audit is not None and audit.canary is not None:
        found["canary"] = audit.canary.kind, find(catalog.canaries, audit.canary.kind, "canary")
    if audit is not None and audit.score is not None:
        found["score"] = audit.score.kind, find(catalog.scores, audit.score.kind, "score")
    return found


def find(offers: Mapping[str, Offered], kind: str, what: str) -> Offered:
    if kind not in offers:
        raise PluginError(f"no installed plugin offers {what} {kind!r} (see `dpspec plugins`)")
    return offers[kind]


def _beyond_limit(spec: Spec, facts: Facts, offered: Offered) -> Iterator[Diagnostic]:
    reference = offered.provider.limit
    limit = made(offered, reference, "limit()", facts, options_of(spec)) if reference else None
    if limit is None:
        return
    fits = isinstance(limit, tuple) and len(limit) == 2 and isinstance(limit[0], int) and isinstance(limit[1], str)
    if not fits:
        raise misbehaved(offered, f"limit() returns {limit!r}, not a number and why, or None")
    most, why = limit
    sizes = len(set(spec.threat_model.group_size))
    count = int(_block(spec).get("count", sizes)) // sizes * sizes
    if count > most:
        message = f"count must be at most {most}, got {count}: {why}"
        yield Diagnostic(code="bad-value", message=message, path=("audit", "canary", "count"))


def options_of(spec: Spec) -> FrozenMap:
    return FrozenMap({key: value for key, value in _block(spec).items() if key not in CORE_KEYS["canary"]})


def _block(spec: Spec) -> Mapping[str, Any]:
    return (spec.audit.options.get("canary") if spec.audit is not None else None) or {}
