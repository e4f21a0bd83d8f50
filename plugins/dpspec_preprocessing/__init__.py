"""Audit of noiseless pre-processing before a private mechanism (Hu, Sanyal and Schoelkopf 2024)."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing import options, sensitivity
from dpspec_preprocessing.options import AuditBlock, Declaration

DPSPEC_API = 1

#: Number of runs that share one processing of both datasets.
_TOGETHER = 16

#: Rough rates per second on one core: values read by steps, gradient products of linear models, and of networks.
_VALUES, _FLOPS, _NETWORK_FLOPS = 2e7, 4e8, 3e9


class PreprocessingAudit(dps.Audit):
    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        from dpspec_preprocessing.refusals import refusals

        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        from dpspec_preprocessing import bounds, tables

        declared = Declaration.of(spec.mechanism.options)
        pipeline = declared.pipeline(context.facts.records, context.facts.features)
        yield from bounds.upper_bounds(spec, pipeline)
        yield from bounds.lower_bounds(spec, pipeline)
        yield tables.constants_series(declared, pipeline)
        yield tables.accounting_series(spec, pipeline)
        if declared.table is not None:
            yield from tables.paper_tables(declared.table, pipeline.private.records, pipeline.private.noise)
        if context.facts.digest is not None and pipeline.step is not None:
            from dpspec_preprocessing import collection

            x, device = collection.flat_rows(context, declared), collection.search_device(context, pipeline)
            tested = declared.ptr is not None
            limits = collection.require_in_collection(x, pipeline, tested=tested, device=device)
            yield tables.measured_series(pipeline, limits)
            if declared.ptr is not None:
                distance = collection.distance_to_edge(x, pipeline)
                yield dps.Finding(
                    quantity="refusal-probability",
                    value=sensitivity.refusal_probability(distance, declared.ptr.epsilon, declared.ptr.delta),
                    bound="estimate",
                    rigor="approximate",
                    scope=options.bound_scope(spec, pipeline.private, data="this"),
                    method="propose-test-release on these records",
                    source=bounds.TESTED,
                    privacy="data-dependent",
                )

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        from dpspec.stats.attacks import thresholds
        from dpspec_preprocessing.attack import predict_checks

        assert spec.audit is not None
        private, runs = Declaration.of(spec.mechanism.options).private, spec.audit.runs
        executions = runs * AuditBlock.of(spec.audit.options).repeats
        network = private.network
        steps = {"dp-gd": facts.records * private.steps, "sgd-iterated": facts.records}
        work = float(steps.get(private.kind, private.steps))
        work *= float((facts.parameters or 0) if network else facts.features)
        rate = _NETWORK_FLOPS if network else _FLOPS
        rows = float(facts.records * max(1, facts.features))
        return dps.Plan(
            chunks=kit.chunks(runs, _TOGETHER),
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
                for delta in kit.claimed_deltas(spec)
            ),
            checks=tuple(predict_checks(spec, facts, executions)),
            independent=True,
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        # Trials read neither tables nor most of the threat model.
        inputs = kit.select_inputs(
            super().trial_inputs(spec), mechanism_without=("table",), threat_model=("adjacency", "access")
        )
        declared = Declaration.of(inputs["mechanism"])
        private, norm, last = declared.private, declared.processed_norm, declared.steps[-1]
        if private.takes_gradients:
            # Version 0.1.0 used norm 1 for the noise of known losses.
            corrected = private.known_loss and private.lipschitz is None and norm > 1.0
        else:
            # Version 0.1.0 used the norm after the last step for a query's weight.
            corrected = norm != (last.clip if last.name == "scale" else declared.radius)
        return dps.FrozenMap({**inputs, "processed_norm": norm}) if corrected else inputs

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        from dpspec_preprocessing.attack import run_trials

        return run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        from dpspec_preprocessing.attack import conclude_trials

        return conclude_trials(spec, trials)


PREPROCESSING = dps.Mechanism(
    kind="preprocessing",
    summary="Privacy cost of noiseless pre-processing before a private mechanism",
    assumptions=("dpspec_preprocessing.bounds", "dpspec_preprocessing.attack"),
    description="preparing the records without noise (such as filling gaps or removing copies), then a private "
    "computation",
    schemas=dps.Schemas(mechanism=options.MECHANISM, threat_model=options.THREAT_MODEL, audit=options.AUDIT),
    claims=frozenset({"approx-dp", "pure-dp", "renyi-dp", "gdp", "metric"}),
    audit="dpspec_preprocessing:PreprocessingAudit",
    example=Path(__file__).with_name("example.yaml").read_text(encoding="utf-8"),
    trial_revision=3,
    steps=False,
    missing=True,
)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield PREPROCESSING
