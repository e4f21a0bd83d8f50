"""The five steps of the group audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dpspec.contract as dps
from dpspec_group.refusals import refusals

#: Rough cost of training on one core: floating-point operations per second reached, and overhead per step.
_FLOPS = 4e9
_STEP_SECONDS = 4e-3


class GroupAudit(dps.Audit):
    """Upper bounds by mixtures of Gaussians, lower bounds by a one-run attack with groups of canaries."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """What the theory does not cover, and what cannot be trained or attacked."""
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        """Epsilon per group size, delta and direction, and as tables against the group size and against delta."""
        from dpspec_group.bounds import curves, profile_series, size_series, upper_bounds

        found = curves(spec, context)
        findings = list(upper_bounds(spec, found))
        yield from findings
        yield profile_series(spec, found)
        yield size_series(spec, context.facts.records, findings)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One trial per run; what each group size's canaries can be expected to show."""
        from dpspec_group.evidence import attack_delta, designs

        assert spec.audit is not None
        runs = spec.audit.runs
        share = int(spec.audit.options["canary"]["count"]) // len(spec.threat_model.group_size)
        power = []
        for size in spec.threat_model.group_size:
            tried = designs(spec, facts.records, share * runs, size)
            best = tried[0]
            power.append(
                dps.Power(
                    at=dps.FrozenMap({"delta": attack_delta(spec, size), "group_size": size}),
                    epsilon=max(design.largest_epsilon for design in tried),
                    method=f"one-run, {spec.threat_model.access}, {share * runs} canary groups of {size}",
                    note=f"about {best.expected_epsilon:.2f} expected if the pipeline is as declared",
                )
            )
        parameters = facts.parameters or 0
        step = 2 * 6.0 * parameters * facts.records / _FLOPS + _STEP_SECONDS
        return dps.Plan(
            chunks=tuple((index,) for index in range(runs)),
            seconds=runs * spec.steps * step,
            memory_bytes=4 * parameters * min(facts.records, 4096) + 8 * facts.records * facts.features,
            power=tuple(power),
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: baselines, and parts of the threat model."""
        inputs = super().trial_inputs(spec)
        mechanism = {key: value for key, value in inputs["mechanism"].items() if key != "baselines"}
        threat = {key: inputs["threat_model"][key] for key in ("adjacency", "access", "group_size")}
        return dps.FrozenMap({**inputs, "mechanism": mechanism, "threat_model": threat})

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        """Train with canaries and without, once per index."""
        from dpspec_group.attack import run_trial

        for index in indices:
            yield run_trial(inputs, context, index)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """Lower bounds with their evidence, accuracy, and checks of the pipeline that ran."""
        from dpspec_group.conformance import checks
        from dpspec_group.evidence import lower_bounds
        from dpspec_group.utility import accuracies

        yield from lower_bounds(spec, trials)
        yield from accuracies(spec, trials)
        yield from checks(spec, trials)
