"""What is refused of a way of accounting, and of propose, test, release, located and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_preprocessing import totals
from dpspec_preprocessing.messages import refused, warned
from dpspec_preprocessing.options import TESTABLE, Pipeline, kind_of
from dpspec_preprocessing.totals import PRINTED_ORDER, PRINTED_RECORDS

_AT, _PTR = ("mechanism", "accounting"), ("mechanism", "ptr")


def mode_refusals(spec: dps.Spec, facts: dps.Facts, found: Pipeline) -> Iterator[dps.Diagnostic]:
    """What the chosen way of accounting has no number for, and what a test in front needs."""
    yield from _accounting(spec, facts, found)
    yield from _tested(spec, facts, found)


def _accounting(spec: dps.Spec, facts: dps.Facts, found: Pipeline) -> Iterator[dps.Diagnostic]:
    mode = spec.mechanism["accounting"]
    if mode == "certified":
        return
    yield warned(_AT, f"accounting: {mode} proves nothing", "claims are proved by accounting: certified")
    if mode == "theorem2":
        if found.theorem is None:
            yield refused(_AT, "Theorem 2 has no sensitivity for this pipeline", "accounting: certified")
        return
    if found.printed is None:
        few = found.step is not None and "pca" in found.step and facts.records < PRINTED_RECORDS
        why = f"n >= {PRINTED_RECORDS} records" if few else "one of its columns, radius 1 and its limits"
        yield refused(_AT, f"Table 2 needs {why}", "accounting: certified")
    if not found.private.unit:
        yield refused(_AT, "Table 2 is printed for constants of 1", "accounting: theorem2 takes any")
    for i, claim in enumerate(spec.claims):
        if claim.kind == "renyi-dp":
            yield from _order(found, i, float(claim["alpha"]))


def _order(found: Pipeline, claim: int, order: float) -> Iterator[dps.Diagnostic]:
    at = ("claims", claim, "alpha")
    if order < PRINTED_ORDER:
        yield refused(at, "Table 2 holds from order 11 on", "accounting: certified")
    elif found.printed is not None and math.isnan(totals.printed(found.private, order, found.printed.tau)):
        yield refused(
            at,
            f"Theorem 16 takes {found.private.kind} at twice the order, {2.0 * order:g}, where it is not covered",
            "accounting: certified, a smaller order, or a smaller eps_noise",
        )


def _tested(spec: dps.Spec, facts: dps.Facts, found: Pipeline) -> Iterator[dps.Diagnostic]:
    test = spec.mechanism.get("ptr")
    if test is None:
        return
    by, least = None if found.step is None else kind_of(found.step), 8.0 * found.radius**2 / facts.records
    if by not in TESTABLE or found.certified is None:
        yield refused(
            _PTR,
            "the distance to the collection's edge is known for mean imputation, deduplication, quantisation and pca",
            "declare their collection, or leave ptr out and claim over: collection",
        )
    elif by == "pca" and float(found.collection["min_eigengap"]) <= least:
        yield refused(
            ("mechanism", "collection", "min_eigengap"),
            f"ptr needs an eigengap above 8 radius^2 / n = {least:.3g}",
            "propose a larger one, from public knowledge, or take more records",
            "bad-value",
        )
    for i, claim in enumerate(spec.claims):
        if claim.over is None and claim.kind == "approx-dp" and float(claim["delta"]) < float(test["delta"]):
            yield warned(("claims", i, "delta"), f"below ptr.delta, {test['delta']}, nothing is proved for all data")
    if spec.mechanism["accounting"] != "certified":
        yield refused(_PTR, "ptr is accounted for in mode certified only", "accounting: certified")
