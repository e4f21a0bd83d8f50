"""What the adversary knows before it sees anything: baselines kappa, or candidates with their probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import dpspec.contract as dps

#: The baselines of the findings where the spec names none.
KAPPAS = (1e-6, 1e-4, 1e-2)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The records among which the adversary chooses.

    count: how many there are; source: ``all`` records, the ``same-class`` ones, or ``planted`` ones, made to be told
    apart; masses: the prior, (count,), or None for a uniform one; top: the adversary wins if the target is among its
    ``top`` best candidates.
    """

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


def candidates(threat_model: dps.FrozenMap) -> Candidates | None:
    """The candidates that a threat model's ``prior`` declares; None where it declares none."""
    prior = threat_model.get("prior") or {}
    if "candidates" not in prior:
        return None
    masses = prior.get("probabilities")
    return Candidates(
        count=int(prior["candidates"]),
        source=prior.get("from", "all"),
        masses=None if masses is None else tuple(float(mass) for mass in masses),
        top=int(prior.get("top", 1)),
    )


def kappas(spec: dps.Spec) -> list[float]:
    """Every baseline that the threat model or a claim names, ascending; ``KAPPAS`` where nothing does."""
    prior = spec.threat_model.options.get("prior") or {}
    named = prior.get("kappa", ())
    wanted = {float(kappa) for kappa in (named if isinstance(named, tuple) else (named,))}
    wanted |= {float(claim["kappa"]) for claim in spec.claims if claim.kind == "rero"}
    chosen = candidates(spec.threat_model.options)
    if chosen is not None:
        wanted.add(chosen.kappa)
    return sorted(wanted or KAPPAS)
