"""Typed options of a spec: steps for theory and training, and the adversary's prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import dpspec.contract as dps
from dpspec import kit

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
    def read(cls, block: dps.FrozenMap) -> Steps:
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
    def read(cls, block: dps.FrozenMap) -> Prior:
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


@dataclass(frozen=True, kw_only=True)
class MonteCarlo(kit.Options):
    samples: int
    seed: int
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Comparisons(kit.Options):
    baselines: tuple[str, ...] = ()
    edgeworth_order: int | None = None
    monte_carlo: MonteCarlo | None = None
    noise_factors: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()


def declared_steps(phases: Sequence[dps.Phase]) -> tuple[Steps, ...]:
    return tuple(Steps.of(phase) for phase in phases)


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


def read_candidates(threat_model: dps.FrozenMap) -> Candidates | None:
    return Prior.of(threat_model).candidates


def _trained(block: dps.FrozenMap) -> dps.Phase:
    phase = dps.Phase.of(block)
    rest = {key: value for key, value in phase.items() if key not in ("scale", "sensitivity")}
    if "scale" in phase:
        clip_norm = _sensitivity(phase)
        deviation = float(phase["scale"]) * (math.sqrt(2.0) if phase.noise == "laplace" else 1.0)
        rest |= {"clip_norm": clip_norm, "noise_multiplier": deviation / clip_norm}
    return dps.Phase({**rest, "noise": phase.noise})


def _sensitivity(phase: dps.Phase) -> float:
    """The only number of the block ``sensitivity``, in the l1 or the l2 norm."""
    return float(next(iter(phase["sensitivity"].values())))
