"""The five steps of the per-instance audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dpspec.contract as dps
from dpspec_per_instance.options import observe_every
from dpspec_per_instance.plans import plan
from dpspec_per_instance.refusals import refusals


class PerInstanceAudit(dps.Audit):
    """What every record loses by itself, from its gradients along independent runs; attacks on single records."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """What the theory does not cover, and what cannot be trained or attacked."""
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        """The data-independent epsilon, which holds for every record, divergences by order, and further statements."""
        from dpspec_per_instance.bounds import order_series, upper_bounds
        from dpspec_per_instance.statements import statements

        yield from upper_bounds(spec)
        yield order_series(spec)
        yield from statements(spec)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One trial per run on the declared data, or several, with all that is trained beside it."""
        return plan(spec, facts)

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: orders, how steps compose, and parts of the threat model."""
        inputs = super().trial_inputs(spec)
        mechanism = {k: v for k, v in inputs["mechanism"].items() if k not in ("orders", "step_bound", "composition")}
        mechanism["composition"] = {"observe_every": observe_every(inputs["mechanism"])}
        kept = ("adjacency", "population", "points", "direction")
        threat = {key: inputs["threat_model"].get(key) for key in kept}
        unread = ("use", "reference", "shard_records")
        audit = {key: value for key, value in inputs.get("audit", {}).items() if key not in unread}
        shards = inputs.get("audit", {}).get("shard_records")
        split = {} if shards is None else {"split": {"shard_records": shards}}
        return dps.FrozenMap({**inputs, "mechanism": mechanism, "threat_model": threat, "audit": audit, **split})

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        """Train on the declared data and watch every record; attack where asked."""
        from dpspec_per_instance.runs import run_trials

        yield from run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """Epsilon per record and its distribution, lower bounds with their evidence, accuracy and checks."""
        from dpspec.stats import conformance
        from dpspec.stats.utility import accuracies
        from dpspec_per_instance.analysis import Analysis
        from dpspec_per_instance.deletions import unlearning
        from dpspec_per_instance.evidence import lower_bounds
        from dpspec_per_instance.findings import estimability, findings
        from dpspec_per_instance.joined import at_hand, told_once, whole_runs
        from dpspec_per_instance.means import means
        from dpspec_per_instance.reference import against
        from dpspec_per_instance.tables import series

        # A result that was redacted has lost what follows from arrays: what is public follows without them.
        redacted = not any("internal" in trial.evidence for trial in trials) and spec.data_privacy != "public"
        runs, once = whole_runs(spec, trials), told_once(spec, trials)
        if runs and (at_hand(trials) or not redacted):
            found = Analysis(spec, runs)
            yield from findings(spec, found)
            yield from series(spec, found)
            yield from unlearning(spec, found)
            yield from means(spec, found)
            yield from against(spec, found)
        if runs:
            yield estimability(spec, runs)
        yield from lower_bounds(spec, once)
        yield from accuracies(spec, once, "run on the declared data")
        evidence = [trial.evidence for trial in once]
        yield from conformance.checks(spec.phases, evidence, privacy=spec.data_privacy)
