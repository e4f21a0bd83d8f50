"""What this plugin refuses, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_group.attack_refusals import attack_refusals

#: Less noise than this, in clip norms, is a slip of the pen, and beyond what the accounting computes with.
LEAST_NOISE = 1e-6


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands, and warnings about what it will show."""
    help = "Ganesh 2024 bounds groups that are added or removed; replacing a group is not covered"
    yield from dps.other_adjacencies(spec, "add-remove", "the group theory", help)
    yield from _sizes(spec, facts)
    yield from _mechanism(spec, facts)
    if spec.audit is not None:
        yield from attack_refusals(spec, facts)


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
    for i, phase in enumerate(spec.phases):
        sampling = phase["sampling"]
        if sampling["scheme"] == "shuffled":
            yield dps.Diagnostic(
                code="unsupported",
                message="no theorem here covers shuffled batches: those of one epoch depend on each other",
                path=dps.in_phase(spec, i, "sampling", "scheme"),
                help="train with poisson or fixed sampling; the bound for one does not hold for the other",
            )
        if sampling["scheme"] == "fixed" and int(sampling["batch_size"]) > facts.records - largest:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"batch_size {sampling['batch_size']} is more than the {facts.records - largest} records that "
                f"are left without a group of {largest}",
                path=dps.in_phase(spec, i, "sampling", "batch_size"),
            )
        if 0.0 < float(phase["noise_multiplier"]) < LEAST_NOISE:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"noise_multiplier must be 0 or at least {LEAST_NOISE:g}, got {phase['noise_multiplier']:g}",
                path=dps.in_phase(spec, i, "noise_multiplier"),
                help="less noise than that hides nothing: epsilon is beyond any number that means something",
            )
        if float(phase["noise_multiplier"]) == 0.0:
            yield dps.Diagnostic(
                code="no-noise",
                message="without noise epsilon is infinite",
                path=dps.in_phase(spec, i, "noise_multiplier"),
                severity="warning",
            )
