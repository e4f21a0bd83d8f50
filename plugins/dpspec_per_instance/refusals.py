"""What this plugin refuses, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import dpspec.contract as dps
from dpspec_per_instance.attack_refusals import attack_refusals, reference_refusals
from dpspec_per_instance.options import CHOSEN, SHARED, Audited, audited_of_spec
from dpspec_per_instance.shards import MOST, shards_of

#: Records that need runs on data of their own: at most so many.
MOST_OWN = 256

#: Orders above this are not tabulated.
MOST_ORDER = 512

_POINTS = ("threat_model", "points")


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands."""
    yield from _scope(spec)
    yield from _mechanism(spec)
    yield from _composition(spec)
    wrong = list(_points(spec, facts))
    yield from wrong
    if wrong:
        return
    audited = audited_of_spec(spec, facts)
    yield from _claims(spec, audited)
    if spec.audit is not None:
        yield from _training(spec, facts, audited)
        yield from attack_refusals(spec, facts, audited)
        yield from reference_refusals(spec)


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    help = "it compares the data set with the one that has one record more, or one less"
    yield from dps.other_adjacencies(spec, "add-remove", "the per-instance theory", help)
    if spec.threat_model.group_size != (1,):
        yield dps.Diagnostic(
            code="unsupported",
            message="the per-instance theory is about one record, not about groups",
            path=("threat_model", "group_size"),
            help="audit groups with mechanism.kind group",
        )


def _mechanism(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    for i, phase in enumerate(spec.phases):
        scheme = phase["sampling"]["scheme"]
        if scheme not in ("poisson", "full"):
            yield dps.Diagnostic(
                code="unsupported",
                message=f"whether a record is drawn by {scheme} sampling depends on the other records: the "
                "per-instance theory needs a rate that is the same with a record and without it",
                path=dps.in_phase(spec, i, "sampling", "scheme"),
                help="write sampling: {scheme: poisson, rate: ...}, if that is how batches are drawn",
            )
        if float(phase["noise_multiplier"]) == 0.0:
            yield dps.Diagnostic(
                code="bad-value",
                message="without noise a step has no finite divergence",
                path=dps.in_phase(spec, i, "noise_multiplier"),
                help="the per-instance theory bounds noisy steps only",
            )


def _composition(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    asked = (spec.mechanism.get("composition") or {}).get("exponent", "auto")
    if isinstance(asked, str) and asked != "auto":
        yield dps.Diagnostic(
            code="bad-choice",
            message=f"exponent must be auto or a number above 1, got {asked!r}",
            path=("mechanism", "composition", "exponent"),
        )
    elif not isinstance(asked, str) and (first := _first_order(spec, asked)) > MOST_ORDER:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"such an exponent asks for order {first:.2g} at the first of {spec.steps} steps: more than "
            f"{MOST_ORDER}",
            path=("mechanism", "composition", "exponent"),
            help="auto takes three times the number of steps, which keeps orders within 1.4 times those asked for",
        )


def _first_order(spec: dps.Spec, asked: Any) -> float:
    """The largest order that the recursion reaches; of several exponents, as if all were the least one."""
    p = float(min(asked) if isinstance(asked, list | tuple) else asked)
    growth = min(700.0, -math.log1p(-1.0 / p) * (spec.steps - 1))
    return 1.0 + (max(map(float, spec.mechanism["orders"])) - 1.0) * math.exp(growth)


def _points(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    population = str(spec.threat_model.options.get("population", "train"))
    size = facts.records if population == "train" else facts.test_records
    asked = spec.threat_model.options.get("points", "all")
    if size == 0:
        yield dps.Diagnostic(
            code="bad-value",
            message="the data has no test records to audit",
            path=("threat_model", "population"),
            help="write population: train, or split the data",
        )
    elif isinstance(asked, str):
        if asked != "all":
            yield dps.Diagnostic(
                code="bad-choice",
                message=f"points must be all, {{count, seed}} or a list of indices, got {asked!r}",
                path=_POINTS,
            )
    elif isinstance(asked, dps.FrozenMap | dict):
        if int(asked["count"]) > size:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"count {asked['count']} is more than the {size} {population} records",
                path=(*_POINTS, "count"),
            )
    else:
        for place, point in enumerate(asked):
            if int(point) >= size:
                yield dps.Diagnostic(
                    code="bad-value",
                    message=f"record {point} lies outside the data: there are {size} {population} records, "
                    "counted from 0",
                    path=(*_POINTS, place),
                )


def _claims(spec: dps.Spec, audited: Audited) -> Iterator[dps.Diagnostic]:
    points = audited.known
    for i, claim in enumerate(spec.claims):
        if claim.record is not None and claim.record not in points:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"the claim is about record {claim.record}, which is not among the audited "
                f"{audited.population} records",
                path=("claims", i, "record"),
                help="add it to threat_model.points",
            )
        if claim.kind != "per-instance-dp" or "fraction" not in claim.options:
            continue
        if audited.named == CHOSEN and claim["population"] == audited.population:
            yield dps.Diagnostic(
                code="unsupported",
                message="chosen records say nothing of a fraction of their population",
                path=("claims", i, "fraction"),
                help="audit points: all, or a random sample {count, seed}; or write population: chosen, for a fraction "
                "of the records that threat_model.points lists",
            )
        elif claim["population"] != audited.named:
            yield dps.Diagnostic(
                code="bad-choice",
                message=f"the audited population is {audited.named!r}, not {claim['population']!r}",
                path=("claims", i, "population"),
                help=f"write population: {audited.named}, or change threat_model.population",
            )


def _training(spec: dps.Spec, facts: dps.Facts, audited: Audited) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    if spec.audit.options.get("use", "inspect") != "inspect":
        yield dps.Diagnostic(
            code="unsupported",
            message="values per record depend on the data: training that is changed by them, by leaving out records "
            "for example, is another mechanism, and nothing that is proved of this one holds for it",
            path=("audit", "use"),
            help="keep them inside, as use: inspect says; or audit the whole procedure, choice of records included",
        )
    optimizer = str((spec.training.get("optimizer") or {}).get("kind", "sgd"))
    if optimizer != "sgd":
        yield dps.Diagnostic(
            code="unsupported",
            message=f"{optimizer} keeps a state beside the model, and the composition theorem is about what is "
            "released: models alone are no Markov chain here",
            path=("training", "optimizer"),
            help="train with sgd; the data-independent bound of mechanism.kind group holds for every optimizer",
        )
    if spec.audit.method != "many-run":
        yield dps.Diagnostic(
            code="unsupported",
            message="expectations are over independent runs of one data set: there is nothing to plant in one run",
            path=("audit", "method"),
            help="write method: many-run; runs says how many",
        )
    if spec.audit.options.get("canary") is not None:
        yield dps.Diagnostic(
            code="unsupported",
            message="records are audited as they are: nothing is planted",
            path=("audit", "canary"),
            help="leave canary out; audit.attack attacks records of the data",
        )
    shards = shards_of(spec.audit.options, len(audited.points))
    if shards.count > MOST:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"{spec.audit.options['shard_records']} of {shards.records} records in each trial make "
            f"{shards.count} trials of every run, and each trains anew: at most {MOST}",
            path=("audit", "shard_records"),
            help=f"write shard_records: {-(-shards.records // MOST)} or more, or leave it out",
        )
    yield from dps.untrainable(spec, facts, ["iterates"])
    if audited.own and len(audited.points) > MOST_OWN:
        other = SHARED[audited.population]
        yield dps.Diagnostic(
            code="bad-value",
            message=f"direction {audited.whole} takes runs of its own for each of {len(audited.points)} records: "
            f"the first argument of that divergence is another data set for each; at most {MOST_OWN}",
            path=("threat_model", "direction"),
            help=f"write direction: {other}, for which all records share their runs, or name fewer points",
        )
