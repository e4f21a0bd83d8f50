"""From a spec to its providers: data source, model, backend and audit, with their diagnostics.

Preparing reads no rows and does not import torch, so that ``validate`` and ``plan`` are fast. Initial weights are the
exception: they are compared with the model.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from dpspec import decimals
from dpspec.contract import Assumption, DataError, DataSource, Facts, Finding, ModelError, ModelFactory, Series
from dpspec.contract.audit import NO_TRIALS, Audit, Plan
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.findings import WEAKEST_FIRST
from dpspec.contract.frozen import FrozenMap
from dpspec.contract.spec import Spec
from dpspec.data.source import LOADING_BYTES, LOADING_SECONDS
from dpspec.engine.preparing.comparisons import check_comparisons, compare, without_comparisons
from dpspec.engine.preparing.diagnostics import data_unreadable, model_mismatch
from dpspec.engine.preparing.loss import loss_of
from dpspec.engine.preparing.model import model_of
from dpspec.engine.preparing.providers import constants_of, providers_of
from dpspec.engine.preparing.refusals import refusals
from dpspec.engine.preparing.trial_keys import maker
from dpspec.errors import Diagnostic, SpecError
from dpspec.language.load import from_document
from dpspec.language.yaml_source import locate
from dpspec.registry.loader import is_foreign, made, resolve

#: Memory for loading rows below which the free memory is not checked.
_UNCHECKED_BYTES = 2**28


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
    components: "tuple[Prepared, ...]" = ()

    @cached_property
    def makers(self) -> FrozenMap:
        return FrozenMap({part: maker(kind, offered) for part, (kind, offered) in self.offers.items()})

    @property
    def revisions(self) -> FrozenMap:
        return FrozenMap({part: [kind, o.provider.trial_revision] for part, (kind, o) in self.offers.items()})

    def trial_inputs(self) -> FrozenMap:
        """The inputs of trials, without the keys that only comparisons read."""
        return self.audit.trial_inputs(without_comparisons(self.spec, self._comparisons))

    def compare(
        self, bounds: Sequence[Finding | Series]
    ) -> tuple[list[Finding | Series], list[tuple[Offered, list[Finding]]]]:
        """The bounds with the series of the mechanism's comparisons, and the findings of each comparison."""
        return compare(self.spec, self.facts, bounds, self._comparisons)

    @property
    def _comparisons(self) -> tuple[Offered, ...]:
        return self.offers["mechanism"][1].comparisons

    @property
    def recording(self) -> Any:
        reference = self.offers["backend"][1].provider.recording
        return resolve(reference) if reference else None

    def plan(self) -> Plan:
        """The audit's plan, whose memory and time include the loading of the rows."""
        if self.spec.audit is None:
            return NO_TRIALS
        plan = self.audit.plan(self.spec, self.facts)
        if not plan.chunks:
            return plan
        seconds = plan.seconds + LOADING_SECONDS * self.loading_bytes / LOADING_BYTES
        return dataclasses.replace(plan, seconds=seconds, memory_bytes=plan.memory_bytes + self.loading_bytes)

    @cached_property
    def loading_bytes(self) -> int:
        """Memory in bytes while the rows are loaded, estimated for sources of plugins."""
        estimate = getattr(self.source, "loading_bytes", None)
        with suppress(DataError):  # the facts come from a result, and the files are missing
            if estimate is not None:
                return int(estimate())
        return LOADING_BYTES * (self.facts.records + self.facts.test_records) * max(1, self.facts.features)

    def memory_shortage(self) -> str:
        """Why this machine has too little free memory for the rows and their audit; empty if it has enough."""
        if self.loading_bytes < _UNCHECKED_BYTES:
            return ""
        from dpspec.training.gradients.memory import free_bytes

        needed, free = max(self.loading_bytes, self.plan().memory_bytes), free_bytes("cpu")
        needs = f"the rows and their audit take up to {decimals.size(needed)} of memory"
        return f"{needs}, and {decimals.size(free)} are free: use fewer records or columns" if needed > free else ""


def prepare(spec: Spec, catalog: Catalog, *, recorded: Facts | None = None) -> Prepared:
    """Look up the providers of a spec and check them together; ``recorded``: the facts if data is unavailable."""
    providers = providers_of(spec, catalog)
    mechanism, backend = providers["mechanism"][1], providers["backend"][1]
    source, facts = _described_data(spec, providers["data"][1], recorded)
    capabilities = tuple(sorted(backend.provider.capabilities))
    facts = dataclasses.replace(facts, capabilities=capabilities, initial_weights=None)
    model: ModelFactory | None = None
    if "model" in providers:
        model, facts = model_of(spec, providers["model"][1], facts, catalog, recorded)
    own_parts = [p for p in ("canary", "score", "loss") if p in providers and not is_foreign(providers[p][1])]
    if "loss" in providers and "loss" not in own_parts:
        try:
            loss_of(spec, providers, facts)
        except ModelError as error:
            raise SpecError([model_mismatch(error, ("training", "loss"), spec)]) from None
    audit, constants = audit_of(mechanism), constants_of(backend, spec)
    components = []
    for name, path, document in audit.components(spec):
        try:
            component_spec = from_document(document, catalog, spec.directory)
            components.append(prepare(component_spec, catalog, recorded=recorded))
        except SpecError as error:
            at_component = [
                dataclasses.replace(d, message=f"{name}: {d.message}", path=path, span=None) for d in error.diagnostics
            ]
            raise SpecError([locate(d, spec.origin) for d in at_component]) from None
    if components:
        audit = audit.compose(components)
        constants = min((c.constants for c in components), key=lambda stated: WEAKEST_FIRST.index(stated.status))
    problems = [
        *refusals(spec, facts, source, providers, catalog),
        *audit.check(spec, facts),
        *check_comparisons(spec, facts, mechanism.comparisons),
    ]
    if backend.provider.recording:  # it is refused for every attack, with the alternative
        problems = [problem for problem in problems if problem.code != "missing-capability"]
    return Prepared(
        spec=spec,
        audit=audit,
        source=source,
        facts=facts,
        model=model,
        offers={part: offer for part, offer in providers.items() if part not in own_parts},
        diagnostics=tuple(locate(problem, spec.origin) for problem in problems),
        missing=mechanism.provider.missing,
        constants=constants,
        components=tuple(components),
    )


def _described_data(spec: Spec, offered: Offered, recorded: Facts | None) -> tuple[DataSource, Facts]:
    """The source of the records and its public facts, or the ``recorded`` ones if it cannot be read."""
    try:
        source: DataSource = made(
            offered, offered.provider.source, "its source", spec.data.options, Path(spec.directory)
        )
        try:
            return source, source.facts()
        except DataError:
            if recorded is None:
                raise
            return source, recorded
    except DataError as error:
        raise SpecError([data_unreadable(error, spec)]) from None


def audit_of(offered: Offered) -> Audit:
    return cast(Audit, made(offered, offered.provider.audit, "its audit"))


def prepare_all(specs: Sequence[Spec], catalog: Catalog) -> list[Prepared]:
    """Prepare the specs of one invocation.

    Raises:
        SpecError: With the errors of all specs, also of names that occur twice.
    """
    ready: list[Prepared] = []
    first_of_name: dict[str, Spec] = {}
    errors: list[Diagnostic] = []
    for spec in specs:
        try:
            prepared = prepare(spec, catalog)
        except SpecError as error:
            errors.extend(error.diagnostics)
            continue
        if spec.name in first_of_name:
            first = first_of_name[spec.name].origin.get(("name",))
            where = f", in {first.file}:{first.line}" if first is not None else ""
            diagnostic = Diagnostic(
                code="same-name",
                message=f"another audit of this run is named {spec.name!r} too{where}",
                path=("name",),
                help="the audit's name identifies verdicts: rename one, or run them one by one",
            )
            errors.append(locate(diagnostic, spec.origin))
        first_of_name.setdefault(spec.name, spec)
        ready.append(prepared)
        errors.extend(d for d in prepared.diagnostics if d.severity == "error")
    if errors:
        raise SpecError(errors)
    return ready


def check(spec: Spec, catalog: Catalog) -> tuple[Diagnostic, ...]:
    """Every semantic diagnostic of a spec that its schema accepts. No torch, no rows."""
    try:
        return prepare(spec, catalog).diagnostics
    except SpecError as error:
        return error.diagnostics
