"""Located messages for specs that the theory or the attack does not cover. No torch, data or numerics."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.loop.learning_rates import updates_invertible
from dpspec_rero.options import Comparisons, read_candidates

#: More draws than this would take hours.
MAX_DRAWS = 4_000_000_000

#: The norm that each noise is calibrated to.
_NORMS = {"gaussian": "l2", "laplace": "l1"}


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    yield from _scope(spec)
    for number, phase in enumerate(spec.phases):
        yield from _phase(spec, number, phase)
    yield from _methods(spec)
    yield from _prior(spec, facts)
    yield from _claims(spec)
    if spec.audit is not None:
        yield from _attack(spec, facts)


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    help = "Kaissis et al. 2023 compare the presence of the record with its absence"
    yield from dps.other_adjacencies(spec, "add-remove", "the reconstruction theory", help)
    if max(spec.threat_model.group_size) > 1:
        yield kit.unsupported(
            "the reconstruction theory covers single records, not groups",
            ("threat_model", "group_size"),
            "audit groups with mechanism.kind group",
        )


def _phase(spec: dps.Spec, number: int, phase: dps.Phase) -> Iterator[dps.Diagnostic]:
    noise = phase.noise
    norm = _NORMS[noise]
    if noise == "laplace" and "noise_multiplier" in phase:
        yield kit.unsupported(
            "clip_norm bounds the l2 norm; Laplace noise needs the l1 sensitivity",
            dps.in_phase(spec, number, "clip_norm"),
            "write scale: ... and sensitivity: {l1: ...}; d clipped numbers have l1 <= sqrt(d) clip_norm",
        )
    elif "sensitivity" in phase and norm not in phase["sensitivity"]:
        (other,) = phase["sensitivity"]
        yield kit.unsupported(
            f"{noise.capitalize()} noise needs the {norm} sensitivity, not the {other} one",
            dps.in_phase(spec, number, "sensitivity", other),
            "a vector of d numbers has l2 <= l1 <= sqrt(d) l2: give the bound in the norm that the noise needs",
        )
    yield from kit.other_scheme(
        spec,
        number,
        dps.Sampling.INDEPENDENT,
        "the reconstruction theory covers Poisson sampling and full batches, not {batches}",
        "write sampling: {scheme: poisson, rate: ...}, if that is how batches are drawn",
    )
    size = "noise_multiplier" if "noise_multiplier" in phase else "scale"
    if float(phase[size]) == 0.0:
        yield dps.Diagnostic(
            code="no-noise",
            message="without noise every record that is drawn is revealed",
            path=dps.in_phase(spec, number, size),
            severity="warning",
        )


def _methods(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    laplace, asked = any(phase.noise == "laplace" for phase in spec.phases), Comparisons.of(spec.mechanism.options)
    for i, name in enumerate(asked.baselines):
        if laplace and name in ("clt-printed", "contour"):
            yield kit.unsupported(f"{name} is for Gaussian noise only", ("mechanism", "baselines", i), "leave it out")
    drawn = asked.monte_carlo
    if drawn is not None and drawn.samples * spec.steps > MAX_DRAWS:
        yield kit.bad_value(
            f"{drawn.samples} samples of {spec.steps} steps are above the limit of {MAX_DRAWS:.0e} draws",
            ("mechanism", "monte_carlo", "samples"),
            "take fewer samples; the certified bound needs none",
        )


def _prior(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    candidates = read_candidates(spec.threat_model.options)
    prior = spec.threat_model.options.get("prior") or {}
    where: dps.Path = ("threat_model", "prior")
    if candidates is None:
        for key in ("from", "probabilities", "top"):
            if key in prior and (key != "from" or prior[key] != "all") and (key != "top" or prior[key] != 1):
                yield dps.Diagnostic(
                    code="missing-key",
                    message=f"threat_model.prior.candidates is required when {key!r} is set",
                    path=where,
                )
        return
    distinct, per_class = facts.features * facts.classes, math.ceil(facts.records / max(1, facts.classes))
    if candidates.source == "planted" and candidates.count > distinct:
        yield kit.bad_value(
            f"planted candidates must be at most features * classes = {distinct}, got {candidates.count}",
            (*where, "candidates"),
        )
    elif candidates.source != "planted" and candidates.count > facts.records:
        yield kit.bad_value(
            f"candidates must be at most the {facts.records} training records, got {candidates.count}",
            (*where, "candidates"),
        )
    elif candidates.source == "same-class" and candidates.count > per_class:
        yield kit.bad_value(
            f"candidates of one class must be at most records / classes = {per_class}, got {candidates.count}",
            (*where, "candidates"),
            "write from: all, or reduce candidates",
        )
    if candidates.masses is not None and len(candidates.masses) != candidates.count:
        yield kit.bad_value(
            f"probabilities must be as many as candidates ({candidates.count}), got {len(candidates.masses)}",
            (*where, "probabilities"),
        )
    elif candidates.masses is not None and abs(math.fsum(candidates.masses) - 1.0) > 1e-9:
        yield kit.bad_value(
            f"the probabilities must sum to 1, got {math.fsum(candidates.masses):g}", (*where, "probabilities")
        )
    if candidates.top >= candidates.count:
        yield kit.bad_value(
            f"top must be below the number of candidates, got {candidates.top} of {candidates.count}", (*where, "top")
        )


def _claims(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    gaussian = any(phase.noise == "gaussian" for phase in spec.phases)
    for i, claim in enumerate(spec.claims):
        if claim.kind == "pure-dp" and gaussian:
            yield kit.unsupported(
                "Gaussian noise has no finite epsilon at delta 0",
                ("claims", i, "kind"),
                "claim approx-dp at some delta",
            )
        if claim.kind == "rero" and float(claim["gamma"]) < float(claim["kappa"]):
            yield kit.bad_value(
                f"gamma must be at least kappa {claim['kappa']:g}, got {claim['gamma']:g}", ("claims", i, "gamma")
            )


def _attack(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    if spec.audit.method != "many-run":
        yield kit.unsupported(
            f"audit.method must be many-run (every target needs a separate run), got {spec.audit.method}",
            ("audit", "method"),
        )
    if "canary" in spec.audit.options:
        yield kit.unsupported(
            "audit.canary does not apply: the attack hides one of the candidates",
            ("audit", "canary"),
            "leave it out; threat_model.prior declares the candidates",
        )
    if read_candidates(spec.threat_model.options) is None:
        yield dps.Diagnostic(
            code="missing-key",
            message="threat_model.prior.candidates is required when audit is set",
            path=("threat_model", "prior") if "prior" in spec.threat_model.options else ("threat_model",),
            help="for example prior: {candidates: 16}; or leave audit out for bounds only",
        )
    noises = [phase.noise for phase in spec.phases]
    for number, noise in enumerate(noises):
        if noise != noises[0]:
            yield kit.unsupported(
                f"all phases of an audit must use the same noise distribution, got {noises[0]} and {noise}",
                dps.in_phase(spec, number, "noise"),
                "leave audit out: the bounds hold for any sequence of phases",
            )
    iterates = spec.threat_model.access == "all-iterates"
    if iterates and not updates_invertible(spec.training.options):
        yield kit.unsupported(
            "the attack inverts every update, and Adam's cannot be inverted",
            ("training", "optimizer"),
            "use sgd or momentum; the bound holds for any optimizer",
        )
    needs = ["iterates"]
    if iterates and not all(phase.sampling.is_full for phase in spec.phases):
        needs.append("sampling-log")
    if "laplace" in noises:
        # Gradients are scaled to an l1 norm by a part of this plugin.
        needs.append("parts")
    yield from dps.untrainable(spec, facts, needs)
