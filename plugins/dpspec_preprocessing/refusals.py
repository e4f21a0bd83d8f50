"""What this plugin refuses, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import dpspec.contract as dps
from dpspec_preprocessing.attack_refusals import attack_refusals
from dpspec_preprocessing.messages import refused, warned
from dpspec_preprocessing.mode_refusals import mode_refusals
from dpspec_preprocessing.options import NEEDS, Pipeline, kind_of, pipeline_of
from dpspec_preprocessing.private_refusals import private_refusals

_UNPROVED = "no smooth bound is proved of it; take a step that has one"

#: What may stand beside the key that names a step.
_BESIDE: dict[str, set[str]] = {
    "impute": {"mask", "trim", "fit"},
    "deduplicate": {"similarity", "fit"},
    "quantise": {"similarity", "fit"},
    "pca": {"affine", "output", "whiten", "solver", "fit"},
    "scale": {"clip", "fit"},
}


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands, and warnings about what it will show."""
    found = [*_scope(spec), *_steps(spec, facts), *private_refusals(spec, facts)]
    found += _numbers(spec.mechanism.options, facts)
    yield from found
    if any(d.severity == "error" for d in found):
        return
    pipeline = pipeline_of(spec.mechanism.options, facts)
    yield from _collection(facts, pipeline)
    yield from mode_refusals(spec, facts, pipeline)
    if spec.audit is not None:
        yield from attack_refusals(spec, facts)


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    threat = spec.threat_model
    help = "write threat_model: {adjacency: replace-one}: the number of records is public here"
    yield from dps.other_adjacencies(spec, "replace-one", "the theory", help)
    sizes: list[tuple[dps.Path, int]] = [(("threat_model", "group_size"), size) for size in threat.group_size]
    sizes += [(("claims", i, "group_size"), c.group_size) for i, c in enumerate(spec.claims)]
    groups = [path for path, size in sizes if size != 1]
    if groups:
        yield refused(groups[0], "bounds are for one replaced record, not for groups", "leave group_size out")
    extra = [what for what in threat.options.get("released", ()) if what != "output"]
    if extra:
        yield refused(
            ("threat_model", "released"),
            f"releasing {' and '.join(extra)} besides the output voids every bound",
            "the bounds cover the private mechanism's output alone; make the rest private by a mechanism of its own",
        )
    if spec.mechanism["private"]["kind"] == "sgd-iterated":
        paths: list[dps.Path] = [("threat_model", "access")] if threat.access != "final-model" else []
        paths += [("claims", i, "access") for i, c in enumerate(spec.claims) if c.access != threat.access]
        for path in paths:
            yield refused(
                path,
                "sgd-iterated hides all iterates but the last one",
                "write access: final-model, or take sgd-sampled, whose iterates may all be seen",
            )


def _steps(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    steps = spec.mechanism["pipeline"]
    for i, step in enumerate(steps):
        at = ("mechanism", "pipeline", i)
        kinds = [key for key in _BESIDE if key in step]
        if len(kinds) > 1:
            yield refused(at, f"one step does one thing, this one says {' and '.join(kinds)}", "write two steps")
            continue
        allowed = _BESIDE[kinds[0]]
        for key in step:
            if key != kinds[0] and key not in allowed:
                help = f"valid beside it: {', '.join(sorted(allowed))}"
                yield refused((*at, key), f"{key!r} says nothing about {kinds[0]}", help)
        yield from _step(at, step, facts)
    if len(steps) > 1:
        yield warned(
            ("mechanism", "pipeline"),
            f"of a chain of {len(steps)} steps only group privacy for all {facts.records} records is proved: after "
            "the first step inputs of the next differ in many records",
            "keep the one step that matters, and do the others with public constants before (data.standardise)",
        )


def _step(at: tuple[str | int, ...], step: Mapping[str, Any], facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    by = kind_of(step)
    if step.get("fit", "train") != "train":
        yield refused(
            (*at, "fit"),
            f"a step that is fitted on test records too: {_UNPROVED}",
            "leave fit out: steps are fitted on training records, test records pass through the same maps",
        )
    if by in ("knn", "iterative"):
        yield refused((*at, "impute"), f"imputation by {by} moves rows without a limit: {_UNPROVED}", "impute: mean")
    if by == "trimmed" and "trim" not in step:
        yield refused(at, "missing key 'trim'", "for example {impute: trimmed, trim: 10}", "missing-key")
    if by == "scale" and "clip" not in step:
        help = "for example {scale: standard, clip: 1.0}; state the constants of private for that norm"
        yield refused(at, "missing key 'clip': scaled records leave the ball", help, "missing-key")
    if step.get("similarity", "distance") != "distance":
        yield refused((*at, "similarity"), f"near-duplicates by {step['similarity']}: {_UNPROVED}", "leave it out")
    if by == "pca":
        yield from _pca(at, step, min(facts.features, facts.records))


def _pca(at: tuple[str | int, ...], step: Mapping[str, Any], limit: int) -> Iterator[dps.Diagnostic]:
    k = int(step["pca"])
    if k >= limit:
        message = f"k must be below {limit}, the least of features and records, got {k}"
        help = f"a k from 1 to {limit - 1}" if limit > 1 else "leave the step out: there is one direction only"
        yield refused((*at, "pca"), message, help, "bad-value")
    if step.get("output", "same") == "reduced":
        yield refused(
            (*at, "output"),
            "coordinates along principal directions turn freely where eigenvalues are close: Proposition 5 is "
            "refuted for them",
            "leave output out: projected records in their own space have a bound",
        )
    if step.get("whiten"):
        yield refused((*at, "whiten"), f"whitened records: {_UNPROVED}", "leave whiten out")
    if step.get("solver", "full") != "full":
        yield refused((*at, "solver"), f"a {step['solver']} solver: {_UNPROVED}", "leave solver out")


def _collection(facts: dps.Facts, found: Pipeline) -> Iterator[dps.Diagnostic]:
    step, at, c = found.step, ("mechanism", "collection"), found.collection
    if step is None:
        return
    by, n = kind_of(step), facts.records
    missing = [key for key in NEEDS[by] if key not in c]
    if missing:
        yield warned(
            at,
            f"without {' and '.join(missing)} only group privacy for all {n} records is proved",
            f"declare collection: {{{', '.join(f'{key}: ...' for key in missing)}}}",
        )
        return
    if by == "scale" and found.radius / float(c["min_std"]) > 1e6:
        help = "leave such features out, or declare a larger min_std"
        yield refused((*at, "min_std"), "a feature that hardly varies cannot be scaled", help, "bad-value")
    if by == "pca" and float(c["min_eigengap"]) <= 8.0 * found.radius**2 / n:
        yield warned(
            (*at, "min_eigengap"),
            f"an eigengap of at most 8 radius^2 / n = {8.0 * found.radius**2 / n:.3g} proves group privacy only",
            "another k, more records, or a larger gap from public knowledge",
        )
    if by in ("deduplicate", "quantise") and 2 * int(c["max_ball"]) >= n:
        yield warned(
            (*at, "max_ball"),
            f"2 max_ball reaches {n} records: any record can change all others, the bound is vacuous",
            "a smaller eta, with fewer records within 8 eta of one",
        )


def _numbers(mechanism: Mapping[str, Any], facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Declared limits for which the formulas have no value."""
    steps, c = mechanism["pipeline"], mechanism.get("collection") or {}
    if len(steps) != 1:
        return
    by, at = kind_of(steps[0]), ("mechanism", "collection")
    observed, rows, n = int(c.get("min_observed", 2)), int(c.get("max_missing_rows", 0)), facts.records
    if by == "trimmed" and "trim" in steps[0] and "min_observed" in c:
        trim, least = int(steps[0]["trim"]), min(observed, n - rows)
        if least <= 2 * trim:
            message = f"trimming {trim} values at each end leaves nothing of {least}"
            help = f"a trim below {least / 2:g}, or impute: median"
            yield refused(("mechanism", "pipeline", 0, "trim"), message, help, "bad-value")
    if observed < 2 or observed > n:
        message = f"min_observed must be from 2 to {n}, got {observed}"
        help = "how many values every feature has at least; leave features without values out"
        yield refused((*at, "min_observed"), message, help, "bad-value")
    if rows >= n:
        message = f"max_missing_rows must be below {n} records, got {rows}"
        help = "how many records miss a value at most; where all do, nothing is known to impute from"
        yield refused((*at, "max_missing_rows"), message, help, "bad-value")
    if by == "regression" and "min_eigenvalue" in c:
        radius = float(mechanism.get("radius", 1.0))
        if float(c["min_eigenvalue"]) <= radius**2:
            message = "min_eigenvalue must exceed radius^2: without one record it could be 0"
            yield refused((*at, "min_eigenvalue"), message, "a larger one, or impute: mean", "bad-value")
        elif float(c.get("max_eigenvalue", math.inf)) < float(c["min_eigenvalue"]):
            message = "max_eigenvalue is below min_eigenvalue"
            yield refused((*at, "max_eigenvalue"), message, "the largest eigenvalue of X^T X at most", "bad-value")
