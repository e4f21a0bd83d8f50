"""Combinations of a spec's parts that core refuses: units, access, sizes, sampling, users and initial weights.

A mechanism adds its own refusals by ``Audit.check``.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import comb
from typing import Any

from dpspec import decimals
from dpspec.contract import DataError, DataSource, Facts, Sampling, in_phase
from dpspec.contract import Path as SpecPath
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.spec import Spec, records_per_user
from dpspec.engine.preparing.model import INITIAL, chosen_weights
from dpspec.engine.preparing.providers import canary_block, canary_options, kinds_with
from dpspec.errors import Diagnostic
from dpspec.kit.findings import bad_value, unsupported
from dpspec.registry.loader import made, resolve

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
        measured = str(claim.options.get("name")) if claim.kind == "metric" and spec.audit is not None else ""
        metrics = mechanism.provider.metrics
        if measured and metrics is not None and measured not in metrics:
            yield unsupported(
                f"claim {claim.id!r} is about the metric {measured!r}, which mechanism {kind!r} does not measure",
                ("claims", i, "name"),
                f"measured are: {', '.join(sorted(metrics))}",
            )
        quantity = measured.partition("-")[0]
        if quantity in ("accuracy", "loss") and not facts.real_target and not facts.test_records:
            yield unsupported(
                f"claim {claim.id!r} is about the {quantity} on test records, and the data has none",
                ("claims", i, "name"),
                "add split: {test: 0.2} to data, which holds out a fifth of the records, or remove the claim",
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
                f"use one of {', '.join(sorted(schemes))}, or another backend" if schemes else "use another backend",
            )
        rate = phase.sampling.rate if "sampling" in phase else None
        if rate is not None and rate < LEAST_DRAWN_RATE and not backend.provider.recording:
            yield bad_value(
                f"no sampler draws records with probability {rate:g}: training needs a rate of at least "
                f"{decimals.upper(LEAST_DRAWN_RATE, digits=2)}",
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
    for offered, family in ((mechanism, catalog.mechanisms), (backend, catalog.backends)) if "loss" in offers else ():
        if not offered.provider.losses:
            yield unsupported(
                f"{offered.provider.kind!r} does not train with training.loss",
                ("training", "loss"),
                f"remove loss, or use {kinds_with(family, 'losses')}",
            )
    yield from _of_targets(spec, facts, offers, catalog)
    if "canary" in offers:
        yield from _beyond_limit(spec, facts, offers["canary"][1])


def _of_targets(
    spec: Spec, facts: Facts, offers: Mapping[str, tuple[str, Offered]], catalog: Catalog
) -> Iterator[Diagnostic]:
    """Refusals of losses for other targets, and of mechanisms, canaries, weights and metrics that need classes."""
    target, loss = "real" if facts.real_target else "class", offers.get("loss")
    if spec.audit is None or (loss is None and not facts.real_target):
        return
    if loss is None or target not in loss[1].provider.targets:
        fitting = sorted(name for name, offered in catalog.losses.items() if target in offered.provider.targets)
        targets = "real-valued targets" if facts.real_target else "classes"
        yield unsupported(
            f"{'cross-entropy, the default,' if loss is None else loss[0]} is not a loss for {targets}",
            ("training", "loss"),
            f"write training: {{loss: NAME}}, with NAME of {', '.join(fitting)}",
        )
    if not facts.real_target:
        return
    if not offers["mechanism"][1].provider.real_targets:
        yield unsupported(
            f"{spec.mechanism.kind!r} trains on classes, and {spec.data.kind!r} has real-valued targets",
            ("mechanism", "kind"),
            f"use {kinds_with(catalog.mechanisms, 'real_targets')}, or remove audit",
        )
    if canary_block(spec).get("space") == "input":
        yield unsupported(
            "canaries that are records, and their scores, need classes",
            ("audit", "canary", "space"),
            "write space: gradient",
        )
    if chosen_weights(spec):
        yield unsupported("weights that the adversary chose need classes", ("model", INITIAL), "remove initial")
    for i, claim in enumerate(spec.claims):
        if claim.kind == "metric" and claim.options.get("name") == "accuracy":
            yield unsupported("real-valued targets have no accuracy", ("claims", i, "name"), "remove the claim")


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


def _beyond_limit(spec: Spec, facts: Facts, offered: Offered) -> Iterator[Diagnostic]:
    reference = offered.provider.limit
    limit = made(offered, reference, "limit()", facts, canary_options(spec)) if reference else None
    if limit is None:
        return
    most, reason = limit
    sizes = len(set(spec.threat_model.group_size))
    count = int(canary_block(spec).get("count", sizes)) // sizes * sizes
    if count > most:
        yield bad_value(f"count must be at most {most}, got {count}: {reason}", ("audit", "canary", "count"))
