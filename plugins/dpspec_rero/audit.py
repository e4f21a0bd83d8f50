"""The steps of the reconstruction audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dpspec.contract as dps
from dpspec_rero.refusals import refusals

#: Keys of the mechanism that only bounds read.
_BOUNDS_ONLY = ("baselines", "edgeworth_order", "monte_carlo", "noise_factors", "rates")

#: Runs that train together at most, and the bytes that their records may take.
_TOGETHER, _ROWS_BYTES = 64, 1 << 28

#: Rough cost of training on one core: floating-point operations per second reached, and overhead per step.
_FLOPS, _STEP_SECONDS = 4e9, 2e-3


class ReroAudit(dps.Audit):
    """Upper bounds on reconstruction from hypothesis testing, lower ones from naming a hidden record."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """What the theory does not cover, and what cannot be trained or attacked."""
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        """gamma at every baseline by every method, membership beside it, and both as tables."""
        from dpspec_rero import bounds, rates, tables
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
        others = spec.mechanism.get("rates")
        by_rate = rates.rates_series(phases, tables.CURVE[1::3], others, delta) if others else None
        if by_rate is not None:
            yield by_rate
        context.progress(4, 4, "tables")

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One trial per run, many runs at a time; what that many could show."""
        from dpspec.stats import binomial
        from dpspec_rero.executed import laplace
        from dpspec_rero.prior import candidates

        assert spec.audit is not None
        chosen = candidates(spec.threat_model.options)
        assert chosen is not None
        runs, parameters = spec.audit.runs, facts.parameters or 0
        row = 4 * max(1, facts.features)
        made = chosen.count if chosen.source == "planted" else 0
        most = 1 if laplace(spec.phases) else _TOGETHER
        together = max(1, min(most, _ROWS_BYTES // (row * (facts.records + made))))
        rate = max(float(p["sampling"].get("rate", 1.0)) for p in spec.phases)
        gradients = 2.0 * rate * facts.records + chosen.count
        return dps.Plan(
            chunks=tuple(tuple(range(i, min(i + together, runs))) for i in range(0, runs, together)),
            seconds=runs * spec.steps * (6.0 * parameters * gradients / _FLOPS + _STEP_SECONDS / together),
            memory_bytes=3 * together * row * facts.records + (1 << 29),
            notes=(
                f"{runs} trials that all name the target show gamma >= "
                f"{binomial.lower(runs, runs, spec.audit.confidence):.3g} at kappa {chosen.kappa:.3g}",
            ),
        )

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        """Hide a record, train, and rank the candidates: once per index."""
        from dpspec_rero.attack import run_trials

        return run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """How often the target was named, with what follows from it, accuracy, and checks of the pipeline that ran."""
        from dpspec_rero.evidence import checks, outcomes

        yield from outcomes(spec, trials)
        yield from checks(spec, trials)

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: baselines, and parts of the threat model."""
        inputs = super().trial_inputs(spec)
        mechanism = {key: value for key, value in inputs["mechanism"].items() if key not in _BOUNDS_ONLY}
        threat = {key: inputs["threat_model"].get(key) for key in ("adjacency", "access", "prior")}
        if threat["prior"] is not None:
            threat["prior"] = {key: value for key, value in threat["prior"].items() if key not in ("kappa", "top")}
        return dps.FrozenMap({**inputs, "mechanism": mechanism, "threat_model": threat})
