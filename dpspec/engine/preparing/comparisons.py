"""Comparisons of an audit: published formulas and baselines alongside its bounds, which decide no verdict."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpspec.contract import Facts, Finding, FrozenMap, Series, Spec
from dpspec.contract.catalog import Offered
from dpspec.contract.frozen import without
from dpspec.contract.spec import Section
from dpspec.errors import Diagnostic
from dpspec.registry.loader import made, misbehaved
from dpspec.results.evidence_weight import is_profile


def without_comparisons(spec: Spec, comparisons: Sequence[Offered]) -> Spec:
    """The spec without the keys that only comparisons read."""
    keys = {key for offered in comparisons for key in offered.provider.schema["properties"]}
    if not keys:
        return spec
    options, document = without(spec.mechanism.options, keys), without(spec.document["mechanism"], keys)
    if "phases" in document:
        options, document = (_in_phases(block, keys) for block in (options, document))
    return dataclasses.replace(
        spec,
        mechanism=Section(spec.mechanism.kind, options),
        document=FrozenMap({**spec.document, "mechanism": document}),
    )


def _in_phases(block: Mapping[str, Any], keys: set[str]) -> FrozenMap:
    return FrozenMap({**block, "phases": tuple(without(phase, keys) for phase in block["phases"])})


def check_comparisons(spec: Spec, facts: Facts, comparisons: Sequence[Offered]) -> Iterator[Diagnostic]:
    for offered in comparisons:
        if offered.provider.check:
            yield from made(offered, offered.provider.check, "its check", spec, facts)


def compare(
    spec: Spec, facts: Facts, bounds: Sequence[Finding | Series], comparisons: Sequence[Offered]
) -> tuple[list[Finding | Series], list[tuple[Offered, list[Finding]]]]:
    """The bounds with the series of the comparisons, and the findings of each comparison."""
    extended, findings = list(bounds), []
    for offered in comparisons:
        outcomes = list(made(offered, offered.provider.compare, "its comparison", spec, facts, tuple(extended)))
        findings.append((offered, [outcome for outcome in outcomes if isinstance(outcome, Finding)]))
        for outcome in outcomes:
            if isinstance(outcome, Series):
                _add(outcome, extended, offered)
            elif not isinstance(outcome, Finding):
                raise misbehaved(offered, f"it yields a {type(outcome).__name__}, not a Finding or Series")
    return extended, findings


def _add(series: Series, bounds: list[Finding | Series], offered: Offered) -> None:
    """Append a series, or replace the one of the same name."""
    if is_profile(series):  # the points of profiles are bounds
        raise misbehaved(offered, f"its series {series.name!r} is a privacy profile, which only the mechanism states")
    for position, bound in enumerate(bounds):
        if isinstance(bound, Series) and bound.name == series.name:
            if changed := [name for name, values in bound.columns.items() if series.columns.get(name) != values]:
                raise misbehaved(offered, f"it changes the column {changed[0]!r} of the series {series.name!r}")
            bounds[position] = series
            return
    bounds.append(series)
