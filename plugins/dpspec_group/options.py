"""Schemas of the plugin's keys, and the attack that a spec declares."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.attacks import USUAL, USUAL_SCORE, Score
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING, SHARD_RUNS, string
from dpspec.kit import scores_elsewhere
from dpspec.training.loop.learning_rates import updates_invertible

#: Delta of tables and lower bounds if no claim names one.
DEFAULT_DELTA = 1e-6

#: Bin edges of scores in many runs, and candidates for thresholds: log-likelihood ratios or differences of losses.
EDGES = tuple(number / 64 for number in range(-768, 769))

#: Number of measured steps if the adversary sees only the final model, so that only conformance needs them.
_LOOKS = 16

MECHANISM_SCHEMA: dict[str, dps.Json] = kit.block(
    None,
    ["noise_multiplier", "clip_norm", "sampling"],
    noise_multiplier=NOISE_MULTIPLIER,
    clip_norm=CLIP_NORM,
    sampling=SAMPLING,
    baselines=kit.array(
        "Conversions shown for comparison in the table of epsilon by group size. They change no bound and no verdict.",
        kit.choice(
            "linear: k times the epsilon of one record, not a bound. vadhan-literal and vadhan-sharp: black-box "
            "conversions.",
            "linear",
            "vadhan-literal",
            "vadhan-sharp",
        ),
        default=["linear"],
    ),
)


AUDIT_SCHEMA: dict[str, dps.Json] = kit.block(
    None,
    scores=scores_elsewhere.SCHEMA,
    score=string("The score of an input canary under the final model. Default: loss-difference."),
    expected_from=kit.integer(
        "Number of real records from which an adversary who sees iterates estimates the mean update. Default: all "
        "records. The sample is drawn independently at each step and is at least as large as a mean batch. It makes "
        "attacks on small batches much cheaper; its variance slightly lowers the power of scores and checks.",
        least=2,
    ),
    canary_free_run=kit.flag(
        "Whether to train a canary-free run with other seeds. Default: true. It measures the accuracy of the pipeline, "
        "and tests whether two runs add the same noise. Without it the audit trains once less, measures no accuracy, "
        "and refuses claims about it."
    ),
    shard_runs=SHARD_RUNS,
)


@dataclass(frozen=True, kw_only=True)
class Attack(kit.Options):
    """The attack that a spec with an audit declares, or that the inputs of a trial describe.

    ``spread`` is in radians. ``share`` is the number of canary groups per size and run. With scores from ``elsewhere``,
    ``space`` and ``kind`` are meaningless. ``expected_from``: number of records in the estimate of the mean update.
    ``scoring`` scores input canaries under the final model; trials set it from the context.
    """

    method: str
    runs: int = 1
    confidence: float = 0.95
    access: str
    space: str = "gradient"
    kind: str
    score: str = USUAL_SCORE
    spread: float = 0.0
    sizes: tuple[int, ...]
    share: int
    elsewhere: bool
    chosen_weights: bool
    every: int = 1
    expected_from: int | None = None
    scoring: Score | None = None
    canary_free_run: bool
    shard_runs: int | None = None

    @classmethod
    def of(cls, block: Mapping[str, dps.Json] | dps.Spec) -> Self:
        read = super().of(block)
        chosen = block.audit.score if isinstance(block, dps.Spec) and block.audit is not None else None
        return read if chosen is None else replace(read, scoring=chosen)

    @classmethod
    def read(cls, block: dps.FrozenMap) -> "Attack":
        audit, threat = block["audit"], block["threat_model"]
        canary = audit.get("canary") or {}
        sizes = tuple(sorted({int(size) for size in threat["group_size"]}))
        return cls.fill(
            {**audit, **canary, "access": threat["access"]},
            kind=str(canary.get("kind", USUAL[str(canary.get("space", "gradient"))])),
            sizes=sizes,
            share=int(canary.get("count", len(sizes))) // len(sizes),
            elsewhere="scores" in audit,
            canary_free_run=bool(audit.get("canary_free_run", (block.get("split") or {}).get("twin", True))),
            chosen_weights=isinstance((block.get("model") or {}).get("initial"), str),
            scoring=None,  # the key audit.scoring holds the options of the score
        )

    @property
    def count(self) -> int:
        return self.share * len(self.sizes)

    @property
    def white_box(self) -> bool:
        """Whether the adversary sees all iterates and scores canaries step by step."""
        return self.access in ("all-iterates", "transcript")

    @property
    def others_drawn(self) -> bool:
        """Whether the adversary sees the real records that each step drew."""
        return self.access == "transcript"

    @property
    def records_on_average(self) -> int:
        """Expected number of inserted records, with half of the groups present."""
        return self.share * sum(self.sizes) // 2

    @property
    def description(self) -> str:
        if self.elsewhere:
            return f"{self.method}, {self.access}, external scores, assuming fair coins independent of the scores"
        planted = "" if self.space == "gradient" else f", {self.kind} records"
        planted += f", gradients in one of {self.every} steps" if self.every > 1 else ""
        scored = "" if self.white_box or self.space == "gradient" else f" by {self.score}"
        started = ", worst-case initial weights" if self.chosen_weights else ""
        known = "" if self.expected_from is None else f", mean updates estimated from {self.expected_from} records"
        alone = "" if self.canary_free_run else ", no canary-free run"
        return f"{self.method}, {self.access}{planted}{scored}{known}{started}{alone}"

    @property
    def calibrated(self) -> bool:
        """Whether half of the canaries only calibrate the score."""
        return self.by_final_model and self.scoring is not None and self.scoring.learns

    @property
    def takes_gradients(self) -> bool:
        """Whether the score of input canaries uses their gradients under the final model."""
        return self.by_final_model and self.scoring is not None and self.scoring.gradients

    @property
    def trains(self) -> int:
        """Number of models that the score trains per run."""
        return self.scoring.models if self.by_final_model and self.scoring is not None else 0

    @property
    def by_final_model(self) -> bool:
        return self.space == "input" and not self.white_box

    def tested(self, canaries: int) -> int:
        return canaries - canaries // 2 if self.calibrated else canaries

    def scope(self, spec: dps.Spec, records: int) -> dps.Scope:
        """The executed pipeline on this dataset of ``records``, or with other inserted groups if a run has several."""
        return kit.executed_scope(
            spec,
            access=self.access,
            adversary="gradient" if self.space == "gradient" else "record",
            data="this" if self.method == "many-run" and len(self.sizes) == 1 else "planted",
            records=records,
        )

    @property
    def looks(self) -> int | None:
        """Number of steps that conformance measures; None for all."""
        return None if self.white_box else _LOOKS

    def watched(self, capabilities: Collection[str], training: Mapping[str, Any]) -> bool:
        """Whether the updates of a run are observed; optional for an adversary of the final model."""
        return self.white_box or ("iterates" in capabilities and updates_invertible(training))
