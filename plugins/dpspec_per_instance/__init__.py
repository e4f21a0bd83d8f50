"""Audit of the per-instance privacy loss of each record in DP-SGD (Thudi et al. 2024), and ``records-csv``."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec.training.providers import updates_invertible
from dpspec_per_instance import options
from dpspec_per_instance.options import LOGGED_RUNS, MEASURED_STEPS, AuditBlock, Audited, Composition, check_spec

DPSPEC_API = 1

PER_INSTANCE = dps.Mechanism(
    kind="per-instance",
    summary="DP-SGD: per-instance privacy loss of each record, from its gradients during training",
    assumptions=("dpspec_per_instance.findings",),
    description="training with noise (DP-SGD), with a bound for every single record",
    schemas=dps.Schemas(mechanism=options.MECHANISM, threat_model=options.THREAT_MODEL, audit=options.AUDIT),
    metrics=frozenset({"accuracy"}),
    claims=frozenset({"per-instance-dp", "approx-dp", "metric"}),
    audit="dpspec_per_instance:PerInstanceAudit",
    example=Path(__file__).with_name("example.yaml").read_text(encoding="utf-8"),
    trial_revision=3,
    losses=True,
)

RECORDS = dps.Reporter(
    format="records-csv",
    summary="One row per audited record, with --internal",
    render="dpspec_per_instance:render_records",
    suffix=".csv",
)


def render_records(result: Any, *, internal: bool = False) -> str:
    """One CSV text of the tables ``records`` of all audits; without ``internal`` a comment, for privacy."""
    if not internal:
        return "# per-record values are omitted: use --internal to include them\n"
    tables = [
        (audit.name, series.columns) for audit in result.audits for series in audit.series if series.name == "records"
    ]
    names = list(dict.fromkeys(name for _, columns in tables for name in columns))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["audit", *names])
    for audit, columns in tables:
        empty: list[object] = [""] * len(columns["record"])
        writer.writerows(zip([audit] * len(empty), *(columns.get(name, empty) for name in names), strict=True))
    return out.getvalue()


#: Maximum number of runs per chunk.
_TOGETHER = 16


class PerInstanceAudit(dps.Audit):
    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        return check_spec(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        from dpspec_per_instance import bounds

        yield from bounds.upper_bounds(spec)
        yield from bounds.profile_series(spec)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        assert spec.audit is not None
        runs, audited = spec.audit.runs, Audited.of(spec.document["threat_model"], facts)
        points, options = len(audited.points), AuditBlock.of(spec.audit.options)
        shards, attack, own_runs = options.shards(points), options.attack, audited.needs_own_runs
        # One shard per chunk, so that recomputing a shard reproduces its bits.
        together = kit.runs_together(facts, most=_TOGETHER) if shards.count == 1 else 1
        chunks = kit.chunks(runs * shards.count, together)
        looks = len(Composition.of(spec.mechanism.options).observed(spec.steps))
        trained = runs * (shards.count + (points if own_runs else 0))
        gradients = runs * looks * points * (2.0 if own_runs else 1.0)
        gradients += min(LOGGED_RUNS, runs) * min(MEASURED_STEPS, spec.steps) * facts.records
        if attack is not None:
            attacked, pilots = runs * attack.targets * attack.runs, min(runs, len(chunks))
            pilots = pilots if attack.most or attack.least else 0
            trained += attacked + pilots
            gradients += attacked * spec.steps * facts.records + pilots * looks * points
        gradients += trained * sum(phase.expected_batch(facts.records) * phase.steps for phase in spec.phases)
        undone = updates_invertible(spec.training.options)
        notes: tuple[str, ...] = (
            "Per-record values depend on the data, so reports omit them unless --internal is set. The audit does not "
            "cover training whose steps use these values.",
        )
        if own_runs:
            notes += (f"Each of {points} records needs a separate run in every one of {runs} runs.",)
        return dps.Plan(
            chunks=chunks,
            seconds=kit.training_seconds(facts.parameters or 0, gradients, trained * spec.steps),
            memory_bytes=kit.training_bytes(facts) + (4 * facts.features + 5 * looks) * -(-points // shards.count),
            notes=notes,
            checks=kit.expected_checks(spec, facts, trials=min(LOGGED_RUNS, runs), undone=undone, looks=MEASURED_STEPS),
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        inputs = super().trial_inputs(spec)
        selected = kit.select_inputs(
            inputs,
            mechanism_without=("orders", "step_bound", "composition"),
            threat_model=("adjacency", "population", "points", "direction"),
            audit_without=("shard_records",),
        )
        composition = {"observe_every": Composition.of(spec.mechanism.options).observe_every}
        mechanism = {**selected["mechanism"], "composition": composition}
        shards = None if spec.audit is None else AuditBlock.of(spec.audit.options).shard_records
        split = {} if shards is None else {"split": {"shard_records": shards}}
        return dps.FrozenMap({**selected, "mechanism": mechanism, **split})

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        from dpspec_per_instance import trials

        return trials.run_trials(trials.RunSetup(inputs=inputs, context=context), indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        from dpspec.stats import utility
        from dpspec.stats.conformance import table
        from dpspec_per_instance import findings, mean_rule

        # A redacted result has no arrays. The public part does not need them.
        redacted = not any("internal" in trial.evidence for trial in trials) and spec.data_privacy != "public"
        runs, first_shards = findings.whole_runs(spec, trials), findings.first_shards(spec, trials)
        if runs and (not redacted or all("ratios" in trial.arrays for trial in trials)):
            records = findings.Analysis(spec, runs)
            yield from findings.record_findings(spec, records)
            yield findings.record_table(records)
            yield from findings.step_tables(records)
            yield from mean_rule.mean_rule_tables(spec, records)
        if runs:
            yield findings.estimability(spec, runs)
        yield from findings.lower_bounds(spec, first_shards)
        yield from utility.accuracies(spec, first_shards, "run on the declared data")
        evidence = [trial.evidence for trial in first_shards]
        yield from table.checks(spec.phases, evidence, privacy=spec.data_privacy)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield PER_INSTANCE


@dps.hookimpl
def dpspec_reporters() -> Iterable[dps.Reporter]:
    yield RECORDS
