"""What this plugin refuses, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.loop.learning_rates import optimizer_kind
from dpspec_per_instance.options import (
    CHOSEN,
    MOST_SHARDS,
    SHARED_DIRECTION,
    AuditBlock,
    Audited,
    Composition,
    Population,
    Sample,
    audited_records,
)
from dpspec_per_instance.printed.options import refuse_mean_rule, refuse_reference

#: Records that need runs on data of their own: at most so many.
MOST_OWN_RUNS = 256

#: Orders above this are not tabulated.
MOST_ORDER = 512

#: With fewer runs than this for a record an attack can show nothing.
LEAST_RUNS = 16


def check_spec(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands."""
    yield from _refuse_scope(spec)
    yield from _refuse_mechanism(spec)
    yield from _refuse_exponent(spec)
    wrong_points = list(_refuse_points(spec, facts))
    yield from wrong_points
    if wrong_points:
        return
    audited = audited_records(spec, facts)
    yield from _refuse_claims(spec, audited)
    if spec.audit is not None:
        yield from _refuse_training(spec, facts, audited)
        yield from _refuse_attack(spec, audited)
        yield from refuse_mean_rule(spec, facts)
        yield from refuse_reference(spec)


def _refuse_scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    help = "it compares the data set with the one that has one record more, or one less"
    yield from dps.other_adjacencies(spec, "add-remove", "the per-instance theory", help)
    if spec.threat_model.group_size != (1,):
        yield kit.unsupported(
            "the per-instance theory is about one record, not about groups",
            ("threat_model", "group_size"),
            "audit groups with mechanism.kind group",
        )


def _refuse_mechanism(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    for i, phase in enumerate(spec.phases):
        yield from kit.other_scheme(
            spec,
            i,
            ("poisson", "full"),
            "sampling.scheme must be poisson or full, got {scheme}: whether a record is drawn must not depend on the "
            "other records",
            "write sampling: {scheme: poisson, rate: ...} if batches are drawn like that",
        )
        if phase.noiseless:
            yield kit.bad_value(
                "noise_multiplier must be above 0: a step without noise has no finite divergence",
                dps.in_phase(spec, i, "noise_multiplier"),
                "write a noise_multiplier above 0",
            )


def _refuse_exponent(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    path: dps.Path = ("mechanism", "composition", "exponent")
    exponent = Composition.of(spec.mechanism.options).exponent
    if isinstance(exponent, str) and exponent != "auto":
        yield dps.Diagnostic(
            code="bad-choice", message=f"exponent must be auto or a number above 1, got {exponent!r}", path=path
        )
    elif not isinstance(exponent, str) and (first_order := _first_order(spec, exponent)) > MOST_ORDER:
        yield kit.bad_value(
            f"exponent asks for order {first_order:.2g} at the first of {spec.steps} steps: at most {MOST_ORDER}",
            path,
            "auto takes three times the number of steps, which keeps orders within 1.4 times those asked for",
        )


def _first_order(spec: dps.Spec, exponent: float | tuple[float, ...]) -> float:
    """The largest order that the recursion reaches; of several exponents, as if all were the least one."""
    p = min(exponent) if isinstance(exponent, tuple) else exponent
    growth = min(700.0, -math.log1p(-1.0 / p) * (spec.steps - 1))
    return 1.0 + (Composition.of(spec.mechanism.options).orders[-1] - 1.0) * math.exp(growth)


def _refuse_points(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    path: dps.Path = ("threat_model", "points")
    population = Population.of(spec.document["threat_model"])
    size, points = population.size(facts.records, facts.test_records), population.points
    if size == 0:
        yield kit.bad_value(
            "the data has no test records to audit",
            ("threat_model", "population"),
            "write population: train, or split the data",
        )
    elif isinstance(points, str):
        if points != "all":
            message = f"points must be all, {{count, seed}} or a list of indices, got {points!r}"
            yield dps.Diagnostic(code="bad-choice", message=message, path=path)
    elif isinstance(points, Sample):
        if points.count > size:
            message = f"count {points.count} is more than the {size} {population.name} records"
            yield kit.bad_value(message, (*path, "count"))
    else:
        for i, point in enumerate(points):
            if point >= size:
                yield kit.bad_value(
                    f"record {point} lies outside the data: there are {size} {population.name} records, counted from 0",
                    (*path, i),
                )


def _refuse_claims(spec: dps.Spec, audited: Audited) -> Iterator[dps.Diagnostic]:
    points = audited.point_set
    for i, claim in enumerate(spec.claims):
        if claim.record is not None and claim.record not in points:
            yield kit.bad_value(
                f"the claim is about record {claim.record}, which is not among the audited "
                f"{audited.population} records",
                ("claims", i, "record"),
                "add it to threat_model.points",
            )
        if claim.kind != "per-instance-dp" or "fraction" not in claim.options:
            continue
        if audited.quantiles_of == CHOSEN and claim["population"] == audited.population:
            yield kit.unsupported(
                "threat_model.points lists chosen records, which bound no fraction of their population",
                ("claims", i, "fraction"),
                "audit points: all, or a random sample {count, seed}; or write population: chosen, for a fraction "
                "of the records that threat_model.points lists",
            )
        elif claim["population"] != audited.quantiles_of:
            yield dps.Diagnostic(
                code="bad-choice",
                message=f"the audited population is {audited.quantiles_of!r}, not {claim['population']!r}",
                path=("claims", i, "population"),
                help=f"write population: {audited.quantiles_of}, or change threat_model.population",
            )


def _refuse_training(spec: dps.Spec, facts: dps.Facts, audited: Audited) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    optimizer = optimizer_kind(spec.training.options)
    if optimizer != "sgd":
        yield kit.unsupported(
            f"training.optimizer must be sgd: {optimizer} keeps a state beside the model, and the composition theorem "
            "covers released models only",
            ("training", "optimizer"),
            "train with sgd; the data-independent bound of mechanism.kind group holds for every optimizer",
        )
    if spec.audit.method != "many-run":
        yield kit.unsupported(
            "per-instance audits average over independent runs; a one-run canary attack does not apply",
            ("audit", "method"),
            "write method: many-run; runs says how many",
        )
    if spec.audit.options.get("canary") is not None:
        yield kit.unsupported(
            "audit.canary does not apply: per-instance audits plant no records",
            ("audit", "canary"),
            "leave canary out; audit.attack attacks records of the data",
        )
    shards = AuditBlock.of(spec.audit.options).shards(len(audited.points))
    if shards.count > MOST_SHARDS:
        yield kit.bad_value(
            f"{AuditBlock.of(spec.audit.options).shard_records} of {shards.records} records in each trial make "
            f"{shards.count} trials of every run, and each trains anew: at most {MOST_SHARDS}",
            ("audit", "shard_records"),
            f"write shard_records: {-(-shards.records // MOST_SHARDS)} or more, or leave it out",
        )
    yield from dps.untrainable(spec, facts, ["iterates"])
    if audited.needs_own_runs and len(audited.points) > MOST_OWN_RUNS:
        other = SHARED_DIRECTION[audited.population]
        yield kit.bad_value(
            f"direction {audited.widest_direction} takes runs of its own, on other data, for each of "
            f"{len(audited.points)} records: at most {MOST_OWN_RUNS}",
            ("threat_model", "direction"),
            f"write direction: {other}, for which all records share their runs, or name fewer points",
        )


def _refuse_attack(spec: dps.Spec, audited: Audited) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    path: dps.Path = ("audit", "attack")
    attack, points = AuditBlock.of(spec.audit.options).attack, audited.point_set
    if attack is None:
        return
    if attack.targets == 0:
        yield kit.bad_value(
            "audit.attack selects no record",
            path,
            "set most, least or records, or leave attack out",
        )
    if attack.most + attack.least > len(points):
        yield kit.bad_value(
            f"{attack.most} most and {attack.least} least exposed records are more than the {len(points)} "
            "that are audited",
            (*path, "most"),
        )
    for i, record in enumerate(attack.records):
        if record not in points:
            yield kit.bad_value(
                f"record {record} is not among the audited {audited.population} records",
                (*path, "records", i),
                "add it to threat_model.points",
            )
    if attack.runs * spec.audit.runs < LEAST_RUNS:
        yield kit.bad_value(
            f"{attack.runs} runs of each record in each of {spec.audit.runs} runs are fewer than "
            f"{LEAST_RUNS}, which can show nothing",
            (*path, "runs"),
        )
    if spec.threat_model.access != "all-iterates":
        yield kit.unsupported(
            "audit.attack scores every iterate, and the threat model releases the final model only",
            ("threat_model", "access"),
            "leave audit.attack out, or write access: all-iterates",
        )
