"""What this plugin refuses, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import dpspec.contract as dps
from dpspec_preprocessing import private as mechanisms
from dpspec_preprocessing.attack_refusals import attack_refusals
from dpspec_preprocessing.options import NEEDS, Pipeline, claimed_deltas, kind_of, pipeline_of
from dpspec_preprocessing.totals import PRINTED_ORDER, PRINTED_RECORDS

_UNPROVED = "no smooth bound is proved of it; take a step that has one"


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands, and warnings about what it will show."""
    found = [*_scope(spec), *_steps(spec, facts), *_private(spec, facts), *_numbers(spec.mechanism.options, facts)]
    yield from found
    if any(d.severity == "error" for d in found):
        return
    pipeline = pipeline_of(spec.mechanism.options, facts)
    yield from _collection(spec, facts, pipeline)
    yield from _accounting(spec, facts, pipeline)
    yield from _ptr(spec, facts, pipeline)
    if spec.audit is not None:
        yield from attack_refusals(spec, facts)


def _refused(path: dps.Path, message: str, help: str | None = None, code: str = "unsupported") -> dps.Diagnostic:
    return dps.Diagnostic(code=code, message=message, path=path, help=help)


def _warned(path: dps.Path, message: str, help: str | None = None) -> dps.Diagnostic:
    return dps.Diagnostic(code="unsupported", message=message, path=path, help=help, severity="warning")


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    threat = spec.threat_model
    help = "write threat_model: {adjacency: replace-one}: the number of records is public here"
    yield from dps.other_adjacencies(spec, "replace-one", "the theory", help)
    sizes: list[tuple[dps.Path, int]] = [(("threat_model", "group_size"), size) for size in threat.group_size]
    sizes += [(("claims", i, "group_size"), c.group_size) for i, c in enumerate(spec.claims)]
    groups = [path for path, size in sizes if size != 1]
    if groups:
        yield _refused(groups[0], "bounds are for one replaced record, not for groups", "leave group_size out")
    extra = [what for what in threat.options.get("released", ()) if what != "output"]
    if extra:
        yield _refused(
            ("threat_model", "released"),
            f"releasing {' and '.join(extra)} besides the output voids every bound",
            "the bounds cover the private mechanism's output alone; make the rest private by a mechanism of its own",
        )
    if spec.mechanism["private"]["kind"] == "sgd-iterated":
        paths: list[dps.Path] = [("threat_model", "access")] if threat.access != "final-model" else []
        paths += [("claims", i, "access") for i, c in enumerate(spec.claims) if c.access != threat.access]
        for path in paths:
            yield _refused(
                path,
                "sgd-iterated hides all iterates but the last one",
                "write access: final-model, or take sgd-sampled, whose iterates may all be seen",
            )


def _steps(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    steps = spec.mechanism["pipeline"]
    for i, step in enumerate(steps):
        at = ("mechanism", "pipeline", i)
        kinds = [key for key in ("impute", "deduplicate", "quantise", "pca", "scale") if key in step]
        if len(kinds) > 1:
            yield _refused(at, f"one step does one thing, this one says {' and '.join(kinds)}", "write two steps")
            continue
        allowed = {
            "impute": {"mask", "trim"},
            "deduplicate": {"similarity"},
            "quantise": {"similarity"},
            "pca": {"affine", "output", "whiten", "solver"},
            "scale": {"clip"},
        }[kinds[0]]
        for key in step:
            if key != kinds[0] and key not in allowed:
                help = f"valid beside it: {', '.join(sorted(allowed))}"
                yield _refused((*at, key), f"{key!r} says nothing about {kinds[0]}", help)
        yield from _step(at, step, facts)
    if len(steps) > 1:
        yield _warned(
            ("mechanism", "pipeline"),
            f"of a chain of {len(steps)} steps only group privacy for all {facts.records} records is proved: after "
            "the first step inputs of the next differ in many records",
            "keep the one step that matters, and do the others with public constants before (data.standardise)",
        )


def _step(at: tuple[str | int, ...], step: Mapping[str, Any], facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    by = kind_of(step)
    if by in ("knn", "iterative"):
        yield _refused((*at, "impute"), f"imputation by {by} moves rows without a limit: {_UNPROVED}", "impute: mean")
    if by == "trimmed" and "trim" not in step:
        yield _refused(at, "missing key 'trim'", "for example {impute: trimmed, trim: 10}", "missing-key")
    if by == "scale" and "clip" not in step:
        help = "for example {scale: standard, clip: 1.0}; state the constants of private for that norm"
        yield _refused(at, "missing key 'clip': scaled records leave the ball", help, "missing-key")
    if step.get("similarity", "distance") != "distance":
        yield _refused((*at, "similarity"), f"near-duplicates by {step['similarity']}: {_UNPROVED}", "leave it out")
    if by == "pca":
        k = int(step["pca"])
        if k >= min(facts.features, facts.records):
            limit = min(facts.features, facts.records)
            yield _refused(
                (*at, "pca"), f"k must be below {limit}, the least of features and records, got {k}", None, "bad-value"
            )
        if step.get("output", "same") == "reduced":
            yield _refused(
                (*at, "output"),
                "coordinates along principal directions turn freely where eigenvalues are close: Proposition 5 is "
                "refuted for them",
                "leave output out: projected records in their own space have a bound",
            )
        if step.get("whiten"):
            yield _refused((*at, "whiten"), f"whitened records: {_UNPROVED}", "leave whiten out")
        if step.get("solver", "full") != "full":
            yield _refused((*at, "solver"), f"a {step['solver']} solver: {_UNPROVED}", "leave solver out")


def _private(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    block, at = spec.mechanism["private"], ("mechanism", "private")
    kind = str(block["kind"])
    gradient = kind in mechanisms.GRADIENT
    if block.get("norm", "summed") == "frobenius":
        yield _refused(
            (*at, "norm"),
            "bounds take the Lipschitz constant in the sum of the distances between records",
            "state it in that norm: 1 / n, not 1 / sqrt(n), for a mean",
        )
    only = {"loss": gradient, "smooth": gradient, "theta_radius": gradient, "learning_rate": gradient}
    only |= {"sensitivity": not gradient, "steps": kind in ("dp-gd", "sgd-sampled")}
    only |= {"factor": kind == "sgd-sampled", "batch_size": kind == "sgd-sampled"}
    for key, applies in only.items():
        if key in block and not applies:
            yield _refused((*at, key), f"{key!r} says nothing about {kind}", "leave it out")
    if kind in ("dp-gd", "sgd-sampled") and "steps" not in block:
        yield _refused(at, "missing key 'steps' in mechanism.private", "for example steps: 100", "missing-key")
    if gradient and "loss" not in block and "lipschitz" not in block:
        help = "name a known loss: logistic, or state lipschitz and smooth"
        yield _refused(at, "missing key 'lipschitz' in mechanism.private", help, "missing-key")
    if gradient and "loss" not in block and "smooth" not in block:
        yield _warned(
            at,
            "nothing is declared of how gradients move with records (smooth): only group privacy is proved",
            "state smooth, or name a known loss: logistic or squared",
        )
    if block.get("batch_size", 1) != 1:
        help = "batch_size: 1; Lemma 2 is refuted for larger batches drawn with replacement"
        yield _refused((*at, "batch_size"), "sampled gradients are covered one record at a time", help)
    if kind == "sgd-sampled" and float(block.get("factor", 4.0)) < 4.0 and spec.mechanism["accounting"] != "certified":
        yield _refused(
            (*at, "factor"),
            "the closed form is refuted where the noise is below 2 L sqrt(steps) / (eps_noise n), factor 4",
            "factor: 4, or accounting: certified, which holds for any",
        )
    if kind == "sgd-iterated" and gradient and float(block.get("learning_rate", 0.5)) > 2.0:
        help = "losses here have curvature at most 1: learning_rate at most 2"
        yield _refused((*at, "learning_rate"), "steps longer than 2 / curvature do not contract", help, "bad-value")
    if gradient and "loss" in block:
        yield from _constants(block, spec.mechanism["radius"], facts, at)
    weight = float(block.get("lipschitz", 1.0))
    radius = float(spec.mechanism["radius"])
    if not gradient and float(block.get("sensitivity", 1.0)) > 2.0 * weight * radius:
        yield _warned(
            (*at, "sensitivity"),
            f"one record moves the query by 2 L radius = {2.0 * weight * radius:g} at most: a smaller sensitivity "
            "is enough",
        )


def _constants(
    block: Mapping[str, Any], radius: float, facts: dps.Facts, at: tuple[str, ...]
) -> Iterator[dps.Diagnostic]:
    from dpspec_preprocessing.options import constants

    if radius > 1.0:
        yield _refused(
            ("mechanism", "radius"), f"the constants of this loss hold for radius 1, got {radius:g}", None, "bad-value"
        )
    if facts.classes != 2:
        yield _refused((*at, "loss"), f"a linear model of two classes cannot tell {facts.classes}", None, "bad-value")
    derived = constants({key: value for key, value in block.items() if key not in ("lipschitz", "smooth")})
    for key, least in zip(("lipschitz", "smooth"), derived, strict=True):
        if key in block and float(block[key]) < least:
            help = f"leave {key} out: it follows from theta_radius"
            yield _refused((*at, key), f"this loss needs {key} of {least:.4g} at least", help, "bad-value")


def _collection(spec: dps.Spec, facts: dps.Facts, found: Pipeline) -> Iterator[dps.Diagnostic]:
    step, at, c = found.step, ("mechanism", "collection"), found.collection
    if step is None:
        return
    by, n = kind_of(step), facts.records
    missing = [key for key in NEEDS[by] if key not in c]
    if missing:
        yield _warned(
            at,
            f"without {' and '.join(missing)} only group privacy for all {n} records is proved",
            f"declare collection: {{{', '.join(f'{key}: ...' for key in missing)}}}",
        )
        return
    if by == "scale" and found.radius / float(c["min_std"]) > 1e6:
        yield _refused((*at, "min_std"), "a feature that hardly varies cannot be scaled", None, "bad-value")
    if by == "pca" and float(c["min_eigengap"]) <= 8.0 * found.radius**2 / n:
        yield _warned(
            (*at, "min_eigengap"),
            f"an eigengap of at most 8 radius^2 / n = {8.0 * found.radius**2 / n:.3g} proves group privacy only",
        )
    if by in ("deduplicate", "quantise") and 2 * int(c["max_ball"]) >= n:
        yield _warned(
            (*at, "max_ball"), f"2 max_ball reaches {n} records: any record can change all others, the bound is vacuous"
        )


def _numbers(mechanism: Mapping[str, Any], facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Declared limits for which the formulas have no value."""
    steps, c = mechanism["pipeline"], mechanism.get("collection") or {}
    if len(steps) != 1:
        return
    by, at = kind_of(steps[0]), ("mechanism", "collection")
    if by == "trimmed" and "trim" in steps[0] and "min_observed" in c:
        least = min(int(c["min_observed"]), facts.records - int(c.get("max_missing_rows", 0)))
        if least <= 2 * int(steps[0]["trim"]):
            yield _refused(
                ("mechanism", "pipeline", 0, "trim"),
                f"trimming {steps[0]['trim']} values at each end leaves nothing of {least}",
                None,
                "bad-value",
            )
    observed, rows, n = int(c.get("min_observed", 2)), int(c.get("max_missing_rows", 0)), facts.records
    if observed < 2 or observed > n:
        message = f"min_observed must be from 2 to {n}, got {observed}"
        yield _refused((*at, "min_observed"), message, None, "bad-value")
    if rows >= n:
        message = f"max_missing_rows must be below {n} records, got {rows}"
        yield _refused((*at, "max_missing_rows"), message, None, "bad-value")
    if by == "regression" and "min_eigenvalue" in c:
        radius = float(mechanism.get("radius", 1.0))
        if float(c["min_eigenvalue"]) <= radius**2:
            message = "min_eigenvalue must exceed radius^2: without one record it could be 0"
            yield _refused((*at, "min_eigenvalue"), message, None, "bad-value")
        elif float(c.get("max_eigenvalue", math.inf)) < float(c["min_eigenvalue"]):
            yield _refused((*at, "max_eigenvalue"), "max_eigenvalue is below min_eigenvalue", None, "bad-value")


def _accounting(spec: dps.Spec, facts: dps.Facts, found: Pipeline) -> Iterator[dps.Diagnostic]:
    mode, at = spec.mechanism["accounting"], ("mechanism", "accounting")
    if mode == "certified":
        return
    m = found.private
    yield _warned(at, f"accounting: {mode} proves nothing", "claims are proved by accounting: certified")
    if mode == "printed":
        if found.printed is None:
            few = found.step is not None and "pca" in found.step and facts.records < PRINTED_RECORDS
            why = f"n >= {PRINTED_RECORDS} records" if few else "one of its columns, radius 1 and its limits"
            yield _refused(at, f"Table 2 needs {why}", "accounting: certified")
        if not m.unit:
            yield _refused(at, "Table 2 is printed for constants of 1", "accounting: theorem2 takes any")
        low = [i for i, c in enumerate(spec.claims) if c.kind == "renyi-dp" and float(c["alpha"]) < PRINTED_ORDER]
        for i in low:
            yield _refused(("claims", i, "alpha"), "Table 2 holds from order 11 on", "accounting: certified")
    elif found.theorem is None:
        yield _refused(at, "Theorem 2 has no sensitivity for this pipeline", "accounting: certified")


def _ptr(spec: dps.Spec, facts: dps.Facts, found: Pipeline) -> Iterator[dps.Diagnostic]:
    ptr, at = spec.mechanism.get("ptr"), ("mechanism", "ptr")
    if ptr is None:
        return
    by = None if found.step is None else kind_of(found.step)
    if by not in ("mean", "deduplicate", "quantise", "pca") or found.certified is None:
        yield _refused(
            at,
            "the distance to the collection's edge is known for mean imputation, deduplication, quantisation and pca",
            "declare their collection, or leave ptr out and claim over: collection",
        )
    elif by == "pca" and float(found.collection["min_eigengap"]) <= 8.0 * found.radius**2 / facts.records:
        yield _refused(
            ("mechanism", "collection", "min_eigengap"),
            f"ptr needs an eigengap above 8 radius^2 / n = {8.0 * found.radius**2 / facts.records:.3g}",
            None,
            "bad-value",
        )
    for i, claim in enumerate(spec.claims):
        if claim.over is None and claim.kind == "approx-dp" and float(claim["delta"]) < float(ptr["delta"]):
            yield _warned(("claims", i, "delta"), f"below ptr.delta, {ptr['delta']}, nothing is proved for all data")
    if claimed_deltas(spec) and spec.mechanism["accounting"] != "certified":
        yield _refused(at, "ptr is accounted for in mode certified only", "accounting: certified")
