"""The mechanism ``group`` as a light value, and the five steps of its audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dpspec.contract as dps
from dpspec import kit
from dpspec_group.options import AUDIT_SCHEMA, MECHANISM_SCHEMA, Attack
from dpspec_group.refusals import refusals

#: At most so many runs are trained together.
_TOGETHER = 64

EXAMPLE = """\
dpspec: 1
name: group-example
description: DP-SGD on synthetic points, audited for single records and for groups of four

mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 20

data: {kind: synthetic, pattern: blobs, records: 200, features: 16, classes: 2}
model: {kind: linear}
training: {backend: native, learning_rate: 0.5}

threat_model:
  group_size: [1, 4]

claims:
  - {id: one, kind: approx-dp, epsilon: 6.0, delta: 1e-5}
  - {id: four, kind: approx-dp, epsilon: 40.0, delta: 1e-5, group_size: 4}

audit:
  method: one-run
  canary: {space: gradient, kind: orthogonal, count: 32}
  seed: 1
"""


class RecordsAudit(dps.Audit):
    """Upper bounds by mixtures of Gaussians, lower bounds by attacks with groups of canaries, in one run or in many."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """What the theory does not cover, and what cannot be trained or attacked."""
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        """Epsilon per group size, delta and direction, from both sides where the worst case is attained, and as tables
        against the group size and against delta; mu, rates and the advantage where claims ask for them."""
        from dpspec_group.bounds import epsilon_curves, lower_bounds, profile_series, upper_bounds, whole_curve_bounds
        from dpspec_group.printed.comparison import size_series

        curves, records = epsilon_curves(spec, context), context.facts.records
        epsilons = list(upper_bounds(spec, curves, records))
        found = [*epsilons, *lower_bounds(spec, curves, records), *whole_curve_bounds(spec, curves, records)]
        if _elsewhere(spec):
            from dpspec.kit.scores_elsewhere.assumptions import as_executed

            found = [as_executed(finding) if finding.bound == "upper" else finding for finding in found]
        yield from found
        yield profile_series(spec, curves)
        yield size_series(spec, records, epsilons)

    def dominating(self, spec: dps.Spec, facts: dps.Facts, claim: dps.Claim) -> dps.audit.Dominating | None:
        """The mixtures of all phases; None where a phase has no noise, and nothing is bounded."""
        from dpspec_group.bounds import dominating

        return dominating(spec, facts.records, claim)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One trial per run; what each group size's canaries can be expected to show."""
        if _elsewhere(spec):
            from dpspec_group.scores_elsewhere import plan

            return plan(spec, facts)
        from dpspec_group.design import power
        from dpspec_group.evidence import foresee

        assert spec.audit is not None
        attack, runs = Attack.of(spec), spec.audit.runs
        many = attack.method == "many-run"
        # A many-run audit trains one twin in all; records that are looked at step by step are differentiated again.
        twins = (1.0 / runs if many else 1.0) if attack.twin else 0.0
        trained = 1.0 + twins + attack.trains
        records, asked = float(facts.records), attack.expected_from or 0
        if attack.others_drawn or asked:  # each batch is differentiated, and nobody else but those who are asked
            records *= sum(phase.steps * (phase.sampling.rate or 1.0) for phase in spec.phases) / spec.steps
            # One run of dpspec's own loop has just computed what is taken away, apart from planted gradients.
            own = not many and spec.training.kind == "native" and attack.space == "gradient"
            trained += 1.0 if attack.others_drawn and not own else 0.0
        gradients = trained * records + asked + (attack.count if attack.space == "input" else 0)
        steps = runs * spec.steps
        most = min(_TOGETHER, attack.shard_runs or _TOGETHER)
        chunks = kit.chunks(runs, kit.runs_together(facts, most=most) if many else 1)
        seconds = kit.training_seconds(facts.parameters or 0, steps * gradients, steps * (1 + attack.trains))
        return dps.Plan(
            chunks=chunks,
            seconds=seconds,
            memory_bytes=kit.training_bytes(facts),
            notes=kit.shard_notes(runs, len(chunks), seconds) if many else (),
            power=power(spec, facts.records),
            checks=foresee(spec, facts),
            sequential=attack.sequential,
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: baselines, when to stop, and parts of the threat model.

        Of scores from elsewhere, the table's digest and what its trial reads.
        """
        if _elsewhere(spec):
            from dpspec.kit.scores_elsewhere.score_trial import trial_inputs

            return trial_inputs(spec)
        inputs = kit.select_inputs(
            super().trial_inputs(spec),
            mechanism_without=("baselines",),
            threat_model=("adjacency", "access", "group_size"),
            audit_without=("stop", "shard_runs", "twin"),
        )
        # Trials from before there were units have other scores, and are not those of this spec; seeds stay. They do as
        # well where the twin is left out, so that the run is the same.
        attack = Attack.of(spec) if spec.audit is not None else None
        split: dict[str, dps.Json] = {"units": "noise"} if attack is not None and attack.in_noise else {}
        if attack is not None and not attack.twin:
            split["twin"] = False
        return dps.FrozenMap({**inputs, "split": split}) if split else inputs

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        """Train with canaries, once per index, and without; or read the table of scores, where there is one."""
        if "scores" in inputs["audit"]:
            from dpspec.kit.scores_elsewhere.score_trial import run_trials as read_scores

            yield from read_scores(inputs, context, indices)
            return
        from dpspec_group.attack import run_trials

        yield from run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """Lower bounds with their evidence, accuracy, and checks of the pipeline that ran."""
        if _elsewhere(spec):
            from dpspec_group.scores_elsewhere import conclude

            yield from conclude(spec, trials)
            return
        from dpspec.stats.utility import accuracies
        from dpspec_group.evidence import checks, epsilon_as_run, lower_bounds

        yield from lower_bounds(spec, trials)
        if not Attack.of(spec).chosen_weights:  # of models that start from the records as they are, it says nothing
            yield from accuracies(spec, trials)
        yield from checks(spec, trials)
        yield from epsilon_as_run(spec, trials)


class GroupAudit(kit.UsersAsGroups):
    """The same of users: one with at most k records is a group of k."""

    of_records = RecordsAudit()


def _elsewhere(spec: dps.Spec) -> bool:
    """Whether another program attacked, and a table holds its scores."""
    return spec.audit is not None and "scores" in spec.audit.options


GROUP = dps.Mechanism(
    kind="group",
    summary="DP-SGD: what groups of k records lose, by mixtures of Gaussians",
    schemas=dps.Schemas(mechanism=MECHANISM_SCHEMA, audit=AUDIT_SCHEMA),
    claims=frozenset({"approx-dp", "gdp", "membership", "metric", "tradeoff"}),
    audit="dpspec_group.mechanism:GroupAudit",
    example=EXAMPLE,
    trial_revision=6,
    units=frozenset({"record", "user"}),
    accesses=("all-iterates", "final-model", "transcript"),
    tokens=True,
    chosen_weights=True,
    canaries=frozenset({"gradient", "input"}),
    scores=True,
)
