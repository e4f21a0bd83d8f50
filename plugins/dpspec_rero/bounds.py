"""Findings from theory: gamma at each baseline by every method, and what the same noise means for membership."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dpspec.contract as dps
from dpspec.accounting.interval import Interval
from dpspec.accounting.rigor import library_accuracy
from dpspec_rero import clt, contour, edgeworth, montecarlo, renyi, theory
from dpspec_rero.certified import Certified
from dpspec_rero.compare import DEFAULT_DELTA, Comparison
from dpspec_rero.steps import Steps

#: False-positive rates at which membership is shown where no claim names one.
FPRS = (1e-3, 1e-1)

#: The gamma whose baseline is looked for.
HALF = 0.5

_ASSUMPTIONS = (
    dps.Assumption(name="noise-scale", status="declared", text="noise of the declared law and scale in every step"),
    dps.Assumption(name="fresh-noise", status="declared", text="noise is independent across steps"),
    dps.Assumption(name="clipping", status="declared", text="no record moves a step by more than the sensitivity"),
    dps.Assumption(
        name="sampling", status="declared", text="batches are drawn by the declared scheme, afresh each step"
    ),
    dps.Assumption(name="steps", status="declared", text="exactly the declared number of steps is made"),
    dps.Assumption(name="public-constants", status="declared", text="rate, divisor and schedule do not depend on rows"),
)


@dataclass(frozen=True)
class _Method:
    """How a baseline is reported: as which bound, of which rigor, from where."""

    bound: dps.findings.Bound
    rigor: dps.findings.Rigor
    source: str
    printed: dps.Printed | None = None


_METHODS = {
    "clt": _Method("estimate", "approximate", clt.SOURCE),
    "clt-printed": _Method(
        "estimate", "approximate", "Kaissis et al. 2023, main text", dps.Printed(refuted=True, reason=clt.MISPRINT)
    ),
    "edgeworth": _Method("estimate", "approximate", edgeworth.SOURCE),
    "contour": _Method("estimate", "approximate", contour.SOURCE),
    "rdp": _Method("upper", "theorem", renyi.SOURCE),
    "epsilon-delta": _Method("upper", "theorem", theory.THEOREM, dps.Printed(refuted=False)),
    "epsilon-delta-both": _Method("upper", "theorem", f"{theory.THEOREM}, from both directions"),
    "symmetrised": _Method("upper", "theorem", f"{theory.THEOREM}, of the symmetrised curve"),
}


def gamma_findings(leak: Certified, found: Comparison, confidence: float | None) -> Iterator[dps.Finding]:
    """gamma at each baseline of ``found``: the certified bound, then what was asked to stand beside it."""
    for at, (kappa, interval) in enumerate(zip(found.kappas, found.certified, strict=True)):
        yield _finding("gamma", interval, at={"kappa": kappa}, method=leak.method, source=leak.source)
        for name, values in found.others.items():
            value, method = values[at], _METHODS.get(name)
            if value is not None and method is not None:
                yield _gamma(kappa, value, name, method)
        if found.drawn:
            drawn = found.drawn[at]
            yield _gamma(kappa, drawn.value, "monte-carlo", _Method("estimate", "approximate", montecarlo.SOURCE))
            yield _finding(
                "gamma",
                drawn.interval,
                at={"kappa": kappa},
                method="monte-carlo",
                source=montecarlo.INTERVAL_SOURCE,
                rigor="statistical",
                confidence=confidence,
            )


def prior_finding(leak: Certified) -> dps.Finding:
    """The baseline from which on gamma may reach one half: below it, reconstruction fails more often than not."""
    prior = leak.prior(HALF)
    return dps.Finding(
        quantity="prior",
        value=prior.lower,
        bound="lower",
        rigor="certified",
        at=dps.FrozenMap({"gamma": HALF}),
        scope=_scope("both"),
        method=leak.method,
        source=leak.source,
        assumptions=(*_ASSUMPTIONS, library_accuracy()),
    )


def membership_findings(spec: dps.Spec, leak: Certified) -> Iterator[dps.Finding]:
    """Epsilon, the advantage, and true-positive at false-positive rates, in every direction that is asked for."""
    directions = sorted({claim.direction for claim in spec.claims} | {spec.threat_model.direction})
    for direction in directions:
        deltas = claimed_deltas(spec) or [DEFAULT_DELTA]
        for delta, epsilon in zip(deltas, leak.epsilons(deltas, direction), strict=True):
            yield _finding("epsilon", epsilon, at={"delta": delta}, direction=direction)
        fprs = claimed_fprs(spec) or list(FPRS)
        for fpr, tpr in zip(fprs, leak.tprs(fprs, direction), strict=True):
            yield _finding("tpr", tpr, at={"fpr": fpr}, direction=direction)
    yield _finding("advantage", leak.advantage())
    yield from _pure(leak.phases)


def claimed_deltas(spec: dps.Spec) -> list[float]:
    """The deltas that claims name, ascending."""
    return sorted({float(claim["delta"]) for claim in spec.claims if claim.kind == "approx-dp"})


def claimed_fprs(spec: dps.Spec) -> list[float]:
    """The false-positive rates, above 0, that claims name, ascending."""
    points = [p for claim in spec.claims if claim.kind == "tradeoff" for p in claim["points"]]
    points += [claim.options for claim in spec.claims if claim.kind == "membership" and "fpr" in claim.options]
    return sorted({float(point["fpr"]) for point in points} - {0.0})


def _pure(phases: Sequence[Steps]) -> Iterator[dps.Finding]:
    """Epsilon at delta 0, where all noise is Laplace: our sum over the steps, and the form that the paper prints."""
    epsilon = theory.pure_epsilon(phases)
    if epsilon == float("inf"):
        return
    source = "Balle, Barthe and Gaboardi 2018, Theorem 9; Dwork and Roth 2014, Theorem 3.16"
    sum_of_steps = Interval(epsilon, epsilon)
    yield _finding("epsilon", sum_of_steps, at={"delta": 0.0}, method="sum over steps", source=source, rigor="theorem")
    if len(phases) == 1:
        yield dps.Finding(
            quantity="epsilon",
            value=theory.printed_pure_epsilon(phases),
            bound="upper",
            rigor="theorem",
            at=dps.FrozenMap({"delta": 0.0}),
            scope=_scope("both"),
            method="as if sampled once",
            source="Kaissis et al. 2023",
            printed=dps.Printed(
                refuted=False, reason="a bound, but it treats N steps as if the record were drawn once"
            ),
            assumptions=_ASSUMPTIONS,
        )


def _gamma(kappa: float, value: float, name: str, method: _Method) -> dps.Finding:
    return dps.Finding(
        quantity="gamma",
        value=value,
        bound=method.bound,
        rigor=method.rigor,
        at=dps.FrozenMap({"kappa": kappa}),
        scope=_scope("both"),
        method=name,
        source=method.source,
        printed=method.printed,
        assumptions=_ASSUMPTIONS,
    )


def _finding(
    quantity: str,
    interval: Interval,
    *,
    at: dict[str, dps.Json] | None = None,
    direction: str = "both",
    method: str = "pld/connect-the-dots",
    source: str = "Kaissis et al. 2023; Dong, Roth and Su 2022",
    rigor: dps.findings.Rigor = "certified",
    confidence: float | None = None,
) -> dps.Finding:
    return dps.Finding(
        quantity=quantity,
        value=interval.upper,
        lower=interval.lower,
        bound="upper",
        rigor=rigor,
        at=dps.FrozenMap(at or {}),
        scope=_scope(direction),
        method=method,
        source=source,
        confidence=confidence,
        assumptions=(*_ASSUMPTIONS, library_accuracy()) if rigor == "certified" else _ASSUMPTIONS,
    )


def _scope(direction: str) -> dps.Scope:
    return dps.Scope(direction=direction, access="all-iterates", adversary="gradient")
