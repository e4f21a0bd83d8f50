"""The five steps of the ModelMix audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dpspec.contract as dps
from dpspec_modelmix.refusals import refusals

#: Rough cost of training on one core: floating-point operations per second reached, and overhead per step.
_FLOPS, _STEP_SECONDS = 4e9, 5e-3


class ModelMixAudit(dps.Audit):
    """Upper bounds by the repaired theorem and by plain DP-SGD, lower ones from white-box canaries in one run."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """What the theory does not cover, what mixing does not amplify, and what cannot be attacked."""
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        """Epsilon with mixing and without, what the paper prints, and three curves."""
        from dpspec_modelmix import bounds, declared, tables
        from dpspec_modelmix.options import lost

        yield from bounds.findings(spec, context)
        found = declared.segments_of(spec, context.facts)
        if found is not None and not lost(spec):
            yield from tables.series(found, bounds.claimed_deltas(spec)[-1], context.facts.parameters)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One trial per run."""
        from dpspec_modelmix.evidence import power

        assert spec.audit is not None
        runs, parameters = spec.audit.runs, facts.parameters or 0
        # The twins, and the gradients of all records that the attack takes at every step.
        trained = 4.0 if spec.audit.options.get("twins") is not None else 2.0
        step = 6.0 * parameters * trained * facts.records / _FLOPS + trained * _STEP_SECONDS
        return dps.Plan(
            chunks=tuple((index,) for index in range(runs)),
            seconds=runs * spec.steps * step,
            memory_bytes=4 * parameters * min(facts.records, 4096) + 8 * facts.records * facts.features,
            power=power(spec),
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: what only stands beside bounds, and parts of the threat model."""
        inputs = super().trial_inputs(spec)
        mechanism = {key: value for key, value in inputs["mechanism"].items() if key not in ("baselines", "utility")}
        threat = {key: inputs["threat_model"][key] for key in ("adjacency", "access")}
        return dps.FrozenMap({**inputs, "mechanism": mechanism, "threat_model": threat})

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        """Train with canaries, and without them by ModelMix and by plain DP-SGD."""
        from dpspec_modelmix.attack import run_trials

        yield from run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """Lower bounds with their evidence, gaps, accuracies, and checks of what ran."""
        from dpspec_modelmix.evidence import outcomes

        yield from outcomes(spec, trials)
