"""Schemas of the plugin's keys, the attack that a spec declares, and refusals of unsupported specs.

Reads no rows and imports neither torch nor the accountant.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.attacks import USUAL, USUAL_SCORE, Score
from dpspec.contract.fragments import (
    CLIP_NORM,
    LEAST_CLIP_NORM,
    LEAST_NOISE_MULTIPLIER,
    MOST_CLIP_NORM,
    NOISE_MULTIPLIER,
    SAMPLING,
    SHARD_RUNS,
    string,
)
from dpspec.contract.phase import DISCRETE
from dpspec.kit import scores_elsewhere
from dpspec.sampling import scheme_of
from dpspec.training.adaptive_clipping import AdaptiveClipping
from dpspec.training.providers import updates_invertible
from dpspec_group.theory import drawn

#: Noise multipliers of discrete Gaussian noise: contributions have 10^8 to 1000 spacings.
LEAST_DISCRETE, MOST_DISCRETE = 0.01, 1000.0

#: Delta of tables and lower bounds if no claim names one.
DEFAULT_DELTA = 1e-6

#: Bin edges of scores in many runs, and candidates for thresholds: log-likelihood ratios or differences of losses.
EDGES = tuple(number / 64 for number in range(-768, 769))

#: Number of measured steps if the adversary sees only the final model, so that only conformance needs them.
_LOOKS = 16

CLIPPING: dict[str, dps.Json] = kit.block(
    "Choice of clip norms. flat (default): clip_norm at each step. per-layer: each of L tensors of parameters is "
    "clipped to clip_norm / sqrt(L), with the bounds of flat. adaptive: clip_norm at the first step of a phase, then "
    "by a noisy count of unclipped records, divided by the expected batch size (Andrew et al. 2021). Clip norms and "
    "counts are released. noise_multiplier is the noise on the sum of gradients alone; bounds charge the count too.",
    ["scheme"],
    scheme=kit.choice("flat, per-layer or adaptive.", "flat", "per-layer", "adaptive"),
    count_std=kit.number(
        "Standard deviation of the noise on the count, in records (adaptive, required).",
        least=LEAST_NOISE_MULTIPLIER,
        most=1e9,
    ),
    centered=kit.flag(
        "Whether an unclipped record adds 1/2 and a clipped one -1/2, instead of 1 and 0; default true (adaptive).",
    ),
    target_unclipped_quantile=kit.number(
        "Share of unclipped records that the clip norm approaches; default 0.5, the median of the norms (adaptive).",
        least=0,
        most=1,
    ),
    clipbound_learning_rate=kit.number(
        "Learning rate of the logarithm of the clip norm; default 0.2, and 0 keeps the clip norm (adaptive).",
        least=0,
        most=100,
    ),
    min_clipbound=kit.number(
        "Lower limit of the clip norm; default clip_norm / 100 (adaptive).", least=LEAST_CLIP_NORM, most=MOST_CLIP_NORM
    ),
    max_clipbound=kit.number(
        "Upper limit of the clip norm; default 100 clip_norm (adaptive).", least=LEAST_CLIP_NORM, most=MOST_CLIP_NORM
    ),
)

MECHANISM_SCHEMA: dict[str, dps.Json] = kit.block(
    None,
    ["noise_multiplier", "clip_norm", "sampling"],
    noise_multiplier=NOISE_MULTIPLIER,
    clip_norm=CLIP_NORM,
    sampling=SAMPLING,
    clipping=CLIPPING,
    noise=kit.choice(
        "Distribution of the noise, independent for every parameter. discrete-gaussian: integers on a grid of 2^-20 "
        "standard deviations, drawn exactly, and contributions rounded to this grid; floating-point arithmetic then "
        "releases nothing else. Default gaussian.",
        "gaussian",
        DISCRETE,
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
    score_counts=kit.flag(
        "Whether scores of gradient canaries also use the noisy counts of adaptive clipping, in which a drawn canary "
        "adds -1/2. Default: false. Only many runs with one group size and centered counts gain from it."
    ),
    shard_runs=SHARD_RUNS,
    stop=kit.choice(
        "End of many runs. planned (default): after all runs. e-value: once every privacy claim is proved or refuted, "
        "by a test that is valid at any stopping time.",
        "planned",
        "e-value",
    ),
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
    score_counts: bool = False
    shard_runs: int | None = None
    stop: str = "planned"

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
    def sequential(self) -> bool:
        """Whether the audit ends once its claims are decided."""
        return self.stop == "e-value"

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
        estimated = "" if self.expected_from is None else f", mean updates estimated from {self.expected_from} records"
        counted = ", scored with the noisy counts" if self.score_counts else ""
        alone = "" if self.canary_free_run else ", no canary-free run"
        return f"{self.method}, {self.access}{planted}{scored}{estimated}{counted}{started}{alone}"

    @property
    def calibrated(self) -> bool:
        """Whether half of the canaries only calibrate the score."""
        return self.by_final_model and self.scoring is not None and self.scoring.learns

    @property
    def takes_gradients(self) -> bool:
        """Whether the score of input canaries uses their gradients under the final model."""
        return self.by_final_model and self.scoring is not None and self.scoring.gradients

    def stores_gradients(self, phases: Sequence[dps.Phase]) -> bool:
        """Whether memory has to hold the gradients of all input canaries for their score."""
        most = self.scoring.streamed_above if self.scoring is not None else None
        plain = all(phase.sampling.is_full and phase.clipping_scheme == "flat" for phase in phases)
        return self.takes_gradients and not (plain and most is not None and self.count > most)

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


#: Maximum number of canaries, because trials store their order.
MAX_CANARIES = 50_000

#: Maximum memory for the gradients of all input canaries and their products, in bytes.
_MAX_BYTES = 2**30

#: Minimum numbers of canaries per group size, and of runs, with any power.
_MIN_CANARIES, _MIN_RUNS = 8, 16

#: Largest number of runs of the sequential test, ``MOST_RUNS`` in ``dpspec.stats.attacks.sequential``.
MOST_SEQUENTIAL_RUNS = 10**5

_CANARY = ("audit", "canary")


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    # Zero-out adjacency is supported where sums have the same distribution, and without an attack.
    schemes = drawn(spec.phases)
    theories = [scheme_of(phase).theory for phase in spec.phases]
    displaced = any(theory is not None and not theory.zero_out for theory in theories)
    # A null record is not clipped, so its count may differ from no record's: see proofs/adaptive-clipping.md.
    counted = any(phase.clipping_scheme == "adaptive" for phase in spec.phases)
    zero_out = spec.audit is None and not displaced and not counted
    covered = ("add-remove", "zero-out") if zero_out else ("add-remove",)
    if spec.threat_model.adjacency == "replace-one":
        yield from _replaced(spec)
    else:
        yield from dps.other_adjacencies(spec, covered, "the group theory", _adjacency_advice(schemes, zero_out))
    dependent = sorted(schemes - set(dps.Sampling.INDEPENDENT))
    dependent += ["user"] if any(phase.sampling.of_users for phase in spec.phases) else []
    if spec.threat_model.access == "transcript" and dependent:
        yield kit.unsupported(
            f"no bound covers a transcript of {dependent[0]} sampling: it needs batches of records that are drawn "
            "independently of the group",
            ("threat_model", "access"),
            "write access: all-iterates, or sampling: {scheme: poisson, ...}",
        )
    largest = max(spec.threat_model.group_size)
    if largest > facts.records:
        yield dps.Diagnostic(
            code="group-too-large",
            message=f"a group of {largest} records does not fit into {facts.records} training records",
            path=("threat_model", "group_size"),
            help=f"write at most {facts.records}",
        )
    yield from _mechanism(spec, facts)
    if spec.audit is not None:
        yield from _attack(spec, facts)


def _replaced(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Refusals under replace-one adjacency, which all claims of a spec share."""
    help = "write adjacency: add-remove, or a separate spec for these claims"
    yield from dps.other_adjacencies(spec, "replace-one", "a spec of replaced records", help)
    path = ("threat_model", "adjacency")
    theories = {phase.sampling.scheme: scheme_of(phase).replaced for phase in spec.phases}
    for name, theory in sorted(theories.items()):
        if theory is None:
            yield kit.unsupported(f"no theorem here covers replaced records in {name} batches", path, help)
        elif theory.alone and len(theories) > 1:
            message = f"replaced records in {name} batches need {name} batches in all phases"
            yield kit.unsupported(message, path, help)
    if spec.audit is not None:
        yield kit.unsupported("the attack removes canaries, and replaces none", path, f"remove audit, or {help}")


def replaced_users(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Refusal of batches that depend on the number of records, which replaced users change."""
    replaced = spec.threat_model.adjacency == "replace-one" and spec.threat_model.unit == "user"
    if replaced and any(phase.sampling.batch_size is not None for phase in spec.phases):
        message = "replacing a user changes the number of records, on which fixed and shuffled batches depend"
        yield kit.unsupported(message, ("threat_model", "adjacency"), "train with poisson or full batches")


def _adjacency_advice(schemes: Collection[str], zero_out: bool) -> str:
    claimed = "adjacency: add-remove or zero-out" if zero_out else "adjacency: add-remove"
    advice = f"claim it with {claimed}, or write threat_model.adjacency: replace-one for all claims"
    if not zero_out:
        advice += "; zero-out needs poisson, full, allocated or shuffled batches without max_batch, constant clip "
        advice += "norms, and no audit block"
    return advice


#: The fix of a fixed batch size that is the number of records: with one record more, it would leave one out.
_ALL_RECORDS = "if every batch takes all records, however many there are, write scheme: full"


def _mechanism(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    schemes = {phase.sampling.scheme: scheme_of(phase) for phase in spec.phases}
    largest = max(spec.threat_model.group_size)
    for i, phase in enumerate(spec.phases):
        sampling = phase.sampling
        yield from _clipping(spec, facts, i, phase)
        if phase.noise == DISCRETE:
            yield from _discrete(spec, facts, i, phase)
        if schemes[sampling.scheme].theory is None:
            message = f"no theorem here covers {sampling.scheme} batches"
            help = "train with poisson or fixed sampling; the bound for one does not hold for the other"
            yield kit.unsupported(message, dps.in_phase(spec, i, "sampling", "scheme"), help)
        without = largest if sampling.is_fixed else 0
        if (sampling.batch_size or 0) > facts.records - without:
            group = f" without a group of {largest}" if without else ""
            yield kit.bad_value(
                f"batch_size {sampling.batch_size} exceeds the {facts.records - without} records{group}",
                dps.in_phase(spec, i, "sampling", "batch_size"),
                _ALL_RECORDS if without and sampling.batch_size == facts.records else None,
            )
        if sampling.epoch_steps is not None and sampling.batches_per_epoch > sampling.epoch_steps:
            yield kit.bad_value(
                f"batches_per_epoch must be at most epoch_steps, {sampling.epoch_steps}, "
                f"got {sampling.batches_per_epoch}",
                dps.in_phase(spec, i, "sampling", "batches_per_epoch"),
            )
        if sampling.epoch_steps is not None and phase.steps % sampling.epoch_steps:
            multiple = phase.steps - phase.steps % sampling.epoch_steps + sampling.epoch_steps
            message = f"steps must be a multiple of epoch_steps = {sampling.epoch_steps}, got {phase.steps}"
            help = f"write {multiple}, or another multiple of {sampling.epoch_steps}"
            yield kit.bad_value(message, dps.in_phase(spec, i, "steps"), help)
        yield from kit.too_little_noise(phase.noise_multiplier, dps.in_phase(spec, i, "noise_multiplier"))
        if phase.noiseless:
            yield dps.Diagnostic(
                code="no-noise",
                message="without noise epsilon is infinite",
                path=dps.in_phase(spec, i, "noise_multiplier"),
                severity="warning",
            )


def _clipping(spec: dps.Spec, facts: dps.Facts, number: int, phase: dps.Phase) -> Iterator[dps.Diagnostic]:
    options, path = phase.get("clipping") or {}, dps.in_phase(spec, number, "clipping", "scheme")
    if phase.clipping_scheme == "per-layer":
        if spec.audit is not None and "scores" not in spec.audit.options and "parts" not in facts.capabilities:
            message = f"backend {spec.training.kind!r} does not clip each layer"
            yield kit.unsupported(message, path, "scheme: flat, or training.backend: native")
        if phase.sampling.max_batch is not None:  # lower ends use gradients at any angle
            yield kit.unsupported("no bound covers max_batch with clipping per layer", path, "scheme: flat")
    if phase.clipping_scheme != "adaptive":
        for key in sorted(options.keys() - {"scheme"}):
            yield kit.unsupported(f"{key} applies to scheme: adaptive only", (*path[:-1], key), f"remove {key}")
        return
    if "count_std" not in options:
        help = (
            "for example a twentieth of the expected batch, count_std: 5 for batches of 100; without noise the count "
            "reveals records"
        )
        yield kit.missing_key("count_std", dps.in_phase(spec, number, "clipping"), help)
    elif (rule := AdaptiveClipping.of(phase)) is not None:
        # A default limit follows the clip norm; a wrong one is the spec's.
        for key, wrong in (
            ("min_clipbound", rule.min_clipbound > phase.clip_norm),
            ("max_clipbound", rule.max_clipbound < phase.clip_norm),
        ):
            if wrong:
                relation = "at most" if key == "min_clipbound" else "at least"
                message = f"{key} must be {relation} clip_norm, {phase.clip_norm:g}, got {options[key]:g}"
                yield kit.bad_value(message, (*path[:-1], key))
    if spec.audit is not None and "scores" not in spec.audit.options and "parts" not in facts.capabilities:
        message = f"backend {spec.training.kind!r} does not train with adaptive clipping"
        yield kit.unsupported(message, path, "training.backend: native, or remove audit")


def _discrete(spec: dps.Spec, facts: dps.Facts, number: int, phase: dps.Phase) -> Iterator[dps.Diagnostic]:
    """Options that integers do not support, and noise multipliers outside the range of the grid."""
    path = dps.in_phase(spec, number, "noise")
    if {declared.noise for declared in spec.phases} != {DISCRETE}:
        yield kit.unsupported("phases with different noise distributions", path, f"noise: {DISCRETE} in all phases")
    if phase.clipping_scheme == "adaptive":
        yield kit.unsupported("noise: discrete-gaussian needs a fixed clip norm", path, "scheme: flat")
    if phase.sampling.of_users:
        yield kit.unsupported("noise: discrete-gaussian needs sampling.unit: record", path, "remove noise")
    if not LEAST_DISCRETE <= phase.noise_multiplier <= MOST_DISCRETE:
        yield kit.bad_value(
            f"noise_multiplier must be between {LEAST_DISCRETE:g} and {MOST_DISCRETE:g} with noise: discrete-gaussian, "
            f"got {phase.noise_multiplier:g}",
            dps.in_phase(spec, number, "noise_multiplier"),
        )
    has_scores = spec.audit is not None and "scores" in spec.audit.options
    if not has_scores and "parts" not in facts.capabilities:  # also of a recording, which has no audit
        message = f"backend {spec.training.kind!r} does not train with discrete Gaussian noise"
        yield kit.unsupported(message, path, "training.backend: native")


def _attack(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    if "scores" in spec.audit.options:
        if spec.model is not None and isinstance(spec.model.get("initial"), str):
            yield kit.unsupported(
                "model.initial does not apply to scores from an external program, which chose its own initial weights",
                ("model", "initial"),
                "remove initial",
            )
        yield from scores_elsewhere.refusals(spec)
        return
    canary = spec.audit.options.get("canary")
    if canary is None:
        help = "for example canary: {space: gradient, kind: orthogonal, count: 1000}"
        yield kit.missing_key("canary", ("audit",), help)
        return
    yield from kit.requires_data(facts)
    attack = Attack.of(spec)
    needs: dict[str, str | None] = {}
    if attack.white_box:
        needs["iterates"] = "set access: final-model, or choose another backend"
    if attack.others_drawn:
        needs["sampling-log"] = "set access: all-iterates, or choose another backend"
    if attack.space == "gradient":
        needs["gradient-canaries"] = "set canary.space: input, or choose another backend"
    yield from kit.requires_capabilities(spec, facts, needs)
    if attack.white_box and not updates_invertible(spec.training.options):
        message = "the attack inverts each update, and Adam's updates are not invertible"
        help = "the bounds hold for adam too: remove audit, use access: final-model, or train with sgd or momentum"
        yield kit.unsupported(message, ("training", "optimizer"), help)
    yield from kit.requires_model(facts)
    if facts.parameters is None:
        return
    if attack.every > spec.steps:
        yield kit.bad_value(
            f"every must be at most the {spec.steps} steps, got {attack.every}: no step would have canary gradients",
            (*_CANARY, "every"),
        )
    yield from _options(spec, facts, attack)
    yield from _counts(spec, facts, canary, attack)


def _counts(spec: dps.Spec, facts: dps.Facts, canary: dps.FrozenMap, attack: Attack) -> Iterator[dps.Diagnostic]:
    """Numbers of canaries and runs: for any power, and within parameters, memory and the size of evidence."""
    assert facts.parameters is not None
    sizes, runs = len(attack.sizes), attack.runs
    if attack.method == "many-run":
        if int(canary.get("count", sizes)) != sizes:
            message = f"count must be {sizes} with many-run, one group per size, got {canary['count']}"
            yield kit.bad_value(message, (*_CANARY, "count"), "remove count; audit.runs determines the power")
        if runs < _MIN_RUNS:
            yield kit.bad_value(f"runs must be at least {_MIN_RUNS} with many-run, got {runs}", ("audit", "runs"))
        if attack.sequential and runs > MOST_SEQUENTIAL_RUNS:
            yield kit.bad_value(
                f"runs must be at most {MOST_SEQUENTIAL_RUNS} with stop: e-value, got {runs}",
                ("audit", "runs"),
                "remove stop, or write fewer runs",
            )
    elif "count" not in canary:
        yield kit.missing_key("count", _CANARY)
    else:
        smallest = _MIN_CANARIES * (2 if attack.calibrated else 1)
        if (count := int(canary["count"])) // sizes < smallest:
            message = f"count must be at least {smallest * sizes}, {smallest} per group size, got {count}"
            yield kit.bad_value(message, (*_CANARY, "count"))
    limits: Sequence[tuple[int, str]]
    if attack.space == "gradient":
        dimensions = 2 if attack.spread > 0 else 1
        space = "a separate direction" if dimensions == 1 else "two separate dimensions"
        limits = [(facts.parameters // dimensions, f"every canary needs {space} among {facts.parameters} parameters")]
        if attack.kind != USUAL["gradient"]:
            most_canaries = _MAX_BYTES // (16 * facts.parameters)
            limits = [
                *limits,
                (most_canaries, f"memory holds the directions of all canaries in {facts.parameters} dimensions"),
            ]
    else:
        in_memory = attack.white_box or attack.stores_gradients(spec.phases)
        most_canaries = _MAX_BYTES // (4 * facts.parameters) if in_memory else MAX_CANARIES
        limits = [(most_canaries, f"memory holds the gradients of all canaries by {facts.parameters} parameters")]
    for limit, reason in [*limits, (MAX_CANARIES, "the result stores the order of all canaries")]:
        if attack.count > limit:
            yield kit.bad_value(f"count must be at most {limit}, got {attack.count}: {reason}", (*_CANARY, "count"))
            return


def _options(spec: dps.Spec, facts: dps.Facts, attack: Attack) -> Iterator[dps.Diagnostic]:
    """Options that this attack cannot use."""
    assert spec.audit is not None
    many, final, usual = attack.method == "many-run", "access: final-model and canary.space", USUAL["gradient"]
    poisson = all(phase.sampling.is_poisson and not phase.sampling.of_users for phase in spec.phases)
    invertible = updates_invertible(spec.training.options)
    adaptive = [phase for phase in spec.phases if phase.clipping_scheme == "adaptive"]
    countable = bool(adaptive) and all((phase.get("clipping") or {}).get("centered", True) for phase in adaptive)
    countable &= all(phase.sampling.scheme in ("poisson", "full") and not phase.sampling.of_users for phase in adaptive)
    one_group = many and attack.white_box and attack.space == "gradient" and len(attack.sizes) == 1
    estimates = poisson and not many and not attack.others_drawn
    estimates &= attack.watched(facts.capabilities, spec.training.options)
    conflicts: list[tuple[bool, str, dps.Path, str]] = [
        (
            attack.spread > 0 and attack.kind != usual,
            f"spread applies to {usual} gradient canaries, whose coordinates no other canary uses",
            (*_CANARY, "spread"),
            f"remove spread, or write space: gradient and kind: {usual}",
        ),
        (
            attack.every > 1 and (attack.white_box or attack.space != "gradient"),
            f"every applies to {final}: gradient only; other canaries can be in every step",
            (*_CANARY, "every"),
            "remove every, or write access: final-model and space: gradient",
        ),
        (
            "score" in spec.audit.options and not attack.by_final_model,
            f"score applies to {final}: input only",
            ("audit", "score"),
            "remove score",
        ),
        (
            attack.takes_gradients and not invertible,
            f"{attack.score} scores by sums of gradients and needs invertible updates, unlike Adam's",
            ("audit", "score"),
            "write score: loss-difference, or train with sgd or momentum",
        ),
        (
            many and bool(attack.calibrated or attack.trains),
            f"{attack.score} compares the canaries of a run, but many-run inserts one group per size, the same in all "
            "runs",
            ("audit", "score"),
            "with many-run write score: loss or loss-difference",
        ),
        (
            bool(adaptive) and attack.space == "gradient" and not attack.white_box,
            "gradient canaries are scored under the final model by the declared clip norm, and adaptive clipping has "
            "another one at each step",
            ("threat_model", "access"),
            "write access: all-iterates, or canary.space: input",
        ),
        (
            bool(adaptive) and attack.takes_gradients,
            f"{attack.score} scores by the declared clip norm, and adaptive clipping has another one at each step",
            ("audit", "score"),
            "write score: loss-difference",
        ),
        (
            attack.score_counts
            and not (countable and one_group and attack.expected_from is None and not attack.spread),
            "score_counts needs adaptive clipping with centered counts, poisson or full batches of records, many-run, "
            "access to all iterates, and gradient canaries of one group size without spread and expected_from",
            ("audit", "score_counts"),
            "remove score_counts",
        ),
        (
            attack.sequential and not many,
            "stop: e-value needs many-run; the test of one-run needs a fixed number of guesses",
            ("audit", "stop"),
            "remove stop, or write method: many-run",
        ),
        (
            attack.shard_runs is not None and not many,
            "shard_runs applies to many-run only; with one-run every run is a separate task",
            ("audit", "shard_runs"),
            "remove shard_runs, or write method: many-run",
        ),
        (
            attack.expected_from is not None and not estimates,
            "expected_from applies to one-run attacks on Poisson batches of records that invert updates without seeing "
            "the drawn records",
            ("audit", "expected_from"),
            "remove expected_from",
        ),
    ]
    for wrong, message, path, help in conflicts:
        if wrong:
            yield kit.unsupported(message, path, help)
    for i, claim in enumerate(spec.claims):
        if claim.kind == "metric" and not attack.canary_free_run:
            message = f"claim {claim.id!r} needs the canary-free run, which canary_free_run: false disables"
            yield kit.unsupported(message, ("claims", i), "remove canary_free_run: false, or the claim")
    batch = max(phase.rate() for phase in spec.phases) * facts.records if estimates else 0.0
    # A product of a rate and a number of records may be rounded upwards.
    if estimates and not batch * (1.0 - 1e-12) <= (attack.expected_from or batch) <= facts.records:
        yield kit.bad_value(
            f"expected_from must be from {batch:g}, the mean batch size, to {facts.records}, the number of records, "
            f"got {attack.expected_from}: with a smaller sample a record would have a weight above 1",
            ("audit", "expected_from"),
        )
