"""Audit of groups of records in DP-SGD with mixtures of Gaussians (Ganesh 2024)."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.attacks import USUAL_SCORE
from dpspec_group.options import AUDIT_SCHEMA, MECHANISM_SCHEMA, Attack, refusals, replaced_users

DPSPEC_API = 1

#: Maximum number of runs that train together.
_TOGETHER = 64


class RecordsAudit(dps.Audit):
    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        from dpspec_group import bounds

        curves = bounds.epsilon_curves(spec, context)
        epsilons = list(bounds.upper_bounds(curves))
        findings = [*epsilons, *bounds.lower_bounds(curves), *bounds.whole_curve_bounds(curves)]
        if _external_scores(spec):
            from dpspec.kit.scores_elsewhere import as_executed

            findings = [as_executed(finding) if finding.bound == "upper" else finding for finding in findings]
        yield from findings
        yield bounds.profile_series(curves)
        yield bounds.size_series(curves, epsilons)

    def dominating(self, spec: dps.Spec, facts: dps.Facts, claim: dps.Claim) -> dps.audit.Dominating | None:
        from dpspec_group.bounds import dominating

        return dominating(spec, facts.records, claim)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        from dpspec_group.scores import power

        if _external_scores(spec):
            from dpspec.kit.scores_elsewhere import table_of

            table = table_of(spec.document, spec.directory)
            coins = {size: table.of_size(size)[0].tolist() for size in table.sizes}
            return dps.Plan(
                chunks=((0,),),
                seconds=5e-6 * len(table),
                memory_bytes=2**26 + 400 * len(table),
                power=power(spec, facts.records, {size: (sum(c), len(c) - sum(c)) for size, c in coins.items()}),
                notes=("No training: the scores come from an external program.",),
            )
        attack = Attack.of(spec)
        runs, many = attack.runs, attack.method == "many-run"
        # A many-run audit trains one canary-free run in total; observed steps differentiate records again.
        canary_free_per_run = (1.0 / runs if many else 1.0) if attack.canary_free_run else 0.0
        trained = 1.0 + canary_free_per_run + attack.trains
        records, sampled = float(facts.records), attack.expected_from or 0
        if attack.others_drawn or sampled:  # only batches and the sample are differentiated
            records *= sum(phase.steps * (phase.sampling.rate or 1.0) for phase in spec.phases) / spec.steps
            # A single run of the native loop reuses its sums of real gradients.
            reused = not many and spec.training.kind == "native" and attack.space == "gradient"
            trained += 1.0 if attack.others_drawn and not reused else 0.0
        gradients = trained * records + sampled + (attack.count if attack.space == "input" else 0)
        steps = runs * spec.steps
        together = min(_TOGETHER, attack.shard_runs or _TOGETHER)
        chunks = kit.chunks(runs, kit.runs_together(facts, most=together) if many else 1)
        seconds = kit.training_seconds(facts.parameters or 0, steps * gradients, steps * (1 + attack.trains))
        return dps.Plan(
            chunks=chunks,
            seconds=seconds,
            memory_bytes=kit.training_bytes(facts),
            notes=kit.shard_notes(runs, len(chunks), seconds) if many else (),
            power=power(spec, facts.records),
            checks=kit.expected_checks(
                spec,
                facts,
                trials=min(2, runs) if many else runs,
                undone=attack.watched(facts.capabilities, spec.training.options),
                looks=attack.looks,
                planted=attack.records_on_average,
                groups=dict.fromkeys(attack.sizes, attack.share)
                if attack.space == "gradient" and attack.every == 1
                else None,
                canary_free_run=attack.canary_free_run,
                estimated=None if attack.expected_from == facts.records else attack.expected_from,
            ),
            sequential=attack.sequential,
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """Only what trials read; for external scores, the digest of the table and the inputs of its trial."""
        if _external_scores(spec):
            from dpspec.kit.scores_elsewhere import trial_inputs

            return trial_inputs(spec)
        inputs = kit.select_inputs(
            super().trial_inputs(spec),
            threat_model=("adjacency", "access", "group_size"),
            audit_without=("shard_runs", "canary_free_run", "stop"),
        )
        # The split changes the trial key but not the seeds: units of noise have other scores than trials of earlier
        # versions, and a run without a canary-free run is otherwise the same run.
        if spec.audit is None:
            return inputs
        attack, split = Attack.of(spec), dict[str, dps.Json]()
        if attack.by_final_model and attack.score == USUAL_SCORE and attack.method == "many-run":
            split["units"] = "noise"
        if not attack.canary_free_run:
            split["twin"] = False
        return dps.FrozenMap({**inputs, "split": split}) if split else inputs

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        if "scores" in inputs["audit"]:
            from dpspec.kit.scores_elsewhere import run_trials
        else:
            from dpspec_group.attack import run_trials
        return run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        from dpspec_group.evidence import conclude_external, conclude_trials

        return (conclude_external if _external_scores(spec) else conclude_trials)(spec, trials)


class GroupAudit(kit.UsersAsGroups):
    """Audit of records and users: a user with at most k records is a group of k."""

    of_records = RecordsAudit()

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
        yield from replaced_users(spec)
        yield from super().check(spec, facts)


def _external_scores(spec: dps.Spec) -> bool:
    return spec.audit is not None and "scores" in spec.audit.options


GROUP = dps.Mechanism(
    kind="group",
    summary="DP-SGD: privacy loss of groups of k records, by mixtures of Gaussians",
    assumptions=("dpspec_group.evidence",),
    description="training with noise (DP-SGD), which limits the contribution of every record at each step and adds "
    "noise to the sum",
    schemas=dps.Schemas(mechanism=MECHANISM_SCHEMA, audit=AUDIT_SCHEMA),
    metrics=frozenset({"accuracy"}),
    claims=frozenset({"approx-dp", "gdp", "membership", "metric", "renyi-dp", "tradeoff", "zcdp"}),
    audit="dpspec_group:GroupAudit",
    example=Path(__file__).with_name("example.yaml").read_text(encoding="utf-8"),
    trial_revision=6,
    losses=True,
    real_targets=True,
    units=frozenset({"record", "user"}),
    accesses=("all-iterates", "final-model", "transcript"),
    tokens=True,
    chosen_weights=True,
    recordable=True,
    canaries=frozenset({"gradient", "input"}),
    scores=True,
)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield GROUP
