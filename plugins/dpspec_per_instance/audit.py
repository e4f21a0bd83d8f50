"""The five steps of the per-instance audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dpspec.contract as dps
from dpspec_per_instance.options import attack_of, audited_of_spec, observe_every, observed_steps
from dpspec_per_instance.refusals import refusals

#: Rough cost of training on one core: floating-point operations per second reached, and overhead per step.
_FLOPS, _STEP_SECONDS = 4e9, 4e-3

#: At most so many runs are trained together, and so many bytes are held for them.
_TOGETHER, _CHUNK_BYTES = 16, 2**29


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
        """One trial per run on the declared data, with all that is trained beside it."""
        from dpspec.stats import foreseen

        assert spec.audit is not None
        runs, audited = spec.audit.runs, audited_of_spec(spec, facts)
        parameters, attack = facts.parameters or 0, attack_of(spec.audit.options)
        batch = sum(_batch(phase, facts.records) * int(phase["steps"]) for phase in spec.phases)
        looks = len(observed_steps(spec.steps, observe_every(spec.mechanism.options)))
        trained = 1.0 + (len(audited.points) if audited.own else 0.0)
        scored = 0.0
        if attack is not None:
            trained += attack.targets * attack.runs
            scored = float(attack.targets * attack.runs * min(attack.looks or spec.steps, spec.steps)) * facts.records
        rows = trained * batch + looks * len(audited.points) * (2.0 if audited.own else 1.0) + scored
        notes = [
            "Values per record speak of the data: reports leave them out unless asked, and training that is changed by "
            "them is not what was audited."
        ]
        if audited.own:
            notes.append(
                f"Each of {len(audited.points)} records takes a run on data of its own in every one of {runs}."
            )
        return dps.Plan(
            chunks=_chunks(runs, facts),
            seconds=runs * (6.0 * parameters * rows / _FLOPS + trained * spec.steps * _STEP_SECONDS),
            memory_bytes=4 * parameters * min(facts.records, 4096)
            + 8 * facts.records * facts.features
            + 5 * looks * len(audited.points),
            notes=tuple(notes),
            checks=tuple(
                foreseen.foresee(
                    foreseen.Run(
                        phases=spec.phases,
                        records=facts.records,
                        parameters=parameters,
                        groups={},
                        capabilities=facts.capabilities,
                        trials=min(2, runs),
                        twin=False,
                    )
                )
            ),
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: orders, how steps compose, and parts of the threat model."""
        inputs = super().trial_inputs(spec)
        mechanism = {k: v for k, v in inputs["mechanism"].items() if k not in ("orders", "step_bound", "composition")}
        mechanism["composition"] = {"observe_every": observe_every(inputs["mechanism"])}
        kept = ("adjacency", "population", "points", "direction")
        threat = {key: inputs["threat_model"].get(key) for key in kept}
        audit = {key: value for key, value in inputs.get("audit", {}).items() if key not in ("use", "reference")}
        return dps.FrozenMap({**inputs, "mechanism": mechanism, "threat_model": threat, "audit": audit})

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        """Train on the declared data and watch every record; attack where asked."""
        from dpspec_per_instance.runs import run_trials

        yield from run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """Epsilon per record and its distribution, lower bounds with their evidence, accuracy and checks."""
        from dpspec.stats import conformance
        from dpspec.stats.utility import accuracies
        from dpspec_per_instance.analysis import Analysis, at_hand
        from dpspec_per_instance.deletions import unlearning
        from dpspec_per_instance.evidence import lower_bounds
        from dpspec_per_instance.findings import estimability, findings
        from dpspec_per_instance.means import means
        from dpspec_per_instance.reference import against
        from dpspec_per_instance.tables import series

        # A result that was redacted has lost what follows from arrays: what is public follows without them.
        redacted = not any("internal" in trial.evidence for trial in trials) and spec.data_privacy != "public"
        if at_hand(trials) or not redacted:
            found = Analysis(spec, trials)
            yield from findings(spec, found)
            yield from series(spec, found)
            yield from unlearning(spec, found)
            yield from means(spec, found)
            yield from against(spec, found)
        yield estimability(spec, trials)
        yield from lower_bounds(spec, trials)
        yield from accuracies(spec, trials, "run on the declared data")
        evidence = [trial.evidence for trial in trials]
        yield from conformance.checks(spec.phases, evidence, privacy=spec.data_privacy)


def _batch(phase: dps.FrozenMap, records: int) -> float:
    sampling = phase["sampling"]
    return float(sampling["rate"]) * records if sampling["scheme"] == "poisson" else float(records)


def _chunks(runs: int, facts: dps.Facts) -> tuple[tuple[int, ...], ...]:
    """Runs that are trained together: as many as their rows and models take memory for, and no more than help."""
    each = 8 * (facts.records * max(1, facts.features) + 8 * (facts.parameters or 0))
    together = max(1, min(_TOGETHER, _CHUNK_BYTES // each))
    return tuple(tuple(range(start, min(runs, start + together))) for start in range(0, runs, together))
