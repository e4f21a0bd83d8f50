"""From a spec to what can run it: its data source, model, backend and audit, and what is wrong with them together.

Nothing here reads rows or imports torch, so that ``validate`` and ``plan`` answer at once; but for a spec that names
initial weights, which are held against the model.

Where a pipeline's constants (divisor, rate, clip norm, schedule) come from, its backend says. A divisor that counts the
records tells who is among them, however much noise there is, and no bound holds then. So what the backend says stands
in every proof: ``false`` and nothing rests on it, nothing said and nobody checked it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from dpspec.contract import (
    Assumption,
    Audit,
    Backend,
    DataError,
    DataSource,
    Diagnostic,
    Facts,
    Finding,
    FrozenMap,
    ModelError,
    ModelFactory,
    Outcome,
    Plan,
    Spec,
    Trainer,
)
from dpspec.contract import Path as SpecPath
from dpspec.contract.audit import NO_TRIALS
from dpspec.contract.catalog import Catalog, Offered
from dpspec.engine.preparing.attacks import limited, offers_of
from dpspec.engine.preparing.checked_providers import audit_of, factory_of, source_of, trainer_of
from dpspec.engine.preparing.initial_weights import chosen_refused, options_of, started
from dpspec.engine.preparing.texts import require_takes_texts, texts_refused
from dpspec.engine.preparing.trial_keys import maker
from dpspec.engine.preparing.users_drawn import users_drawn
from dpspec.errors import PluginError, SpecError
from dpspec.language.reading.tree import locate
from dpspec.language.selections import SELECTION
from dpspec.registry.foreign_code import is_foreign, made, misbehaved, resolve

#: The assumption of findings that a backend's statement is about.
NAME = "data-independent-hyperparameters"

#: What somebody says of their own backend is reported, however sure they are.
_BAD = ("false", "unchecked")
_CAPPED = ("by-construction", "not-rejected", "declared")


def constants_of(offered: Offered, spec: Spec) -> Assumption:
    """What the backend that a spec names says of its constants. Raises ``PluginError`` where that cannot be asked."""
    backend: Backend = offered.provider
    said = backend.constants
    if not said:
        text = f"backend {backend.kind!r} does not say where its divisor, rate and clip norm come from"
        return Assumption(name=NAME, status="unchecked", text=text)
    if isinstance(said, str):
        named = resolve(said)
        said = named if isinstance(named, Assumption) else made(offered, said, "its constants", spec)
    if not isinstance(said, Assumption):
        raise misbehaved(offered, f"its constants are a {type(said).__name__}, not an Assumption")
    reported = offered.distribution != "dpspec" and said.status in _CAPPED
    return replace(said, name=NAME, status="reported") if reported else replace(said, name=NAME)


def resting_on(constants: Assumption, outcomes: Iterable[Outcome], spec: Spec) -> Iterator[Outcome]:
    """The outcomes, with what is known of the constants in every finding that takes them for public.

    Of a model that is trained all upper bounds do, whether they name it or not; of other mechanisms those that say so.
    """
    for outcome in outcomes:
        yield _with(constants, outcome, trained=spec.model is not None) if isinstance(outcome, Finding) else outcome


def _with(constants: Assumption, finding: Finding, *, trained: bool) -> Finding:
    named = any(a.name == NAME for a in finding.assumptions)
    if named:
        held = tuple(_known(constants, a) if a.name == NAME else a for a in finding.assumptions)
        return replace(finding, assumptions=held)
    if constants.status in _BAD and trained and finding.bound == "upper" and finding.scope.pipeline == "declared":
        return replace(finding, assumptions=(*finding.assumptions, constants))
    return finding


def _known(constants: Assumption, own: Assumption) -> Assumption:
    """Where the backend's words contradict the finding's, they stand alone."""
    if own.status == "false":
        return own
    words = [own.text, constants.text] if constants.status not in _BAD else [constants.text]
    return replace(own, status=constants.status, text="; ".join(filter(None, words)), test=constants.test)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A spec with the objects that its kinds name.

    constants: what the backend says of where its own come from. missing: whether the mechanism takes records without
    values.
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

    @cached_property
    def makers(self) -> FrozenMap:
        """Who makes its trials, by the part that each has in it, with the code of those that are not dpspec's own."""
        return FrozenMap({part: maker(kind, offered) for part, (kind, offered) in self.offers.items()})

    @property
    def revisions(self) -> FrozenMap:
        """The kind and trial revision of every part."""
        return FrozenMap({part: [kind, o.provider.trial_revision] for part, (kind, o) in self.offers.items()})

    def plan(self) -> Plan:
        """The audit's plan; an empty one for a spec that is bounded only."""
        if self.spec.audit is None:
            return NO_TRIALS
        return self.audit.plan(self.spec, self.facts)

    def trainer(self, catalog: Catalog) -> Trainer:
        """A fresh trainer of the backend that the spec names."""
        backend = _find(catalog.backends, self.spec.training.kind, "backend")
        return trainer_of(backend)


def prepare(spec: Spec, catalog: Catalog, *, recorded: Facts | None = None) -> Prepared:
    """Look everything up and check it together.

    recorded: the facts that a result recorded, used where the data itself is no longer at hand.

    ``diagnostics`` of the answer holds what is wrong; only what makes further work impossible is raised:
    ``SpecError`` when data or model cannot be described at all, ``PluginError`` when a kind is not installed.
    """
    mechanism = _find(catalog.mechanisms, spec.mechanism.kind, "mechanism")
    dataset = _find(catalog.datasets, spec.data.kind, "data")
    backend = _find(catalog.backends, spec.training.kind, "backend")
    offers = {
        "mechanism": (spec.mechanism.kind, mechanism),
        "data": (spec.data.kind, dataset),
        "backend": (spec.training.kind, backend),
    }
    try:
        source = source_of(dataset, spec.data.options, Path(spec.directory))
        facts = _facts(source, recorded)
    except DataError as error:
        raise SpecError([data_unreadable(error, spec)]) from None
    capabilities = tuple(sorted(backend.provider.capabilities))
    facts = dataclasses.replace(facts, capabilities=capabilities, initial_weights=None)
    model: ModelFactory | None = None
    if spec.model is not None:
        offered = _find(catalog.models, spec.model.kind, "model")
        offers["model"] = (spec.model.kind, offered)
        try:
            require_takes_texts(offered, facts)
            model = factory_of(offered, options_of(spec), facts)
            facts = dataclasses.replace(facts, parameters=model.parameters())
        except ValueError as error:
            raise SpecError([_mismatch(error, ("model",), spec)]) from None
        try:
            model, digest = started(spec, model, recorded)
            facts = dataclasses.replace(facts, initial_weights=digest)
        except DataError as error:
            raise SpecError([data_unreadable(error, spec)]) from None
        except ValueError as error:
            raise SpecError([_mismatch(error, ("model", "initial", "path"), spec)]) from None
    offers |= {part: each for part, each in offers_of(spec, catalog).items() if is_foreign(each[1])}
    audit, constants = audit_of(mechanism), constants_of(backend, spec)
    if spec.mechanism.kind == SELECTION:
        from dpspec.engine.selection.audit import with_cells

        audit = with_cells(spec, catalog, lambda cell: prepare(cell, catalog, recorded=recorded))
        constants = audit.constants
    problems = [
        *_missing(spec, mechanism),
        *_other_unit(spec, mechanism),
        *_other_access(spec, mechanism),
        *_too_many(spec, facts),
    ]
    problems += [*_drops_by_user(spec), *users_drawn(spec, facts, backend), *_remarks(source)]
    problems += [*texts_refused(spec, facts, mechanism), *_unrecorded(spec), *chosen_refused(spec, mechanism)]
    problems += [*limited(spec, facts, catalog), *audit.check(spec, facts)]
    diagnostics = tuple(locate(d, spec.origin) for d in problems)
    return Prepared(
        spec=spec,
        audit=audit,
        source=source,
        facts=facts,
        model=model,
        offers=offers,
        diagnostics=diagnostics,
        missing=mechanism.provider.missing,
        constants=constants,
    )


def check(spec: Spec, catalog: Catalog) -> tuple[Diagnostic, ...]:
    """Every semantic diagnostic of a spec that its schema accepts, located. No torch, no rows."""
    try:
        return prepare(spec, catalog).diagnostics
    except SpecError as error:
        return error.diagnostics


def plan(spec: Spec, catalog: Catalog) -> Plan:
    """What the spec's trials cost and can show. Raises ``SpecError`` where the spec cannot be audited."""
    return require_auditable(prepare(spec, catalog)).plan()


def require_auditable(prepared: Prepared) -> Prepared:
    """The same; raises ``SpecError`` with the errors that checking everything together found."""
    errors = [d for d in prepared.diagnostics if d.severity == "error"]
    if errors:
        raise SpecError(errors)
    return prepared


def _mismatch(error: ValueError, place: SpecPath, spec: Spec) -> Diagnostic:
    return locate(Diagnostic(code="model-mismatch", message=str(error), path=place), spec.origin)


def data_unreadable(error: DataError, spec: Spec) -> Diagnostic:
    """What a data error says, at the key of ``data`` that is at fault, or where the file is named.

    A key with points in it is a place in the spec: ``audit.scores.path``.
    """
    key = error.key or ("path" if "path" in spec.data.options else "")
    path = tuple(key.split(".")) if "." in key else ("data", key) if key else ("data",)
    return locate(Diagnostic(code="data-unreadable", message=str(error), path=path), spec.origin)


def raise_located(error: BaseException, spec: Spec) -> NoReturn:
    """Raise what a trial raised: as ``SpecError`` where the data or the model is why, anything else as it is."""
    if isinstance(error, DataError):
        raise SpecError([data_unreadable(error, spec)]) from error
    if isinstance(error, ModelError):
        raise SpecError([_mismatch(error, ("model",), spec)]) from error
    raise error


def out_of_range(error: ArithmeticError, spec: Spec) -> Diagnostic:
    """What to tell where a mechanism's numbers are too large or too small to compute bounds with."""
    what = error.args[-1] if error.args else type(error).__name__
    message = f"bounds cannot be computed in floating point: {what}"
    hint = "some number of the mechanism, or of its rate, noise or limits, is far too large or too small"
    return locate(Diagnostic(code="out-of-range", message=message, path=("mechanism",), help=hint), spec.origin)


def _unrecorded(spec: Spec) -> list[Diagnostic]:
    """What cannot be said of the recorded run that a spec names, where it names one."""
    if spec.training.kind != "recorded":
        return []  # numpy is not asked for before it is needed
    from dpspec.engine.recorded.pipeline.declared_run import recording_refusals

    return list(recording_refusals(spec))


def _other_unit(spec: Spec, mechanism: Offered) -> Iterator[Diagnostic]:
    """A claim about persons would have no number on either side where all of them speak of records."""
    unit, units = spec.threat_model.unit, sorted(mechanism.provider.units)
    if unit not in units:
        yield Diagnostic(
            code="unsupported",
            message=f"the bounds of {spec.mechanism.kind!r} hold for one {' or '.join(units)}, not for one {unit!r}",
            path=("threat_model", "unit"),
            help="where each of them has one record, leave unit out; for several records each, set group_size",
        )


def _other_access(spec: Spec, mechanism: Offered) -> Iterator[Diagnostic]:
    """Bounds that nobody proved for so much, and attacks that would not look at it."""
    access, accesses = spec.threat_model.access, sorted(mechanism.provider.accesses)
    held = f"the bounds of {spec.mechanism.kind!r} hold for access {' or '.join(accesses)}"
    if access not in accesses:
        yield Diagnostic(
            code="unsupported",
            message=f"{held}, not for {access!r}",
            path=("threat_model", "access"),
        )


def _remarks(source: DataSource) -> list[Diagnostic]:
    """What dpspec's own sources say of data that is at hand, besides its facts."""
    try:
        return list(getattr(source, "remarks", tuple)())
    except DataError:
        return []  # the facts are those that a result recorded, or the error is told with them


def _drops_by_user(spec: Spec) -> Iterator[Diagnostic]:
    """Of a user with too many records, one record less brings another one in: records are no neighbours then."""
    if spec.threat_model.unit == "record" and spec.data.get("max_records_per_user") is not None:
        yield Diagnostic(
            code="unsupported",
            message="max_records_per_user drops records of users with more, and one record less of such a user brings "
            "another one in: no bound for one record holds",
            path=("data", "max_records_per_user"),
            help="claim it of users, threat_model: {unit: user}, or drop records beforehand and write records_per_user",
        )


def _too_many(spec: Spec, facts: Facts) -> Iterator[Diagnostic]:
    """Claims about larger data sets than the declared one say nothing of it, and no attack on it tells against them."""
    for i, claim in enumerate(spec.claims):
        if claim.kind != "metric" and claim.min_records > facts.records:
            own = claim.min_records != spec.threat_model.min_records
            yield Diagnostic(
                code="bad-value",
                message=f"claim {claim.id!r} is about data sets of at least {claim.min_records} records, and the "
                f"declared one has {facts.records}",
                path=("claims", i, "min_records") if own else ("threat_model", "min_records"),
                help=f"claim at most {facts.records}, so that the claim speaks of the data that is trained on",
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
