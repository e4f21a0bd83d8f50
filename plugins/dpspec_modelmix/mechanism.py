"""What the plugin offers: its schema, an example, and the steps of the ModelMix audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import CLIP_NORM, NOISE, NOISE_MULTIPLIER, SAMPLING
from dpspec_modelmix.options import Attack
from dpspec_modelmix.refusals import refusals

#: What can stand beside the repaired bound.
BASELINES = ("fractional", "printed", "variance-matched", "limit", "pair")

_MIXING: dict[str, dps.Json] = kit.block(
    "How the last two models are mixed before each update.",
    ["threshold"],
    threshold=kit.number(
        "The gap tau that the two models are brought to in every coordinate before they are mixed; 0 mixes without "
        "hiding anything.",
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
        "exact: a gap below tau becomes tau. literal: it grows by tau, as the paper prints it, which adds noise "
        "and no privacy.",
        "exact",
        "literal",
        default="exact",
    ),
    ties=kit.choice(
        "What sign(0) is where both models agree. zero, as the paper prints it, leaves the gap at 0: the first "
        "step, which starts from two equal models, then has no uniform noise.",
        "positive",
        "zero",
        default="positive",
    ),
    weights=kit.choice(
        "Whether every coordinate has a mixing weight of its own; shared ones amplify nothing.",
        "per-coordinate",
        "shared",
        default="per-coordinate",
    ),
    unmixed=kit.array(
        "Parameters that are not mixed. A single one loses all of the amplification.",
        {"type": "string", "minLength": 1, "description": "A parameter's name, or the layer's before it."},
        unique=True,
        default=[],
    ),
)

_EMBEDDING: dict[str, dps.Json] = kit.block(
    "Splits every gradient into its part within a subspace that is public and the residual, each with a clip norm and "
    "noise of its own; noise_multiplier and clip_norm beside this block are the residual's.",
    ["form", "dimension", "clip_norm", "noise_multiplier"],
    form=kit.choice(
        "isotropic-floor: both parts count against the residual's noise, which fills all directions and is mixed; the "
        "noise within the subspace is left out of the account. residual-only: each part counts against its own noise, "
        "and mixing amplifies the residual alone. To credit both parts with the mixing would be unsound.",
        "isotropic-floor",
        "residual-only",
    ),
    dimension=kit.integer("The dimension of the subspace.", least=1, most=100000),
    clip_norm={**CLIP_NORM, "description": "The l2 norm to which the part within the subspace is scaled down."},
    noise_multiplier=kit.number(
        "Standard deviation of the noise within the subspace, divided by the clip norm there.", least=0, most=1e6
    ),
    anchors=kit.integer(
        "How many records of the test split are public: their gradients at each released model span the subspace. "
        "0: a random one that never changes.",
        least=0,
        most=100000,
        default=0,
    ),
)

_UTILITY: dict[str, dps.Json] = kit.block(
    "What the paper's utility theorems need to know of the loss; they stand beside the bounds then.",
    ["smoothness"],
    smoothness=kit.number("beta: gradients differ by at most so many times the distance of two models.", above=0),
    distance=kit.number(
        "The largest distance of any model on the way from the best one (Theorem 3.1, convex losses).", above=0
    ),
    span=kit.number(
        "By how much losses differ at most (Theorems B.1 and 3.2, losses that need not be convex).", above=0
    ),
    tail=kit.number(
        "kappa: a record's gradient is further than u from the mean one with probability at most e^(-u / kappa) "
        "(Lemma B.1).",
        above=0,
    ),
)

_MECHANISM: dict[str, dps.Json] = kit.block(
    None,
    ["noise_multiplier", "clip_norm", "mixing", "sampling"],
    noise_multiplier=NOISE_MULTIPLIER,
    noise=NOISE,
    clip_norm={
        **CLIP_NORM,
        "description": "Each record's gradient is scaled down to at most this l2 norm; where noise is laplace, to this "
        "l1 norm.",
    },
    linf_truncation=kit.integer(
        "p: after clipping, every coordinate of a record's gradient is cut to +- clip_norm / sqrt(p). 1 cuts nothing.",
        least=1,
        most=1000000000,
        default=1,
    ),
    mixing=_MIXING,
    embedding=_EMBEDDING,
    reduction=kit.choice(
        "What an update divides the noisy sum by: mean, the expected batch size; sum, nothing. It decides how wide "
        "the gap is beside the noise, and stands in place of training.reduction.",
        "mean",
        "sum",
        default="mean",
    ),
    sampling=SAMPLING,
    learning_rate=kit.number(
        "The step size, which phases may change; by default that of the training block.", above=0, most=1000000
    ),
    baselines=kit.array(
        "What is shown beside the bounds. It changes no bound and no trial.",
        kit.choice(
            "fractional: orders below 2, which no theorem covers. printed: the paper's formulas as printed. "
            "variance-matched: plain DP-SGD whose noise has the same variance. limit: what ever larger linf_truncation "
            "comes to. pair: what the pair of the bound truly leaks, by FFT.",
            *BASELINES,
        ),
        unique=True,
        default=list(BASELINES),
    ),
    utility=_UTILITY,
)

_AUDIT: dict[str, dps.Json] = kit.block(
    None,
    twins=kit.block(
        "Plain DP-SGD trained beside ModelMix, and how accurate each is: with the same noise, and with the noise that "
        "gives it the same epsilon.",
        delta=kit.number("The delta at which the second twin has the same epsilon.", above=0, below=1, default=1e-5),
        learning_rate=kit.number(
            "The twins' step size; by default two thirds of ModelMix's, which moves the model as far.",
            above=0,
            most=1000000,
        ),
    ),
)

EXAMPLE = """\
dpspec: 1
name: modelmix-example
description: ModelMix on synthetic points beside plain DP-SGD

mechanism:
  kind: modelmix
  noise_multiplier: 1.0
  clip_norm: 1.0
  linf_truncation: 4
  mixing: {threshold: 0.5}
  sampling: {scheme: poisson, rate: 0.1}
  steps: 20

data: {kind: synthetic, pattern: blobs, records: 200, features: 40, classes: 4}
model: {kind: linear}
training: {backend: native, learning_rate: 0.5}

claims:
  - {id: mixed, kind: approx-dp, epsilon: 2.0, delta: 1e-5, expect: supported}
  - {id: unmixed, kind: approx-dp, epsilon: 6.0, delta: 1e-5}

audit:
  method: one-run
  canary: {space: gradient, kind: one-hot, count: 32}
  seed: 1
"""

MODELMIX = dps.Mechanism(
    kind="modelmix",
    summary="DP-SGD that mixes its last two models at random: what that amplifies, and what it does not",
    schemas=dps.Schemas(mechanism=_MECHANISM, audit=_AUDIT),
    claims=frozenset({"approx-dp", "metric"}),
    audit="dpspec_modelmix.mechanism:ModelMixAudit",
    example=EXAMPLE,
    trial_revision=3,
)


class ModelMixAudit(dps.Audit):
    """Upper bounds by the repaired theorem and by plain DP-SGD, lower ones from white-box canaries in one run."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """What the theory does not cover, what mixing does not amplify, and what cannot be attacked."""
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        """Epsilon with mixing and without, what the paper prints, and three curves."""
        from dpspec_modelmix import bounds

        yield from bounds.findings(spec, context)
        yield from bounds.curves(spec, context.facts)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One trial per run."""
        from dpspec_modelmix.evidence import attack_power, foreseen_checks

        assert spec.audit is not None
        runs, parameters = spec.audit.runs, facts.parameters or 0
        # The twins, and the gradients of all records that the attack takes at every step.
        trainings = 4.0 if Attack.of(spec.audit.options).twins is not None else 2.0
        steps = runs * spec.steps * trainings
        return dps.Plan(
            chunks=kit.chunks(runs),
            seconds=kit.training_seconds(parameters, steps * facts.records, steps),
            memory_bytes=kit.training_bytes(facts),
            power=attack_power(spec),
            checks=foreseen_checks(spec, facts),
        )

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """The default without what no trial reads: what only stands beside bounds, and parts of the threat model."""
        inputs = super().trial_inputs(spec)
        return kit.select_inputs(
            inputs, mechanism_without=("baselines", "utility"), threat_model=("adjacency", "access")
        )

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        """Train with canaries, and without them by ModelMix and by plain DP-SGD."""
        from dpspec_modelmix.attack import run_trials

        return run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """Lower bounds with their evidence, gaps, accuracies, and checks of what ran."""
        from dpspec_modelmix.evidence import outcomes

        return outcomes(spec, trials)
