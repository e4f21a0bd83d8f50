"""The five steps of the group audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dpspec.contract as dps
from dpspec_group.refusals import refusals

#: Rough cost of training on one core: floating-point operations per second reached, and overhead per step.
_FLOPS = 4e9
_STEP_SECONDS = 4e-3

#: At most so many runs are trained together, and so many bytes are held for them.
_TOGETHER, _CHUNK_BYTES = 64, 2**29


class GroupAudit(dps.Audit):
    """Upper bounds by mixtures of Gaussians, lower bounds by attacks with groups of canaries, in one run or in many."""

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
        from dpspec_group.conformance import foresee
        from dpspec_group.options import attack_of_spec
        from dpspec_group.plans import power

        assert spec.audit is not None
        attack, runs = attack_of_spec(spec), spec.audit.runs
        parameters = facts.parameters or 0
        # A many-run audit trains one twin in all; records that are looked at step by step are differentiated again.
        trained = 1.0 + 1.0 / runs if attack.method == "many-run" else 2.0
        rows = trained * facts.records + (attack.count if attack.space == "input" else 0)
        step = 6.0 * parameters * rows / _FLOPS + _STEP_SECONDS
        return dps.Plan(
            chunks=_chunks(runs, facts) if attack.method == "many-run" else tuple((index,) for index in range(runs)),
            seconds=runs * spec.steps * step,
            memory_bytes=4 * parameters * min(facts.records, 4096) + 8 * facts.records * facts.features,
            power=power(spec, facts.records),
            checks=foresee(spec, facts),
            sequential=attack.sequential,
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: baselines, when to stop, and parts of the threat model."""
        inputs = super().trial_inputs(spec)
        mechanism = {key: value for key, value in inputs["mechanism"].items() if key != "baselines"}
        threat = {key: inputs["threat_model"][key] for key in ("adjacency", "access", "group_size")}
        audit = {key: value for key, value in inputs.get("audit", {}).items() if key != "stop"}
        return dps.FrozenMap({**inputs, "mechanism": mechanism, "threat_model": threat, "audit": audit})

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        """Train with canaries, once per index, and without."""
        from dpspec_group.attack import run_trials

        yield from run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """Lower bounds with their evidence, accuracy, and checks of the pipeline that ran."""
        from dpspec.stats.utility import accuracies
        from dpspec_group.conformance import checks
        from dpspec_group.evidence import lower_bounds

        yield from lower_bounds(spec, trials)
        yield from accuracies(spec, trials)
        yield from checks(spec, trials)


def _chunks(runs: int, facts: dps.Facts) -> tuple[tuple[int, ...], ...]:
    """Runs that are trained together: as many as their rows and models take memory for, and no more than help."""
    each = 8 * (facts.records * max(1, facts.features) + 8 * (facts.parameters or 0))
    together = max(1, min(_TOGETHER, _CHUNK_BYTES // each))
    return tuple(tuple(range(start, min(runs, start + together))) for start in range(0, runs, together))
