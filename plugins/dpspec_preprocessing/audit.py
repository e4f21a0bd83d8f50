"""The five steps of the pre-processing audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dpspec.contract as dps
from dpspec_preprocessing.options import is_network, pipeline_of
from dpspec_preprocessing.refusals import refusals

#: Keys of the mechanism that only bounds read.
_BOUNDS_ONLY = ("accounting", "also", "orders", "sweep", "table")

#: Runs that share one processing of both data sets.
_TOGETHER = 16

#: Rough cost on one core: values that steps read, and gradient products of linear models and of networks, per second.
_VALUES, _FLOPS, _NETWORK_FLOPS = 2e7, 4e8, 3e9


class PreprocessingAudit(dps.Audit):
    """What pre-processing without noise costs: bounds over a declared collection, and attacks through it."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """What no bound covers, and what cannot be run."""
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        """Bounds in the chosen mode, every mode as tables, and what the rows at hand have of the collection."""
        from dpspec_preprocessing import bounds, tables
        from dpspec_preprocessing.paper_table import paper_tables

        found = pipeline_of(spec.mechanism.options, context.facts)
        yield from bounds.upper_bounds(spec, found)
        yield tables.accounting_series(spec, found)
        yield tables.order_series(spec, found)
        if found.step is not None:
            yield tables.sensitivity_series(found)
        if spec.mechanism.get("sweep"):
            yield tables.sweep_series(spec, found)
        if spec.mechanism.get("table"):
            yield from paper_tables(spec, found.private.records, found.private.noise)
        if context.facts.digest is not None and found.step is not None:
            from dpspec_preprocessing.rows import device_of, raw, within

            x = raw(context, spec.mechanism.options)
            device, tested = device_of(context, found), spec.mechanism.get("ptr") is not None
            measured = within(x, found, tested=tested, device=device)
            yield tables.measured_series(found, measured)
            if spec.mechanism.get("ptr"):
                from dpspec_preprocessing.attack import distance_inside

                inside = distance_inside(x, found, spec.mechanism.options)
                yield bounds.refusal(spec, found.private, inside)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One trial per run, each with its repeats; what they can show."""
        from dpspec.stats import thresholds
        from dpspec_preprocessing.conformance import foreseen
        from dpspec_preprocessing.options import claimed_deltas

        assert spec.audit is not None
        private, runs = spec.mechanism["private"], spec.audit.runs
        executions = runs * int(spec.audit.options.get("repeats", 1))
        network = is_network(private)
        steps = {"dp-gd": facts.records * int(private.get("steps", 1)), "sgd-iterated": facts.records}
        work = float(steps.get(str(private["kind"]), int(private.get("steps", 1))))
        work *= float((facts.parameters or 0) if network else facts.features)
        rate = _NETWORK_FLOPS if network else _FLOPS
        rows = float(facts.records * max(1, facts.features))
        return dps.Plan(
            chunks=tuple(tuple(range(i, min(runs, i + _TOGETHER))) for i in range(0, runs, _TOGETHER)),
            seconds=-(-runs // _TOGETHER) * 40.0 * rows / _VALUES + executions * 4.0 * work / rate,
            memory_bytes=int(64 * rows) + (1 << 28) + (_TOGETHER * 64 * (facts.parameters or 0) if network else 0),
            power=tuple(
                dps.Power(
                    at=dps.FrozenMap({"delta": delta}),
                    epsilon=thresholds.largest(
                        executions - executions // 2, executions // 2, delta, spec.audit.confidence
                    ),
                    method=f"{executions} executions with one record or its replacement",
                )
                for delta in claimed_deltas(spec)
            ),
            checks=tuple(foreseen(spec, facts, executions)),
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: modes of accounting, tables and most of the threat model."""
        inputs = super().trial_inputs(spec)
        mechanism = {key: value for key, value in inputs["mechanism"].items() if key not in _BOUNDS_ONLY}
        threat = {key: inputs["threat_model"][key] for key in ("adjacency", "access")}
        return dps.FrozenMap({**inputs, "mechanism": mechanism, "threat_model": threat})

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        """Execute the pipeline on one of two neighbours, by coins, and score its output."""
        from dpspec_preprocessing.attack import run_trials

        yield from run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """Lower bounds with their evidence, the executed pipeline's accuracy, and the side channel as a table."""
        from dpspec_preprocessing.evidence import outcomes

        yield from outcomes(spec, trials)
