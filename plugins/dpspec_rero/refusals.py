"""What this plugin refuses, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_rero.attack_refusals import attack_refusals
from dpspec_rero.prior import candidates

#: More draws than this would take hours.
MAX_DRAWS = 4_000_000_000

#: The norm that each noise is calibrated to.
_NORMS = {"gaussian": "l2", "laplace": "l1"}

#: Ways of drawing batches that no theorem here covers.
_SCHEMES = {"fixed": "batches of a fixed size", "shuffled": "shuffled batches"}


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands, and warnings about what it will show."""
    yield from _scope(spec)
    for number, phase in enumerate(spec.phases):
        yield from _phase(spec, number, phase)
    yield from _methods(spec)
    yield from _prior(spec, facts)
    yield from _claims(spec)
    if spec.audit is not None:
        yield from attack_refusals(spec, facts)


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    help = "Kaissis et al. 2023 compare the presence of the record with its absence"
    yield from dps.other_adjacencies(spec, "add-remove", "the reconstruction theory", help)
    if max(spec.threat_model.group_size) > 1:
        yield dps.Diagnostic(
            code="unsupported",
            message="the reconstruction theory is about one record, not about groups",
            path=("threat_model", "group_size"),
            help="audit groups with mechanism.kind group",
        )


def _phase(spec: dps.Spec, number: int, phase: dps.FrozenMap) -> Iterator[dps.Diagnostic]:
    noise = str(phase.get("noise", "gaussian"))
    norm = _NORMS[noise]
    if noise == "laplace" and "noise_multiplier" in phase:
        yield dps.Diagnostic(
            code="unsupported",
            message="clip_norm bounds the l2 norm; Laplace noise needs the l1 sensitivity",
            path=dps.in_phase(spec, number, "clip_norm"),
            help="write scale: ... and sensitivity: {l1: ...}; d clipped numbers have l1 <= sqrt(d) clip_norm",
        )
    elif "sensitivity" in phase and norm not in phase["sensitivity"]:
        (other,) = phase["sensitivity"]
        yield dps.Diagnostic(
            code="unsupported",
            message=f"{noise.capitalize()} noise needs the {norm} sensitivity, not the {other} one",
            path=dps.in_phase(spec, number, "sensitivity", other),
            help="a vector of d numbers has l2 <= l1 <= sqrt(d) l2: give the bound in the norm that the noise needs",
        )
    scheme = phase["sampling"]["scheme"]
    if scheme in _SCHEMES:
        yield dps.Diagnostic(
            code="unsupported",
            message=f"the reconstruction theory covers Poisson sampling and full batches, not {_SCHEMES[scheme]}",
            path=dps.in_phase(spec, number, "sampling", "scheme"),
            help="write sampling: {scheme: poisson, rate: ...}, if that is how batches are drawn",
        )
    size = "noise_multiplier" if "noise_multiplier" in phase else "scale"
    if float(phase[size]) == 0.0:
        yield dps.Diagnostic(
            code="no-noise",
            message="without noise a record that is drawn is seen as it is",
            path=dps.in_phase(spec, number, size),
            severity="warning",
        )


def _methods(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    laplace = any(phase.get("noise") == "laplace" for phase in spec.phases)
    for i, name in enumerate(spec.mechanism.get("baselines", ())):
        if laplace and name in ("clt-printed", "contour"):
            yield dps.Diagnostic(
                code="unsupported",
                message=f"{name} is for Gaussian noise only",
                path=("mechanism", "baselines", i),
                help="leave it out",
            )
    options = spec.mechanism.get("monte_carlo")
    if options is not None and int(options["samples"]) * spec.steps > MAX_DRAWS:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"{options['samples']} samples of {spec.steps} steps are more than the {MAX_DRAWS:.0e} draws that "
            "can be made in minutes",
            path=("mechanism", "monte_carlo", "samples"),
            help="take fewer samples; the certified bound needs none",
        )


def _prior(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    chosen = candidates(spec.threat_model.options)
    prior = spec.threat_model.options.get("prior") or {}
    where: dps.Path = ("threat_model", "prior")
    if chosen is None:
        for key in ("from", "probabilities", "top"):
            if key in prior and (key != "from" or prior[key] != "all") and (key != "top" or prior[key] != 1):
                yield dps.Diagnostic(
                    code="missing-key",
                    message=f"missing key 'candidates' in threat_model.prior, which {key!r} speaks of",
                    path=where,
                )
        return
    told_apart = facts.features * facts.classes
    if chosen.source == "planted" and chosen.count > told_apart:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"{chosen.count} planted candidates: {facts.features} features and {facts.classes} classes tell "
            f"{told_apart} records apart",
            path=(*where, "candidates"),
        )
    elif chosen.source != "planted" and chosen.count > facts.records:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"{chosen.count} candidates cannot be chosen from {facts.records} training records",
            path=(*where, "candidates"),
        )
    elif chosen.source == "same-class" and chosen.count > math.ceil(facts.records / max(1, facts.classes)):
        yield dps.Diagnostic(
            code="bad-value",
            message=f"{chosen.count} candidates of one class: of {facts.records} records in {facts.classes} classes, "
            f"the largest is only sure to have {math.ceil(facts.records / max(1, facts.classes))}",
            path=(*where, "candidates"),
            help="write from: all, or ask for fewer",
        )
    if chosen.masses is not None and len(chosen.masses) != chosen.count:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"{len(chosen.masses)} probabilities for {chosen.count} candidates",
            path=(*where, "probabilities"),
        )
    elif chosen.masses is not None and abs(math.fsum(chosen.masses) - 1.0) > 1e-9:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"the probabilities must sum to 1, got {math.fsum(chosen.masses):g}",
            path=(*where, "probabilities"),
        )
    if chosen.top >= chosen.count:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"top must be below the number of candidates, got {chosen.top} of {chosen.count}",
            path=(*where, "top"),
        )


def _claims(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    gaussian = any(phase.get("noise", "gaussian") == "gaussian" for phase in spec.phases)
    for i, claim in enumerate(spec.claims):
        if claim.kind == "pure-dp" and gaussian:
            yield dps.Diagnostic(
                code="unsupported",
                message="with Gaussian noise no epsilon holds at delta 0",
                path=("claims", i, "kind"),
                help="claim approx-dp at some delta",
            )
        if claim.kind == "rero" and float(claim["gamma"]) < float(claim["kappa"]):
            yield dps.Diagnostic(
                code="bad-value",
                message=f"gamma {claim['gamma']:g} is below kappa {claim['kappa']:g}, which guessing reaches",
                path=("claims", i, "gamma"),
                help="claim a gamma of at least kappa",
            )
