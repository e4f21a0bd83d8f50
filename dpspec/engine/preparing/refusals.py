"""Specs that the schema accepts and the chosen providers do not support, with the place and the fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import comb
from typing import Any

from dpspec.contract import DataError, DataSource, Diagnostic, Facts, Path, Sampling, Spec, in_phase
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.spec import records_per_user
from dpspec.engine.preparing.outcome_assumptions import INITIAL, chosen_weights
from dpspec.registry.foreign_code import resolve

#: Maximum number of choices of a user's records over which an expected contribution is averaged.
MOST_CHOICES = 1000


def refusals(
    spec: Spec, facts: Facts, source: DataSource, offers: Mapping[str, tuple[str, Offered]], catalog: Catalog
) -> Iterator[Diagnostic]:
    (kind, mechanism), (_, backend) = offers["mechanism"], offers["backend"]
    if spec.data.get("missing") and not mechanism.provider.missing:
        yield _unsupported(
            f"{kind!r} takes no records with missing values",
            ("data", "missing"),
            "remove missing and write a public constant into the empty cells beforehand, which costs no privacy, or "
            "use a mechanism that imputes and accounts for it",
        )
    unit, units = spec.threat_model.unit, sorted(mechanism.provider.units)
    if unit not in units:
        yield _unsupported(
            f"the bounds of {kind!r} hold for one {' or '.join(units)}, not for one {unit!r}",
            ("threat_model", "unit"),
            "if each has one record, remove unit; for several records each, set group_size",
        )
    access, accesses = spec.threat_model.access, sorted(mechanism.provider.accesses)
    if access not in accesses:
        held = f"the bounds of {kind!r} hold for access {' or '.join(accesses)}"
        yield Diagnostic(code="unsupported", message=f"{held}, not for {access!r}", path=("threat_model", "access"))
    for i, claim in enumerate(spec.claims):
        if claim.kind != "metric" and claim.min_records > facts.records:
            own = claim.min_records != spec.threat_model.min_records
            yield Diagnostic(
                code="bad-value",
                message=f"claim {claim.id!r} covers datasets of at least {claim.min_records} records, and the declared "
                f"one has {facts.records}",
                path=("claims", i, "min_records") if own else ("threat_model", "min_records"),
                help=f"claim at most {facts.records}, so that the claim covers the declared dataset",
            )
    if spec.threat_model.unit == "record" and spec.data.get("max_records_per_user") is not None:
        yield _unsupported(
            "max_records_per_user drops records of users with more; removing one record of such a user adds another "
            "one, so no bound for one record holds",
            ("data", "max_records_per_user"),
            "claim it for users, threat_model: {unit: user}, or drop records beforehand and write records_per_user",
        )
    yield from _of_users(spec, facts, backend, catalog)
    with suppress(DataError):  # the facts come from a result, or preparing has reported the error
        yield from getattr(source, "remarks", tuple)()
    if facts.vocabulary is not None and not mechanism.provider.tokens:
        yield _unsupported(
            f"{kind!r} computes with features, and {spec.data.kind!r} gives ids of tokens",
            ("data", "kind"),
            f"use a mechanism that takes texts: {kinds_with(catalog.mechanisms, 'tokens')}",
        )
    if backend.provider.recording:
        comparable = sorted(name for name, each in catalog.mechanisms.items() if each.provider.recordable)
        reader: Any = resolve(backend.provider.recording)
        yield from reader.check(spec, comparable)
    if chosen_weights(spec):
        yield from _of_chosen_weights(spec, kind, mechanism, backend, catalog)


def _of_chosen_weights(
    spec: Spec, kind: str, mechanism: Offered, backend: Offered, catalog: Catalog
) -> Iterator[Diagnostic]:
    path = ("model", INITIAL)
    if not mechanism.provider.chosen_weights:
        yield _unsupported(
            f"the bounds of {kind!r} do not hold for weights that an adversary chose",
            path,
            f"its bounds assume the model's own initial weights; for chosen ones, use a mechanism of "
            f"{kinds_with(catalog.mechanisms, 'chosen_weights')}",
        )
    if backend.provider.recording:
        yield _unsupported("an adversary cannot choose the weights of a recorded run", path, "remove initial")
    for i, claim in enumerate(spec.claims):
        if claim.kind == "metric":
            yield _unsupported(
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
    place = in_phase(spec, first, "sampling", "unit")
    if spec.threat_model.unit != "user":
        yield _unsupported(
            "users are drawn, so that bounds hold for users: removing one record changes the contribution of its user "
            "by up to twice the clip norm",
            place,
            "threat_model: {unit: user}, or remove unit and records_per_user to draw records",
        )
    if len({(sampling.unit, sampling.records_per_user) for sampling in drawn if sampling is not None}) > 1:
        yield _unsupported(
            "phases that draw records, or another number of a user's records, cannot follow phases that draw users",
            place,
            "write unit and records_per_user once, in mechanism.sampling",
        )
    for i, sampling in enumerate(drawn):
        if sampling is not None and sampling.of_users and not sampling.is_poisson:
            yield _unsupported(
                f"users are drawn one by one, each independently, and not in {sampling.scheme} batches",
                in_phase(spec, i, "sampling", "scheme"),
                "scheme: poisson, with the rate of one user; rate: 1 draws all users",
            )
    if spec.audit is not None:
        yield from _untrainable(spec, facts, backend, spec.phases[first].sampling, place, catalog)


def _untrainable(
    spec: Spec, facts: Facts, backend: Offered, sampling: Sampling, place: Path, catalog: Catalog
) -> Iterator[Diagnostic]:
    if facts.users is None and facts.digest is not None:
        yield _unsupported(
            "users are drawn, and nothing says whose the records are",
            place,
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
        yield _unsupported(
            "canary users have a gradient; users of canary records are not supported",
            ("audit", "canary", "space"),
            "space: gradient",
        )
    bound = records_per_user(spec.data.options)
    if bound is None:
        yield _unsupported(
            "rows are laid out user by user, and nothing limits the number of records of one",
            ("data",),
            "records_per_user: 8, or max_records_per_user: 8 to drop further records",
        )
        return
    size = min(sampling.records_per_user or 1, bound)
    if 1 < size < bound and (bound > MOST_CHOICES or comb(bound, size) > MOST_CHOICES):
        yield _unsupported(
            f"{size} of {bound} records can be chosen in more than {MOST_CHOICES} ways, and the expected contribution "
            "of a user is a mean over all choices",
            place[:-1],
            f"records_per_user: 1, or {bound} to average all; or fewer records of each user in data",
        )


def kinds_with(offers: Mapping[str, Offered], field: str) -> str:
    return ", ".join(sorted(kind for kind, offered in offers.items() if getattr(offered.provider, field)))


def _unsupported(message: str, path: Path, help: str) -> Diagnostic:
    return Diagnostic(code="unsupported", message=message, path=path, help=help)


def texts_flaw(x: Any, part: str, vocabulary: int | None) -> str:
    """Why rows (n, ...) are not texts of ``vocabulary`` tokens; empty if they are, or if none are declared."""
    if vocabulary is None or not ((x != x.round()) | (x < 0) | (x >= vocabulary)).any():
        return ""
    return f"{part}_x holds values that are not ids in 0..{vocabulary - 1}, where facts() declares texts"
