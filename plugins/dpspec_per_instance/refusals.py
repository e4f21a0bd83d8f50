"""Located messages for specs that the theory or the attack does not cover. No torch, data or numerics."""

import math
from collections.abc import Iterator, Mapping

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.loop.learning_rates import optimizer_kind
from dpspec_per_instance.options import (
    MOST_SHARDS,
    AttackOptions,
    AuditBlock,
    Audited,
    Composition,
    MeanRule,
    population_size,
)

#: Maximum number of records that need separate runs on modified data.
MOST_OWN_RUNS = 256

#: Largest tabulated order.
MOST_ORDER = 512

#: Maximum bytes of clipped gradients of the mean rule, which holds all gradients in memory.
MOST_BYTES = 2**30

#: Minimum number of runs per record with which an attack can prove anything.
LEAST_RUNS = 16


def check_spec(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    help = "it compares a dataset with the same dataset plus or minus one record"
    yield from dps.other_adjacencies(spec, "add-remove", "the per-instance theory", help)
    if spec.threat_model.group_size != (1,):
        message = "the per-instance theory covers single records, not groups"
        yield kit.unsupported(message, ("threat_model", "group_size"), "audit groups with mechanism.kind group")
    for i, phase in enumerate(spec.phases):
        yield from kit.other_scheme(
            spec,
            i,
            dps.Sampling.INDEPENDENT,
            "sampling.scheme must be poisson or full, got {scheme}: the theory needs records to be drawn independently",
            "write sampling: {scheme: poisson, rate: ...} if the training samples this way",
        )
        if phase.noiseless:
            message = "noise_multiplier must be above 0: a step without noise has no finite divergence"
            yield kit.bad_value(message, dps.in_phase(spec, i, "noise_multiplier"), "write a noise_multiplier above 0")
    composition = Composition.of(spec.mechanism.options)
    if composition.exponent is not None:
        growth = min(700.0, -math.log1p(-1.0 / composition.exponent) * (spec.steps - 1))
        first_order = 1.0 + (composition.orders[-1] - 1.0) * math.exp(growth)  # the largest order of the recursion
        if first_order > MOST_ORDER:
            message = f"exponent needs order {first_order:.2g} at the first of {spec.steps} steps: at most {MOST_ORDER}"
            help = "auto uses three times the number of steps, which keeps orders within 1.4 times the requested ones"
            yield kit.bad_value(message, ("mechanism", "composition", "exponent"), help)
    wrong_points = list(_refuse_points(spec, facts))
    yield from wrong_points
    if wrong_points:
        return
    audited = Audited.of(spec.document["threat_model"], facts)
    for i, claim in enumerate(spec.claims):
        if claim.record is not None:
            yield from _refuse_other_record(audited, claim.record, ("claims", i, "record"))
        if "fraction" in claim.options and claim["population"] != audited.quantiles_of:
            yield dps.Diagnostic(
                code="bad-choice",
                message=f"the audited population is {audited.quantiles_of!r}, not {claim['population']!r}",
                path=("claims", i, "population"),
                help=f"write population: {audited.quantiles_of}, or audit points: all, or a random sample "
                f"{{count, seed}}, of threat_model.population: {claim['population']}",
            )
    if spec.audit is not None:
        options = AuditBlock.of(spec.audit.options)
        yield from _refuse_training(spec, spec.audit, facts, audited)
        if options.attack is not None:
            yield from _refuse_attack(spec, spec.audit.runs, options.attack, audited)
        if options.mean_rule is not None:
            yield from _refuse_mean_rule(options.mean_rule, facts)


def _refuse_points(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    path: dps.Path = ("threat_model", "points")
    threat_model = spec.document["threat_model"]
    population, points = threat_model.get("population", "train"), threat_model.get("points", "all")
    size = population_size(threat_model, facts)
    if size == 0:
        message = "the data has no test records to audit"
        yield kit.bad_value(message, ("threat_model", "population"), "write population: train, or split the data")
    elif isinstance(points, Mapping):
        if points["count"] > size:
            message = f"count {points['count']} exceeds the {size} {population} records"
            yield kit.bad_value(message, (*path, "count"))
    elif not isinstance(points, str):
        for i, point in enumerate(points):
            if point >= size:
                yield kit.bad_value(
                    f"record {point} lies outside the data: there are {size} {population} records, counted from 0",
                    (*path, i),
                )


def _refuse_other_record(audited: Audited, record: int, path: dps.Path) -> Iterator[dps.Diagnostic]:
    if record not in audited.points:
        message = f"record {record} is not among the audited {audited.population} records"
        yield kit.bad_value(message, path, "add it to threat_model.points")


def _refuse_training(
    spec: dps.Spec, audit: dps.AuditOptions, facts: dps.Facts, audited: Audited
) -> Iterator[dps.Diagnostic]:
    optimizer = optimizer_kind(spec.training.options)
    if optimizer != "sgd":
        yield kit.unsupported(
            f"training.optimizer must be sgd: {optimizer} keeps additional state, and the composition theorem only "
            "covers released models",
            ("training", "optimizer"),
            "train with sgd; the data-independent bound of mechanism.kind group holds for every optimizer",
        )
    if audit.method != "many-run" or audit.options.get("canary") is not None:
        message = "per-instance audits average over independent runs and insert no canaries"
        help = "write method: many-run and runs, without canary; audit.attack attacks records of the data"
        yield kit.unsupported(message, ("audit", "canary" if audit.method == "many-run" else "method"), help)
    shards, own = AuditBlock.of(audit.options).shards(len(audited.points)), len(audited.points)
    if shards.count > MOST_SHARDS:
        yield kit.bad_value(
            f"{audit.options['shard_records']} of {shards.records} records in each trial make "
            f"{shards.count} trials of every run, which all repeat the training: at most {MOST_SHARDS}",
            ("audit", "shard_records"),
            f"write shard_records: {-(-shards.records // MOST_SHARDS)} or more, or remove it",
        )
    yield from dps.untrainable(spec, facts, ["iterates"])
    if audited.needs_own_runs and own > MOST_OWN_RUNS:
        yield kit.bad_value(
            f"direction {audited.widest_direction} needs separate runs on modified data for each of {own} records: at "
            f"most {MOST_OWN_RUNS}",
            ("threat_model", "direction"),
            f"write direction: {audited.shared_direction}, in which all records share runs, or list fewer points",
        )


def _refuse_attack(spec: dps.Spec, runs: int, attack: AttackOptions, audited: Audited) -> Iterator[dps.Diagnostic]:
    path: dps.Path = ("audit", "attack")
    chosen, points = attack.most + attack.least, len(audited.points)
    if attack.targets == 0 or chosen > points:
        yield kit.bad_value(
            f"audit.attack must select a record, and at most the {points} audited ones, got {attack.most} most and "
            f"{attack.least} least exposed records",
            path,
            "set most, least or records, or remove attack",
        )
    for i, record in enumerate(attack.records):
        yield from _refuse_other_record(audited, record, (*path, "records", i))
    if attack.runs * runs < LEAST_RUNS:
        yield kit.bad_value(
            f"{attack.runs} runs of each record in each of {runs} runs are fewer than "
            f"{LEAST_RUNS} and cannot prove anything",
            (*path, "runs"),
        )
    if spec.threat_model.access != "all-iterates":
        message = "audit.attack scores every iterate, and the threat model releases the final model only"
        yield kit.unsupported(message, ("threat_model", "access"), "remove audit.attack, or write access: all-iterates")


def _refuse_mean_rule(mean_rule: MeanRule, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    path: dps.Path = ("audit", "mean_rule")
    for i, batch in enumerate(mean_rule.batches):
        if batch > facts.records:
            yield kit.bad_value(
                f"an expected batch size of {batch:g} exceeds the {facts.records} training records",
                (*path, "batches", i),
            )
    if 4 * facts.records * (facts.parameters or 0) > MOST_BYTES:
        yield kit.bad_value(
            f"the mean rule needs the clipped gradients of all {facts.records} records in memory, "
            f"{facts.parameters} numbers each: more than 1 GiB",
            path,
            "remove mean_rule, or use fewer records or a smaller model",
        )
