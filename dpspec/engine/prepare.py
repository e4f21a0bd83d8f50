"""From a spec to what can run it: its data source, model, backend and audit, and what is wrong with them together.

Nothing here reads rows or imports torch, so that ``validate`` and ``plan`` answer at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from dpspec.contract import (
    Audit,
    Catalog,
    DataError,
    DataSource,
    Diagnostic,
    Facts,
    FrozenMap,
    ModelFactory,
    Offered,
    Plan,
    Spec,
    Trainer,
)
from dpspec.errors import PluginError, SpecError
from dpspec.registry.resolve import resolve
from dpspec.spec.tree import locate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A spec with the objects that its kinds name."""

    spec: Spec
    audit: Audit
    source: DataSource
    facts: Facts
    model: ModelFactory | None
    revisions: FrozenMap
    diagnostics: tuple[Diagnostic, ...]

    def plan(self) -> Plan:
        """The audit's plan; an empty one for a spec that is bounded only."""
        if self.spec.audit is None:
            return Plan(chunks=(), seconds=0.0, memory_bytes=0)
        return self.audit.plan(self.spec, self.facts)

    def trainer(self, catalog: Catalog) -> Trainer:
        """A fresh trainer of the backend that the spec names."""
        backend = _find(catalog.backends, self.spec.training.kind, "backend")
        return cast(Trainer, resolve(backend.provider.trainer)())  # type: ignore[operator]


def prepare(spec: Spec, catalog: Catalog, *, recorded: Facts | None = None) -> Prepared:
    """Look everything up and check it together.

    recorded: the facts that a result recorded, used where the data itself is no longer at hand.

    ``diagnostics`` of the answer holds what is wrong; only what makes further work impossible is raised:
    ``SpecError`` when data or model cannot be described at all, ``PluginError`` when a kind is not installed.
    """
    mechanism = _find(catalog.mechanisms, spec.mechanism.kind, "mechanism")
    dataset = _find(catalog.datasets, spec.data.kind, "data")
    backend = _find(catalog.backends, spec.training.kind, "backend")
    revisions = {
        "mechanism": [spec.mechanism.kind, mechanism.provider.trial_revision],
        "data": [spec.data.kind, dataset.provider.trial_revision],
        "backend": [spec.training.kind, backend.provider.trial_revision],
    }
    try:
        source = resolve(dataset.provider.source)(spec.data.options, Path(spec.directory))  # type: ignore[operator]
        facts = _facts(source, recorded)
    except DataError as error:
        raise SpecError([unreadable(error, spec)]) from None
    facts = dataclasses.replace(facts, capabilities=tuple(sorted(backend.provider.capabilities)))
    model: ModelFactory | None = None
    if spec.model is not None:
        offered = _find(catalog.models, spec.model.kind, "model")
        revisions["model"] = [spec.model.kind, offered.provider.trial_revision]
        try:
            model = resolve(offered.provider.factory)(spec.model.options, facts)  # type: ignore[operator]
            facts = dataclasses.replace(facts, parameters=cast(ModelFactory, model).parameters())
        except ValueError as error:
            diagnostic = Diagnostic(code="model-mismatch", message=str(error), path=("model",))
            raise SpecError([locate(diagnostic, spec.origin)]) from None
    audit = cast(Audit, resolve(mechanism.provider.audit)())  # type: ignore[operator]
    found = [*_missing(spec, mechanism), *_other_unit(spec, mechanism), *audit.check(spec, facts)]
    diagnostics = tuple(locate(d, spec.origin) for d in found)
    return Prepared(
        spec=spec,
        audit=audit,
        source=source,
        facts=facts,
        model=model,
        revisions=FrozenMap(revisions),
        diagnostics=diagnostics,
    )


def check(spec: Spec, catalog: Catalog) -> tuple[Diagnostic, ...]:
    """Every semantic diagnostic of a spec that its schema accepts, located. No torch, no rows."""
    try:
        return prepare(spec, catalog).diagnostics
    except SpecError as error:
        return error.diagnostics


def plan(spec: Spec, catalog: Catalog) -> Plan:
    """What the spec's trials cost and can show. Raises ``SpecError`` where the spec cannot be audited."""
    prepared = prepare(spec, catalog)
    errors = [d for d in prepared.diagnostics if d.severity == "error"]
    if errors:
        raise SpecError(errors)
    return prepared.plan()


def unreadable(error: DataError, spec: Spec) -> Diagnostic:
    """What a data error says, at the key of ``data`` that is at fault, or where the file is named."""
    key = error.key or ("path" if "path" in spec.data.options else "")
    path = ("data", key) if key else ("data",)
    return locate(Diagnostic(code="data-unreadable", message=str(error), path=path), spec.origin)


def beyond(error: ArithmeticError, spec: Spec) -> Diagnostic:
    """What to tell where a mechanism's numbers are too large or too small to compute bounds with."""
    what = error.args[-1] if error.args else type(error).__name__
    message = f"bounds cannot be computed in floating point: {what}"
    hint = "some number of the mechanism, or of its rate, noise or limits, is far too large or too small"
    return locate(Diagnostic(code="out-of-range", message=message, path=("mechanism",), help=hint), spec.origin)


def _other_unit(spec: Spec, mechanism: Offered) -> Iterator[Diagnostic]:
    """A claim about persons would have no number on either side where all of them speak of records."""
    unit, known = spec.threat_model.unit, sorted(mechanism.provider.units)
    if unit not in known:
        yield Diagnostic(
            code="unsupported",
            message=f"the numbers of {spec.mechanism.kind!r} speak of one {' or '.join(known)}, not of one {unit!r}",
            path=("threat_model", "unit"),
            help="where one record is one of them, leave unit out; what somebody with several records loses, "
            "group_size asks",
        )


def _missing(spec: Spec, mechanism: Offered) -> Iterator[Diagnostic]:
    """Records that miss values are for mechanisms that know what to do with them."""
    if spec.data.get("missing") and not mechanism.provider.missing:
        yield Diagnostic(
            code="unsupported",
            message=f"{spec.mechanism.kind!r} takes no records with missing values",
            path=("data", "missing"),
            help="leave missing out and write a public constant into the empty cells beforehand, which costs nothing, "
            "or take a mechanism that imputes and accounts for it",
        )


def _facts(source: DataSource, recorded: Facts | None) -> Facts:
    try:
        return source.facts()
    except DataError:
        if recorded is None:
            raise
        return recorded


def _find(offers: Mapping[str, Offered], kind: str, what: str) -> Offered:
    if kind not in offers:
        raise PluginError(f"no installed plugin offers {what} kind {kind!r} (see `dpspec plugins`)")
    return offers[kind]
