"""What this plugin refuses, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_group.attack_refusals import attack_refusals


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands, and warnings about what it will show."""
    yield from _scope(spec)
    yield from _sizes(spec, facts)
    yield from _mechanism(spec, facts)
    if spec.audit is not None:
        yield from attack_refusals(spec, facts)


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    named: list[tuple[dps.Path, str]] = [(("threat_model", "adjacency"), spec.threat_model.adjacency)]
    named += [
        (("claims", i, "adjacency"), c.adjacency)
        for i, c in enumerate(spec.claims)
        if c.adjacency != spec.threat_model.adjacency
    ]
    for path, adjacency in named:
        if adjacency != "add-remove":
            yield dps.Diagnostic(
                code="unsupported",
                message=f"the group theory covers add-remove adjacency only, not {adjacency}",
                path=path,
                help="Ganesh 2024 bounds groups that are added or removed; replacing a group is not covered",
            )


def _sizes(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    named = [(("threat_model", "group_size"), size) for size in spec.threat_model.group_size]
    named += [(("claims", i, "group_size"), c.group_size) for i, c in enumerate(spec.claims)]  # type: ignore[misc]
    seen: set[tuple[dps.Path, int]] = set()
    for path, size in named:
        if size > facts.records and (path, size) not in seen:
            seen.add((path, size))
            yield dps.Diagnostic(
                code="group-too-large",
                message=f"a group of {size} records does not fit into {facts.records} training records",
                path=path,
            )


def _mechanism(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    largest = max([*spec.threat_model.group_size, *(c.group_size for c in spec.claims)])
    phases = spec.mechanism.get("phases")
    for i, phase in enumerate(spec.phases):

        def at(*keys: str, i: int = i) -> dps.Path:
            here = phases is not None and keys[0] in phases[i]
            return ("mechanism", "phases", i, *keys) if here else ("mechanism", *keys)

        sampling = phase["sampling"]
        if sampling["scheme"] == "shuffled":
            yield dps.Diagnostic(
                code="unsupported",
                message="no theorem here covers shuffled batches: those of one epoch depend on each other",
                path=at("sampling", "scheme"),
                help="train with poisson or fixed sampling; the bound for one does not hold for the other",
            )
        if sampling["scheme"] == "fixed" and int(sampling["batch_size"]) > facts.records - largest:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"batch_size {sampling['batch_size']} is more than the {facts.records - largest} records that "
                f"are left without a group of {largest}",
                path=at("sampling", "batch_size"),
            )
        if float(phase["noise_multiplier"]) == 0.0:
            yield dps.Diagnostic(
                code="no-noise",
                message="without noise epsilon is infinite",
                path=at("noise_multiplier"),
                severity="warning",
            )
