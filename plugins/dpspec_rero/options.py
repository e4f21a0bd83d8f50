"""Typed options of a spec, and located messages for specs that the theory or the attack does not cover."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import dpspec.contract as dps
from dpspec import decimals, kit
from dpspec.contract.fragments import LEAST_CLIP_NORM, MOST_CLIP_NORM
from dpspec.training.providers import updates_invertible

Noise: TypeAlias = Literal["gaussian", "laplace"]

#: Effect size above which a step counts as noiseless.
NO_NOISE = 1e100

#: Baselines of the findings if the spec names none.
KAPPAS = (1e-6, 1e-4, 1e-2)


@dataclass(frozen=True, kw_only=True)
class Steps(kit.Options):
    """``count`` queries of one effect size, each on a Poisson sample with inclusion probability ``rate``.

    ``effect`` is sensitivity / scale, infinite without noise: l2 sensitivity / standard deviation (Gaussian), or l1
    sensitivity / b (Laplace).
    """

    noise: Noise
    effect: float
    rate: float
    count: int

    @classmethod
    def read(cls, block: dps.FrozenMap) -> "Steps":
        phase = dps.Phase.of(block)
        if "noise_multiplier" in phase:
            scale, sensitivity = phase.noise_multiplier, 1.0
        else:
            scale, sensitivity = float(phase["scale"]), _sensitivity(phase)
        return cls(
            noise=phase.get("noise", "gaussian"),
            effect=sensitivity / scale if scale > 0.0 else math.inf,
            rate=phase.sampling.rate or 1.0,
            count=phase.steps,
        )


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The adversary wins if the target is among the ``top`` best candidates. ``masses`` None is a uniform prior."""

    count: int
    source: Literal["all", "same-class", "planted"] = "all"
    masses: tuple[float, ...] | None = None
    top: int = 1

    @property
    def kappa(self) -> float:
        """The success of the best guess without the release: the sum of the ``top`` largest masses."""
        if self.masses is None:
            return min(1.0, self.top / self.count)
        return min(1.0, math.fsum(sorted(self.masses, reverse=True)[: self.top]))


@dataclass(frozen=True, kw_only=True)
class Prior(kit.Options):
    candidates: Candidates | None
    kappas: tuple[float, ...]

    @classmethod
    def read(cls, block: dps.FrozenMap) -> "Prior":
        prior = block.get("prior") or {}
        named, masses = prior.get("kappa", ()), prior.get("probabilities")
        candidates = None
        if "candidates" in prior:
            candidates = Candidates(
                count=int(prior["candidates"]),
                source=prior.get("from", "all"),
                masses=None if masses is None else tuple(float(mass) for mass in masses),
                top=int(prior.get("top", 1)),
            )
        kappas = tuple(float(kappa) for kappa in (named if isinstance(named, tuple) else (named,)))
        return cls(candidates=candidates, kappas=kappas)


def revealed_probability(phases: Sequence[Steps]) -> float:
    logs = [(phase.count, phase.rate) for phase in phases if phase.effect > NO_NOISE]
    return -math.expm1(sum(count * math.log1p(-rate) if rate < 1.0 else -math.inf for count, rate in logs))


def noisy_steps(phases: Sequence[Steps]) -> tuple[Steps, ...]:
    return tuple(phase for phase in phases if phase.effect <= NO_NOISE)


def trained_phases(phases: Sequence[dps.Phase]) -> tuple[dps.Phase, ...]:
    """Replace ``sensitivity`` and ``scale`` by ``clip_norm`` and ``noise_multiplier``.

    The clip norm is in the norm that calibrates the noise; Laplace noise has sqrt(2) times its scale as deviation.
    """
    return tuple(phase.typed(_trained) for phase in phases)


def adds_laplace(phases: Sequence[dps.FrozenMap]) -> bool:
    """True if the phases use Laplace noise. All trained phases use the same distribution."""
    return phases[0].get("noise") == "laplace"


def _trained(block: dps.FrozenMap) -> dps.Phase:
    phase = dps.Phase.of(block)
    keys = {key: value for key, value in phase.items() if key not in ("scale", "sensitivity")}
    if "scale" in phase:
        clip_norm = _sensitivity(phase)
        deviation = float(phase["scale"]) * (math.sqrt(2.0) if phase.noise == "laplace" else 1.0)
        keys |= {"clip_norm": clip_norm, "noise_multiplier": deviation / clip_norm}
    return dps.Phase({**keys, "noise": phase.noise})


def _sensitivity(phase: dps.Phase) -> float:
    """The only number of the block ``sensitivity``, in the l1 or the l2 norm."""
    return float(next(iter(phase["sensitivity"].values())))


#: The norm that each noise is calibrated to.
_NORMS = {"gaussian": "l2", "laplace": "l1"}


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    yield from _scope(spec)
    for number, phase in enumerate(spec.phases):
        yield from _phase(spec, number, phase)
    yield from _prior(spec, facts)
    yield from _claims(spec)
    if spec.audit is not None:
        yield from _attack(spec, facts)


def _scope(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    yield from dps.other_adjacencies(
        spec, "add-remove", "the reconstruction theory", "write threat_model: {adjacency: add-remove}"
    )
    if max(spec.threat_model.group_size) > 1:
        path: dps.Path = ("threat_model", "group_size")
        yield kit.unsupported("the theory covers single records, not groups", path, "use mechanism.kind group")


def _phase(spec: dps.Spec, number: int, phase: dps.Phase) -> Iterator[dps.Diagnostic]:
    noise = phase.noise
    norm = _NORMS[noise]
    if noise == "laplace" and "noise_multiplier" in phase:
        message = "clip_norm bounds the l2 norm; Laplace noise needs the l1 sensitivity"
        help = "write scale: ... and sensitivity: {l1: ...}; d clipped numbers have l1 <= sqrt(d) clip_norm"
        yield kit.unsupported(message, dps.in_phase(spec, number, "clip_norm"), help)
    elif "sensitivity" in phase and norm not in phase["sensitivity"]:
        (given_norm,) = phase["sensitivity"]
        message = f"{noise.capitalize()} noise needs the {norm} sensitivity, not the {given_norm} one"
        help = "a vector of d numbers has l2 <= l1 <= sqrt(d) l2: give the bound in the norm that the noise needs"
        yield kit.unsupported(message, dps.in_phase(spec, number, "sensitivity", given_norm), help)
    yield from kit.other_scheme(
        spec,
        number,
        dps.Sampling.INDEPENDENT,
        "the reconstruction theory covers Poisson sampling and full batches, not {batches}",
        "write sampling: {scheme: poisson, rate: ...}, if that is how batches are drawn",
    )
    size = "noise_multiplier" if "noise_multiplier" in phase else "scale"
    if float(phase[size]) == 0.0:
        path, message = dps.in_phase(spec, number, size), "without noise every record that is drawn is revealed"
        yield dps.Diagnostic(code="no-noise", message=message, path=path, severity="warning")


def _prior(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    candidates = Prior.of(spec.threat_model.options).candidates
    prior = spec.threat_model.options.get("prior") or {}
    where: dps.Path = ("threat_model", "prior")
    if candidates is None:
        for key in ("from", "probabilities", "top"):
            if key in prior and (key != "from" or prior[key] != "all") and (key != "top" or prior[key] != 1):
                message = f"threat_model.prior.candidates is required when {key!r} is set"
                yield dps.Diagnostic(code="missing-key", message=message, path=where)
        return
    count, masses, kind = candidates.count, candidates.masses or (), candidates.source
    distinct, per_class = facts.features * facts.classes, math.ceil(facts.records / max(1, facts.classes))
    most, what = facts.records, "records"
    if kind == "planted":
        most, what = distinct, "features * classes"
    elif kind == "same-class" and count <= facts.records:
        most, what = per_class, "records / classes"
    total = math.fsum(masses)
    sum_in_words = decimals.exact(total)
    refused = (
        (count > most, "candidates", f"must be at most {what} = {most}, got {count}"),
        (masses and len(masses) != count, "probabilities", f"must be a list of {count}, got {len(masses)}"),
        (len(masses) == count and abs(total - 1.0) > 1e-9, "probabilities", f"must sum to 1, got {sum_in_words}"),
        (candidates.top >= count, "top", f"must be below the {count} candidates, got {candidates.top}"),
    )
    for wrong, key, message in refused:
        if wrong:
            yield kit.bad_value(f"{key} {message}", (*where, key))


def _claims(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    gaussian = any(phase.noise == "gaussian" for phase in spec.phases)
    for i, claim in enumerate(spec.claims):
        if claim.kind == "pure-dp" and gaussian:
            message = "Gaussian noise has no finite epsilon at delta 0"
            yield kit.unsupported(message, ("claims", i, "kind"), "claim approx-dp at some delta")
        if claim.kind == "rero" and float(claim["gamma"]) < float(claim["kappa"]):
            gamma, kappa = (decimals.exact(float(claim[key])) for key in ("gamma", "kappa"))
            message = f"gamma must be at least kappa {kappa}, got {gamma}"
            yield kit.bad_value(message, ("claims", i, "gamma"))


def _attack(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    if spec.audit.method != "many-run":
        message = f"audit.method must be many-run (every target needs a separate run), got {spec.audit.method}"
        yield kit.unsupported(message, ("audit", "method"))
    if "canary" in spec.audit.options:
        message = "audit.canary does not apply: threat_model.prior declares the candidates"
        yield kit.unsupported(message, ("audit", "canary"), "leave it out")
    if Prior.of(spec.threat_model.options).candidates is None:
        yield dps.Diagnostic(
            code="missing-key",
            message="threat_model.prior.candidates is required when audit is set",
            path=("threat_model", "prior") if "prior" in spec.threat_model.options else ("threat_model",),
            help="for example prior: {candidates: 16}; or leave audit out for bounds only",
        )
    for number, phase in enumerate(trained_phases(spec.phases)):
        key = "scale" if "scale" in spec.phases[number] else "noise_multiplier"
        yield from kit.too_little_noise(phase.noise_multiplier, dps.in_phase(spec, number, key))
        if not LEAST_CLIP_NORM <= phase.clip_norm <= MOST_CLIP_NORM:
            message = f"training needs a sensitivity from {LEAST_CLIP_NORM:g} to {MOST_CLIP_NORM:g}, got "
            message += f"{phase.clip_norm:g}"
            path = dps.in_phase(spec, number, "sensitivity")
            yield kit.bad_value(message, path, "rescale sensitivity, scale and learning_rate, or leave audit out")
    noises = [phase.noise for phase in spec.phases]
    for number, noise in enumerate(noises):
        if noise != noises[0]:
            message = f"all phases of an audit must use the same noise distribution, got {noises[0]} and {noise}"
            yield kit.unsupported(message, dps.in_phase(spec, number, "noise"), "leave audit out")
    iterates = spec.threat_model.access == "all-iterates"
    if iterates and not updates_invertible(spec.training.options):
        message = "the attack inverts every update, and Adam's cannot be inverted"
        help = "use sgd or momentum; the bound holds for any optimizer"
        yield kit.unsupported(message, ("training", "optimizer"), help)
    needs = ["iterates"]
    if iterates and not all(phase.sampling.is_full for phase in spec.phases):
        needs.append("sampling-log")
    if "laplace" in noises:
        # Gradients are scaled to an l1 norm by a part of this plugin.
        needs.append("parts")
    yield from dps.untrainable(spec, facts, needs)
