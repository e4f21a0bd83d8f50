"""The keys of a spec that are the plugin's own, and the attack that they ask for: no torch, no numerics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.attacks import USUAL, USUAL_SCORE, Score
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING, SHARD_RUNS
from dpspec.kit.scores_elsewhere import scores_block
from dpspec.training.loop.learning_rates import updates_invertible

#: The delta of tables and lower bounds where no claim names one.
DEFAULT_DELTA = 1e-6

#: Many runs tell each score by how many of these edges it reaches, and thresholds are among them: natural logarithms
#: of likelihood ratios, or differences of losses.
EDGES = tuple(number / 64 for number in range(-768, 769))

#: So many steps are measured where the adversary sees the final model alone, so that only conformance needs them.
_LOOKS = 16

MECHANISM_SCHEMA: dict[str, dps.Json] = kit.block(
    None,
    ["noise_multiplier", "clip_norm", "sampling"],
    noise_multiplier=NOISE_MULTIPLIER,
    clip_norm=CLIP_NORM,
    sampling=SAMPLING,
    baselines=kit.array(
        "What is shown beside the tight bound in the table of epsilon by group size. It changes no bound and no "
        "verdict.",
        kit.choice(
            "linear: k times the epsilon of one record, which is no bound. vadhan-literal and vadhan-sharp: black-box "
            "conversions. full-batch: without amplification by sampling.",
            "linear",
            "vadhan-literal",
            "vadhan-sharp",
            "full-batch",
        ),
        default=["linear"],
    ),
)


AUDIT_SCHEMA: dict[str, dps.Json] = kit.block(
    None,
    scores=scores_block.SCHEMA,
    score={
        "type": "string",
        "minLength": 1,
        "description": "How planted records are scored by a final model: by loss-difference if left out.",
    },
    stop=kit.choice(
        "When many runs end: after all of them (this is the default), or as soon as every claim about privacy is "
        "proved or refuted, by a test that holds whenever one stops.",
        "planned",
        "settled",
    ),
    expected_from={
        "type": "integer",
        "minimum": 2,
        "description": "From how many real records an adversary who sees iterates estimates what all of them add "
        "on average; from all of them if left out. They are drawn anew at each step, apart from the training's own "
        "draws, at least as many as a batch holds. In small batches that costs a batch a step, where asking all "
        "records costs many trainings. The chance of that draw is charged: scores and checks see a little less.",
    },
    twin={
        "type": "boolean",
        "description": "Whether a second training, without canaries and with seeds of its own, stands beside the "
        "audited one: it does if left out. It alone tells how accurate the pipeline is, and whether two runs add the "
        "same noise. Without it the audit costs a training less, no accuracy is measured, claims about it are refused, "
        "and that check is not made.",
    },
    shard_runs=SHARD_RUNS,
)


@dataclass(frozen=True, kw_only=True)
class Attack(kit.Options):
    """What is planted and how it is looked for, of a spec's document with an audit, or of the inputs of a trial.

    sizes: the group sizes, ascending; each gets ``share`` canary groups per run.
    sequential: whether runs end as soon as all claims are decided, and are tested accordingly.
    spread: the angle, in radians, by which each member of a gradient canary group is turned away from the others.
    elsewhere: whether another program attacked, and a table holds its scores; of ``space``, ``kind`` and what follows
        from them nothing is known then.
    scoring: how planted records are scored by a final model, where they are; of a trial's inputs :meth:`chosen` has it.
    every: gradient canaries have gradients in every so many-th step, and none in the others.
    expected_from: how many real records stand for all of them at each step; None for all.
    chosen_weights: whether the adversary chose the weights that training starts from.
    twin: whether the audited run, of many runs the first, has a twin without canaries.
    shard_runs: at most so many of many runs are trained together; no trial reads it.
    """

    method: str
    access: str
    space: str
    kind: str
    score: str
    spread: float
    sizes: tuple[int, ...]
    share: int
    sequential: bool = False
    elsewhere: bool = False
    chosen_weights: bool = False
    every: int = 1
    expected_from: int | None = None
    scoring: Score | None = None
    twin: bool = True
    shard_runs: int | None = None

    @classmethod
    def of(cls, block: Mapping[str, dps.Json] | dps.Spec) -> Self:
        """Of a spec, with how it scores."""
        read = super().of(block)
        chosen = block.audit.score if isinstance(block, dps.Spec) and block.audit is not None else None
        return read if chosen is None else replace(read, scoring=chosen)

    @classmethod
    def chosen(cls, inputs: dps.FrozenMap, context: dps.Context) -> Self:
        """Of a trial's inputs."""
        return replace(cls.of(inputs), scoring=context.attack.score)

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Attack:
        """From the blocks ``audit``, ``threat_model`` and ``model``."""
        audit, threat = block["audit"], block["threat_model"]
        canary = audit.get("canary") or {}
        space = str(canary.get("space", "gradient"))
        sizes = tuple(sorted({int(size) for size in threat["group_size"]}))
        return cls(
            method=str(audit["method"]),
            access=str(threat["access"]),
            space=space,
            kind=str(canary.get("kind", USUAL[space])),
            score=str(audit.get("score", USUAL_SCORE)),
            spread=float(canary.get("spread", 0.0)),
            every=int(canary.get("every", 1)),
            expected_from=audit.get("expected_from"),
            sizes=sizes,
            share=int(canary.get("count", len(sizes))) // len(sizes),
            sequential=audit.get("stop") == "settled",
            elsewhere="scores" in audit,
            twin=bool(audit.get("twin", (block.get("split") or {}).get("twin", True))),
            chosen_weights=isinstance((block.get("model") or {}).get("initial"), str),
            shard_runs=audit.get("shard_runs"),
        )

    @property
    def count(self) -> int:
        """All canary groups of one run."""
        return self.share * len(self.sizes)

    @property
    def white_box(self) -> bool:
        """Whether every iterate is seen, so that canaries are scored step by step."""
        return self.access in ("all-iterates", "transcript")

    @property
    def others_drawn(self) -> bool:
        """Whether the adversary is told which of the real records each step drew."""
        return self.access == "transcript"

    @property
    def records_on_average(self) -> int:
        """How many records the canaries add if half of the groups are planted."""
        return self.share * sum(self.sizes) // 2

    @property
    def description(self) -> str:
        """The attack in words, for reports."""
        if self.elsewhere:
            return f"{self.method}, {self.access}, scores from elsewhere, given fair coins that no score knows"
        planted = "" if self.space == "gradient" else f", {self.kind} records"
        planted += f", gradients in one of {self.every} steps" if self.every > 1 else ""
        scored = "" if self.white_box or self.space == "gradient" else f" by {self.score}"
        started = ", worst-case initial weights" if self.chosen_weights else ""
        known = "" if self.expected_from is None else f", mean updates estimated from {self.expected_from} records"
        alone = "" if self.twin else ", no twin"
        return f"{self.method}, {self.access}{planted}{scored}{known}{started}{alone}"

    @property
    def calibrated(self) -> bool:
        """Whether half of the canaries only serve to learn how scores differ."""
        return self.by_final_model and self.scoring is not None and self.scoring.learns

    @property
    def takes_gradients(self) -> bool:
        """Whether planted records are scored by what the last model's weights say of their gradients."""
        return self.by_final_model and self.scoring is not None and self.scoring.gradients

    @property
    def trains(self) -> int:
        """How many models the score trains for itself, for each run."""
        return self.scoring.models if self.by_final_model and self.scoring is not None else 0

    @property
    def by_final_model(self) -> bool:
        """Whether planted records are scored by the final model."""
        return self.space == "input" and not self.white_box

    @property
    def in_noise(self) -> bool:
        """Whether differences of losses are told in units of the noise."""
        by_loss = self.by_final_model and self.score == USUAL_SCORE
        return by_loss and self.method == "many-run" and not self.elsewhere

    def tested(self, canaries: int) -> int:
        """How many of so many canaries are guessed."""
        return canaries - canaries // 2 if self.calibrated else canaries

    def scope(self, spec: dps.Spec, records: int) -> dps.Scope:
        """What the attack speaks of: the pipeline that ran, on this data set of so many records.

        Where several groups are drawn for in one run, each stands among the others that were planted. Without any group
        all of the data is there, so that no data set that is compared is smaller.
        """
        return kit.executed_scope(
            spec,
            access=self.access,
            adversary="gradient" if self.space == "gradient" else "record",
            data="this" if self.method == "many-run" and len(self.sizes) == 1 else "planted",
            records=records,
        )

    @property
    def looks(self) -> int | None:
        """How many steps the watcher of a run measures; None for all."""
        return None if self.white_box else _LOOKS

    def watched(self, capabilities: Collection[str], training: Mapping[str, Any]) -> bool:
        """Whether released models can be looked at; an adversary of the final model can do without.

        training: the spec's training block.
        """
        return self.white_box or ("iterates" in capabilities and updates_invertible(training))
