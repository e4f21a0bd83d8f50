"""The steps of the reconstruction audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import dpspec.contract as dps
from dpspec_rero.refusals import refusals

#: Keys of the mechanism that only bounds read.
_BOUNDS_ONLY = ("baselines", "edgeworth_order", "monte_carlo", "noise_factors")


class ReroAudit(dps.Audit):
    """Upper bounds on reconstruction from hypothesis testing."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """What the theory does not cover, and what cannot be trained or attacked."""
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        """gamma at every baseline by every method, membership beside it, and both as tables."""
        from dpspec_rero import bounds, tables
        from dpspec_rero.certified import Certified
        from dpspec_rero.compare import DEFAULT_DELTA, compare
        from dpspec_rero.prior import kappas
        from dpspec_rero.steps import declared

        phases = declared(spec.phases)
        leak = Certified(phases)
        wanted = kappas(spec)
        whole = sorted({*wanted, *tables.CURVE})
        delta = (bounds.claimed_deltas(spec) or [DEFAULT_DELTA])[-1]
        context.progress(0, 4, "gamma")
        certified = leak.gammas(whole)
        context.progress(1, 4, "baselines")
        found = compare(spec, phases, whole, certified, delta)
        confidence = (spec.mechanism.get("monte_carlo") or {}).get("confidence")
        yield from bounds.gamma_findings(leak, found.only(wanted), confidence)
        yield bounds.prior_finding(leak)
        context.progress(2, 4, "membership")
        yield from bounds.membership_findings(spec, leak)
        yield tables.curve_series(leak, found)
        context.progress(3, 4, "tables")
        factors = spec.mechanism.get("noise_factors")
        if factors:
            yield tables.noise_series(spec, phases, wanted, factors)
        context.progress(4, 4, "tables")

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: baselines, and parts of the threat model."""
        inputs = super().trial_inputs(spec)
        mechanism = {key: value for key, value in inputs["mechanism"].items() if key not in _BOUNDS_ONLY}
        threat = {key: inputs["threat_model"].get(key) for key in ("adjacency", "access", "prior")}
        if threat["prior"] is not None:
            threat["prior"] = {key: value for key, value in threat["prior"].items() if key not in ("kappa", "top")}
        return dps.FrozenMap({**inputs, "mechanism": mechanism, "threat_model": threat})
