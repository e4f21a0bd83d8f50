"""Audit of ModelMix: DP-SGD that mixes its last two models randomly (Xiao, Wan and Devadas)."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import CLIP_NORM, NOISE, NOISE_MULTIPLIER, SAMPLING
from dpspec_modelmix.options import Attack, refusals

DPSPEC_API = 1

_MIXING: dict[str, dps.Json] = kit.block(
    "Mixing of the last two models before each update.",
    ["threshold"],
    threshold=kit.number(
        "Minimum gap tau between the two models in every coordinate before mixing; 0 gives no amplification.",
        least=0,
        most=1e30,
    ),
    relative_to=kit.choice(
        "learning-rate: threshold is tau divided by the learning rate of the step. absolute: it is tau itself.",
        "learning-rate",
        "absolute",
        default="learning-rate",
    ),
    enforcement=kit.choice(
        "exact: a gap below tau becomes tau. literal: it grows by tau, as printed in the paper, which adds noise "
        "without privacy.",
        "exact",
        "literal",
        default="exact",
    ),
    ties=kit.choice(
        "Value of sign(0) for equal coordinates. zero, as printed in the paper, leaves the gap at 0: the first "
        "step starts from two equal models and then has no uniform noise.",
        "positive",
        "zero",
        default="positive",
    ),
    weights=kit.choice(
        "Independent mixing weights per coordinate, or one shared weight, which gives no amplification.",
        "per-coordinate",
        "shared",
        default="per-coordinate",
    ),
    unmixed=kit.array(
        "Parameters that are not mixed. A single one removes the amplification.",
        {"type": "string", "minLength": 1, "description": "A parameter's name, or the layer's before it."},
        unique=True,
        default=[],
    ),
)

_EMBEDDING: dict[str, dps.Json] = kit.block(
    "Splits every gradient into a component in a public subspace and a residual, with separate clip norms and noise. "
    "noise_multiplier and clip_norm of the phase apply to the residual.",
    ["form", "dimension", "clip_norm", "noise_multiplier"],
    form=kit.choice(
        "isotropic-floor: both parts count against the residual's noise, which covers all directions and is mixed; the "
        "account ignores the noise in the subspace. residual-only: each part counts against its own noise, and mixing "
        "amplifies only the residual. Amplifying both parts would be unsound.",
        "isotropic-floor",
        "residual-only",
    ),
    dimension=kit.integer("The dimension of the subspace.", least=1, most=100000),
    clip_norm={**CLIP_NORM, "description": "Maximum l2 norm of the component in the subspace."},
    noise_multiplier=kit.number(
        "Standard deviation of the noise in the subspace, divided by the clip norm there.", least=0, most=1e6
    ),
    anchors=kit.integer(
        "Number of public records of the test split whose gradients at each released model span the subspace. "
        "0: a fixed random subspace.",
        least=0,
        most=100000,
        default=0,
    ),
)

_MECHANISM: dict[str, dps.Json] = kit.block(
    None,
    ["noise_multiplier", "clip_norm", "mixing", "sampling"],
    noise_multiplier=NOISE_MULTIPLIER,
    noise=NOISE,
    clip_norm={
        **CLIP_NORM,
        "description": "Maximum norm of each record's gradient: the l2 norm, or the l1 norm if noise is laplace.",
    },
    linf_truncation=kit.integer(
        "p: after clipping, every coordinate of a record's gradient is truncated to +- clip_norm / sqrt(p). 1 changes "
        "nothing.",
        least=1,
        most=1000000000,
        default=1,
    ),
    mixing=_MIXING,
    embedding=_EMBEDDING,
    reduction=kit.choice(
        "Divisor of the noisy sum in an update: mean, the expected batch size; sum, 1. It determines the gap relative "
        "to the noise and replaces training.reduction.",
        "mean",
        "sum",
        default="mean",
    ),
    sampling=SAMPLING,
)

_AUDIT: dict[str, dps.Json] = kit.block(
    None,
    twins=kit.block(
        "Also train DP-SGD and compare accuracies: once with the same noise, once with noise for the same epsilon.",
        delta=kit.number("delta at which the second run has the same epsilon.", above=0, below=1, default=1e-5),
        learning_rate=kit.number(
            "Learning rate of both runs; by default two thirds of ModelMix's, for updates of equal length.",
            above=0,
            most=1000000,
        ),
    ),
)

MODELMIX = dps.Mechanism(
    kind="modelmix",
    summary="ModelMix: DP-SGD that mixes its last two models randomly, and the privacy amplification of mixing",
    assumptions=("dpspec_modelmix.findings",),
    description="training with noise (DP-SGD), which continues from a random mixture of its last two models",
    schemas=dps.Schemas(mechanism=_MECHANISM, audit=_AUDIT),
    metrics=frozenset({"accuracy", "accuracy-same-noise", "accuracy-same-epsilon"}),
    claims=frozenset({"approx-dp", "metric"}),
    audit="dpspec_modelmix:ModelMixAudit",
    example=Path(__file__).with_name("example.yaml").read_text(encoding="utf-8"),
    trial_revision=3,
    losses=True,
)


class ModelMixAudit(dps.Audit):
    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        from dpspec_modelmix.findings import findings

        return findings(spec, context)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        from dpspec.stats.attacks import guess_counts
        from dpspec_modelmix.findings import LEAST_GUESSES

        assert spec.audit is not None
        runs, parameters, attack = spec.audit.runs, facts.parameters or 0, Attack.of(spec.audit.options)
        # The DP-SGD runs, and the attack's gradients of all records at every step.
        steps = runs * spec.steps * (4.0 if attack.twins is not None else 2.0)
        canaries, delta = attack.count * runs, kit.claimed_deltas(spec)[-1]
        guesses = [sum(pair) for pair in guess_counts.blind(canaries, least=LEAST_GUESSES)]
        power = dps.Power(
            at=dps.FrozenMap({"delta": delta}),
            epsilon=guess_counts.largest(canaries, guesses, delta, spec.audit.confidence),
            method=f"one-run, all-iterates, {canaries} {attack.kind} canaries",
            note="the uniform noise of mixing hides canaries: expect much less",
        )
        return dps.Plan(
            chunks=kit.chunks(runs),
            seconds=kit.training_seconds(parameters, steps * facts.records, steps),
            memory_bytes=kit.training_bytes(facts),
            power=(power,),
            # Mixed models themselves allow no measurement.
            checks=kit.expected_checks(spec, facts, trials=runs, undone=False, planted=attack.count // 2),
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        return kit.select_inputs(super().trial_inputs(spec), threat_model=("adjacency", "access"))

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        from dpspec_modelmix.attack import run_trials

        return run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        from dpspec_modelmix.findings import outcomes

        return outcomes(spec, trials)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield MODELMIX
