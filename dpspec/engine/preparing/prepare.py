"""From a spec to its providers: data source, model, backend and audit, with their diagnostics.

Preparing reads no rows and does not import torch, so that ``validate`` and ``plan`` are fast. Initial weights are the
exception: they are compared with the model.

Every proof of a spec with ``model.initial`` assumes that the weights of the file do not depend on the private records.
``worst-case`` is for attacks: Theorem R5 of ``docs/explanation/proofs/recorded-runs.md``.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from math import comb
from pathlib import Path
from typing import Any, cast

from dpspec.contract import Assumption, Backend, DataError, DataSource, Facts, ModelFactory, Sampling, in_phase
from dpspec.contract import Path as SpecPath
from dpspec.contract.audit import NO_TRIALS, Audit, Plan
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.frozen import FrozenMap
from dpspec.contract.spec import Spec, records_per_user
from dpspec.data.source import LOADING_BYTES
from dpspec.engine.preparing.trial_keys import maker
from dpspec.errors import Diagnostic, PluginError, SpecError
from dpspec.kit.findings import bad_value, unsupported
from dpspec.language.load import from_document
from dpspec.language.yaml_source import locate
from dpspec.models.weights_file import FromFile
from dpspec.registry.loader import CORE_KEYS, is_foreign, made, misbehaved, resolve

#: The key of a model block that core reads and removes from the factory's options.
INITIAL = "initial"

#: Its value if the adversary chooses.
WORST_CASE = "worst-case"

#: The assumption of findings that a backend's statement is about.
CONSTANTS = "data-independent-hyperparameters"

#: Statuses of a plugin's statement about itself that become ``reported``.
_CAPPED = ("by-construction", "not-rejected", "declared")

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
    components: "tuple[Prepared, ...]" = ()

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
        """The audit's plan, whose memory includes the loading of the rows."""
        if self.spec.audit is None:
            return NO_TRIALS
        plan = self.audit.plan(self.spec, self.facts)
        return dataclasses.replace(plan, memory_bytes=plan.memory_bytes + self.loading_bytes) if plan.chunks else plan

    @cached_property
    def loading_bytes(self) -> int:
        """Memory in bytes while the rows are loaded, estimated for sources of plugins."""
        estimate = getattr(self.source, "loading_bytes", None)
        with suppress(DataError):  # the facts come from a result, and the files are missing
            if estimate is not None:
                return int(estimate())
        return LOADING_BYTES * (self.facts.records + self.facts.test_records) * max(1, self.facts.features)


def prepare(spec: Spec, catalog: Catalog, *, recorded: Facts | None = None) -> Prepared:
    """Look up the providers of a spec and check them together; ``recorded``: the facts if data is unavailable."""
    offers = {
        "mechanism": (spec.mechanism.kind, find(catalog.mechanisms, spec.mechanism.kind, "mechanism kind")),
        "data": (spec.data.kind, find(catalog.datasets, spec.data.kind, "data kind")),
        "backend": (spec.training.kind, find(catalog.backends, spec.training.kind, "backend kind")),
    }
    mechanism, dataset, backend = (offered for _, offered in offers.values())
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
            model_options = {key: value for key, value in spec.model.options.items() if key != INITIAL}
            factory: ModelFactory = made(
                offered, offered.provider.factory, "its factory", FrozenMap(model_options), facts
            )
            if is_foreign(offered):
                factory = CountedModel(factory, offered)
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
    offers |= {part: offer for part, offer in attack.items() if is_foreign(offer[1])}
    audit, constants = audit_of(mechanism), constants_of(backend, spec)
    components = _components(audit, spec, catalog, recorded)
    if components:
        audit = audit.compose(components)
        constants = min(
            (component.constants for component in components), key=lambda stated: _WEAKEST.index(stated.status)
        )
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
    return cast(Audit, made(offered, offered.provider.audit, "its audit"))


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


class CountedModel:
    """A plugin's :class:`~dpspec.contract.ModelFactory` whose modules must have the declared number of parameters.

    Bounds, canaries and memory depend on this number, which a spec's check reads before any module is built.
    """

    def __init__(self, factory: ModelFactory, offered: Offered) -> None:
        self._factory, self._offered = factory, offered

    def parameters(self) -> int:
        return self._factory.parameters()

    def build(self, seed: int) -> Any:
        module = self._factory.build(seed)
        declared, trainable = self.parameters(), sum(p.numel() for p in module.parameters() if p.requires_grad)
        if trainable != declared:
            how = f"parameters() returns {declared}, and the module of build() has {trainable} trainable parameters"
            raise misbehaved(self._offered, how)
        return module


def data_unreadable(error: DataError, spec: Spec) -> Diagnostic:
    """The diagnostic of a data error, at the responsible key of ``data`` or at a dotted place such as
    ``audit.scores.path``."""
    key = error.key or ("path" if "path" in spec.data.options else "")
    path = tuple(key.split(".")) if "." in key else ("data", key) if key else ("data",)
    diagnostic = Diagnostic(code="data-unreadable", message=str(error), path=path, private=error.private)
    return locate(diagnostic, spec.origin)


def out_of_range(error: ArithmeticError, spec: Spec) -> Diagnostic:
    reason = error.args[-1] if error.args else type(error).__name__
    message = f"bounds cannot be computed in floating point: {reason}"
    hint = "a number of the mechanism, or of its rate, noise or limits, is far too large or too small"
    return locate(Diagnostic(code="out-of-range", message=message, path=("mechanism",), help=hint), spec.origin)


def model_mismatch(error: ValueError, path: SpecPath, spec: Spec) -> Diagnostic:
    return locate(Diagnostic(code="model-mismatch", message=str(error), path=path), spec.origin)


def offers_of(spec: Spec, catalog: Catalog) -> dict[str, tuple[str, Offered]]:
    audit, attack_offers = spec.audit, {}
    if audit is not None and audit.canary is not None:
        attack_offers["canary"] = audit.canary.kind, find(catalog.canaries, audit.canary.kind, "canary")
    if audit is not None and audit.score is not None:
        attack_offers["score"] = audit.score.kind, find(catalog.scores, audit.score.kind, "score")
    return attack_offers


def find(offers: Mapping[str, Offered], kind: str, kind_of_provider: str) -> Offered:
    if kind not in offers:
        raise PluginError(f"no installed plugin offers {kind_of_provider} {kind!r} (see `dpspec plugins`)")
    return offers[kind]


def _beyond_limit(spec: Spec, facts: Facts, offered: Offered) -> Iterator[Diagnostic]:
    reference = offered.provider.limit
    limit = made(offered, reference, "limit()", facts, options_of(spec)) if reference else None
    if limit is None:
        return
    most, reason = limit
    sizes = len(set(spec.threat_model.group_size))
    count = int(_block(spec).get("count", sizes)) // sizes * sizes
    if count > most:
        yield bad_value(f"count must be at most {most}, got {count}: {reason}", ("audit", "canary", "count"))


def options_of(spec: Spec) -> FrozenMap:
    return FrozenMap({key: value for key, value in _block(spec).items() if key not in CORE_KEYS["canary"]})


def _block(spec: Spec) -> Mapping[str, Any]:
    return (spec.audit.options.get("canary") if spec.audit is not None else None) or {}


def with_initial_weights(spec: Spec, factory: ModelFactory, recorded: Facts | None) -> tuple[ModelFactory, str | None]:
    """The factory whose models start from the spec's file, and its digest, or the digest in ``recorded`` facts."""
    path = weights_path(spec)
    if path is None:
        return factory, None
    try:
        from_file = FromFile(factory, path)
    except DataError:
        if recorded is None or recorded.initial_weights is None:
            raise
        return factory, recorded.initial_weights
    return from_file, from_file.digest


def weights_path(spec: Spec) -> Path | None:
    initial = None if spec.model is None else spec.model.get(INITIAL)
    return None if initial is None or chosen_weights(spec) else Path(spec.directory) / str(initial["path"])


def chosen_weights(spec: Spec) -> bool:
    return spec.model is not None and spec.model.get(INITIAL) == WORST_CASE


def constants_of(offered: Offered, spec: Spec) -> Assumption:
    backend: Backend = offered.provider
    stated = backend.constants
    if not stated:
        text = f"backend {backend.kind!r} does not say where its divisor, rate and clip norm come from"
        return Assumption(name=CONSTANTS, status="unchecked", text=text)
    if isinstance(stated, str):
        named = resolve(stated)
        stated = named if isinstance(named, Assumption) else made(offered, stated, "its constants", spec)
    if not isinstance(stated, Assumption):
        raise misbehaved(offered, f"its constants are a {type(stated).__name__}, not an Assumption")
    capped = offered.distribution != "dpspec" and stated.status in _CAPPED
    return dataclasses.replace(stated, name=CONSTANTS, status="reported" if capped else stated.status)


#: Granularity of the uniform numbers of samplers, which draw no event of a smaller probability.
LEAST_DRAWN_RATE = 2.0**-53

#: Maximum number of choices of a user's records over which an expected contribution is averaged.
MOST_CHOICES = 1000


def refusals(
    spec: Spec, facts: Facts, source: DataSource, offers: Mapping[str, tuple[str, Offered]], catalog: Catalog
) -> Iterator[Diagnostic]:
    (kind, mechanism), (_, backend) = offers["mechanism"], offers["backend"]
    if spec.data.get("missing") and not mechanism.provider.missing:
        yield unsupported(
            f"{kind!r} takes no records with missing values",
            ("data", "missing"),
            "remove missing and write a public constant into the empty cells beforehand, which costs no privacy, or "
            "use a mechanism that imputes and accounts for it",
        )
    unit, units = spec.threat_model.unit, sorted(mechanism.provider.units)
    if unit not in units:
        yield unsupported(
            f"the bounds of {kind!r} hold for one {' or '.join(units)}, not for one {unit!r}",
            ("threat_model", "unit"),
            "if each has one record, remove unit; for several records each, set group_size",
        )
    access, accesses = spec.threat_model.access, sorted(mechanism.provider.accesses)
    if access not in accesses:
        accepted = f"the bounds of {kind!r} hold for access {' or '.join(accesses)}"
        yield unsupported(f"{accepted}, not for {access!r}", ("threat_model", "access"))
    for i, claim in enumerate(spec.claims):
        if claim.kind != "metric" and claim.min_records > facts.records:
            set_by_claim = claim.min_records != spec.threat_model.min_records
            yield bad_value(
                f"claim {claim.id!r} covers datasets of at least {claim.min_records} records, and the declared "
                f"one has {facts.records}",
                ("claims", i, "min_records") if set_by_claim else ("threat_model", "min_records"),
                f"claim at most {facts.records}, so that the claim covers the declared dataset",
            )
        if float(claim.options.get("delta") or 0.0) * facts.records >= 1.0:
            yield Diagnostic(
                code="large-delta",
                message=f"delta of claim {claim.id!r} is not below 1 / {facts.records} records",
                path=("claims", i, "delta"),
                help="a mechanism that publishes one random record would satisfy such a claim; choose delta far below "
                f"{1.0 / facts.records:.3g}",
                severity="warning",
            )
    if spec.threat_model.unit == "record" and spec.data.get("max_records_per_user") is not None:
        yield unsupported(
            "max_records_per_user drops records of users with more; removing one record of such a user adds another "
            "one, so no bound for one record holds",
            ("data", "max_records_per_user"),
            "claim it for users, threat_model: {unit: user}, or drop records beforehand and write records_per_user",
        )
    yield from _of_users(spec, facts, backend, catalog)
    schemes = backend.provider.schemes
    for i, phase in enumerate(spec.phases if spec.audit is not None else ()):
        if schemes is not None and "sampling" in phase and phase.sampling.scheme not in schemes:
            yield unsupported(
                f"backend {offers['backend'][0]!r} does not support the sampling scheme {phase.sampling.scheme!r}",
                in_phase(spec, i, "sampling", "scheme"),
                f"use one of {', '.join(sorted(schemes))}, or another backend",
            )
        rate = phase.sampling.rate if "sampling" in phase else None
        if rate is not None and rate < LEAST_DRAWN_RATE and not backend.provider.recording:
            yield bad_value(
                f"no sampler draws records with probability {rate:g}: training needs a rate of at least "
                f"{LEAST_DRAWN_RATE:.2g}",
                in_phase(spec, i, "sampling", "rate"),
                "increase the rate, or remove audit",
            )
    with suppress(DataError):  # the facts come from a result, or preparing has reported the error
        yield from getattr(source, "remarks", tuple)()
    if facts.vocabulary is not None and not mechanism.provider.tokens:
        yield unsupported(
            f"{kind!r} computes with features, and {spec.data.kind!r} gives ids of tokens",
            ("data", "kind"),
            f"use a mechanism that takes texts: {kinds_with(catalog.mechanisms, 'tokens')}",
        )
    if backend.provider.recording:
        comparable = sorted(
            name for name, offered_mechanism in catalog.mechanisms.items() if offered_mechanism.provider.recordable
        )
        reader: Any = resolve(backend.provider.recording)
        yield from reader.check(spec, comparable)
    if chosen_weights(spec):
        yield from _of_chosen_weights(spec, kind, mechanism, backend, catalog)


def _of_chosen_weights(
    spec: Spec, kind: str, mechanism: Offered, backend: Offered, catalog: Catalog
) -> Iterator[Diagnostic]:
    path = ("model", INITIAL)
    if not mechanism.provider.chosen_weights:
        yield unsupported(
            f"the bounds of {kind!r} do not hold for weights that an adversary chose",
            path,
            f"its bounds assume the model's own initial weights; for chosen ones, use a mechanism of "
            f"{kinds_with(catalog.mechanisms, 'chosen_weights')}",
        )
    if backend.provider.recording:
        yield unsupported("an adversary cannot choose the weights of a recorded run", path, "remove initial")
    for i, claim in enumerate(spec.claims):
        if claim.kind == "metric":
            yield unsupported(
                f"claim {claim.id!r} would be measured on models whose initial weights were fitted to the records "
                "without privacy",
                ("claims", i),
                "claim metrics in a spec without model.initial: worst-case",
            )


def _of_users(spec: Spec, facts: Facts, backend: Offered, catalog: Catalog) -> Iterator[Diagnostic]:
    drawn = [phase.sampling if "sampling" in phase else None for phase in spec.phases]
    first = next((i for i, sampling in enumerate(drawn) if sampling is not None and sampling.of_users), None)
    if first is None:
        return
    unit_path = in_phase(spec, first, "sampling", "unit")
    if spec.threat_model.unit != "user":
        yield unsupported(
            "users are drawn, so that bounds hold for users: removing one record changes the contribution of its user "
            "by up to twice the clip norm",
            unit_path,
            "threat_model: {unit: user}, or remove unit and records_per_user to draw records",
        )
    if len({(sampling.unit, sampling.records_per_user) for sampling in drawn if sampling is not None}) > 1:
        yield unsupported(
            "phases that draw records, or another number of a user's records, cannot follow phases that draw users",
            unit_path,
            "write unit and records_per_user once, in mechanism.sampling",
        )
    for i, sampling in enumerate(drawn):
        if sampling is not None and sampling.of_users and not sampling.is_poisson:
            yield unsupported(
                f"users are drawn one by one, each independently, and not in {sampling.scheme} batches",
                in_phase(spec, i, "sampling", "scheme"),
                "scheme: poisson, with the rate of one user; rate: 1 draws all users",
            )
    if spec.audit is not None:
        yield from _untrainable(spec, facts, backend, spec.phases[first].sampling, unit_path, catalog)


def _untrainable(
    spec: Spec, facts: Facts, backend: Offered, sampling: Sampling, unit_path: SpecPath, catalog: Catalog
) -> Iterator[Diagnostic]:
    if facts.users is None and facts.digest is not None:
        yield unsupported(
            "users are drawn, and nothing says whose the records are",
            unit_path,
            "data: {user: COLUMN} of a table (kind: csv or parquet), or remove audit",
        )
    if not backend.provider.users:
        yield Diagnostic(
            code="missing-capability",
            message=f"backend {spec.training.kind!r} draws records, not users",
            path=("training", "backend"),
            help=f"backend: {kinds_with(catalog.backends, 'users')}, or remove audit",
        )
    if spec.audit is not None and (spec.audit.options.get("canary") or {}).get("space") == "input":
        yield unsupported(
            "canary users have a gradient; users of canary records are not supported",
            ("audit", "canary", "space"),
            "space: gradient",
        )
    bound = records_per_user(spec.data.options)
    if bound is None:
        yield unsupported(
            "rows are laid out user by user, and nothing limits the number of records of one",
            ("data",),
            "records_per_user: 8, or max_records_per_user: 8 to drop further records",
        )
        return
    size = min(sampling.records_per_user or 1, bound)
    if 1 < size < bound and (bound > MOST_CHOICES or comb(bound, size) > MOST_CHOICES):
        yield unsupported(
            f"{size} of {bound} records can be chosen in more than {MOST_CHOICES} ways, and the expected contribution "
            "of a user is a mean over all choices",
            unit_path[:-1],
            f"records_per_user: 1, or {bound} to average all; or fewer records of each user in data",
        )


def kinds_with(offers: Mapping[str, Offered], field: str) -> str:
    return ", ".join(sorted(kind for kind, offered in offers.items() if getattr(offered.provider, field)))
