"""What the plugin offers, as a light value."""

from __future__ import annotations

import dpspec.contract as dps
from dpspec.contract.fragments import CLIP_NORM, NOISE, NOISE_MULTIPLIER, SAMPLING

#: What can stand beside the repaired bound.
BASELINES = ("fractional", "printed", "variance-matched", "limit", "pair")

_MIXING: dict[str, dps.Json] = {
    "type": "object",
    "description": "How the last two models are mixed before each update.",
    "properties": {
        "threshold": {
            "type": "number",
            "minimum": 0,
            "maximum": 1e30,
            "description": "The gap tau that the two models are brought to in every coordinate before they are mixed; "
            "0 mixes without hiding anything.",
        },
        "relative_to": {
            "enum": ["learning-rate", "absolute"],
            "default": "learning-rate",
            "description": "learning-rate: threshold is tau divided by the learning rate of the step. absolute: it is "
            "tau itself.",
        },
        "enforcement": {
            "enum": ["exact", "literal"],
            "default": "exact",
            "description": "exact: a gap below tau becomes tau. literal: it grows by tau, as the paper prints it, "
            "which adds noise and no privacy.",
        },
        "ties": {
            "enum": ["positive", "zero"],
            "default": "positive",
            "description": "What sign(0) is where both models agree. zero, as the paper prints it, leaves the gap at "
            "0: the first step, which starts from two equal models, then has no uniform noise.",
        },
        "weights": {
            "enum": ["per-coordinate", "shared"],
            "default": "per-coordinate",
            "description": "Whether every coordinate has a mixing weight of its own; shared ones amplify nothing.",
        },
        "unmixed": {
            "type": "array",
            "uniqueItems": True,
            "items": {"type": "string", "minLength": 1, "description": "A parameter's name, or the layer's before it."},
            "default": [],
            "description": "Parameters that are not mixed. A single one loses all of the amplification.",
        },
    },
    "required": ["threshold"],
    "additionalProperties": False,
}

_EMBEDDING: dict[str, dps.Json] = {
    "type": "object",
    "description": "Splits every gradient into its part within a subspace that is public and the residual, each with a "
    "clip norm and noise of its own; noise_multiplier and clip_norm beside this block are the residual's.",
    "properties": {
        "form": {
            "enum": ["isotropic-floor", "residual-only"],
            "description": "isotropic-floor: both parts count against the residual's noise, which fills all "
            "directions and is mixed; the noise within the subspace is left out of the account. residual-only: each "
            "part counts against its own noise, and mixing amplifies the residual alone. To credit both parts with "
            "the mixing would be unsound.",
        },
        "dimension": {
            "type": "integer",
            "minimum": 1,
            "maximum": 100000,
            "description": "The dimension of the subspace.",
        },
        "clip_norm": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "The l2 norm to which the part within the subspace is scaled down.",
        },
        "noise_multiplier": {
            "type": "number",
            "minimum": 0,
            "maximum": 1e6,
            "description": "Standard deviation of the noise within the subspace, divided by the clip norm there.",
        },
        "anchors": {
            "type": "integer",
            "minimum": 0,
            "maximum": 100000,
            "default": 0,
            "description": "How many records of the test split are public: their gradients at each released model span "
            "the subspace. 0: a random one that never changes.",
        },
    },
    "required": ["form", "dimension", "clip_norm", "noise_multiplier"],
    "additionalProperties": False,
}

_UTILITY: dict[str, dps.Json] = {
    "type": "object",
    "description": "What the paper's utility theorems need to know of the loss; they stand beside the bounds then.",
    "properties": {
        "smoothness": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "beta: gradients differ by at most so many times the distance of two models.",
        },
        "distance": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "The largest distance of any model on the way from the best one (Theorem 3.1, convex "
            "losses).",
        },
        "span": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "By how much losses differ at most (Theorems B.1 and 3.2, losses that need not be convex).",
        },
        "tail": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "kappa: a record's gradient is further than u from the mean one with probability at most "
            "e^(-u / kappa) (Lemma B.1).",
        },
    },
    "required": ["smoothness"],
    "additionalProperties": False,
}

_MECHANISM: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "noise_multiplier": NOISE_MULTIPLIER,
        "noise": NOISE,
        "clip_norm": {
            **CLIP_NORM,
            "description": "Each record's gradient is scaled down to at most this l2 norm; where noise is laplace, to "
            "this l1 norm.",
        },
        "linf_truncation": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000000000,
            "default": 1,
            "description": "p: after clipping, every coordinate of a record's gradient is cut to +- clip_norm / "
            "sqrt(p). 1 cuts nothing.",
        },
        "mixing": _MIXING,
        "embedding": _EMBEDDING,
        "reduction": {
            "enum": ["mean", "sum"],
            "default": "mean",
            "description": "What an update divides the noisy sum by: mean, the expected batch size; sum, nothing. It "
            "decides how wide the gap is beside the noise, and stands in place of training.reduction.",
        },
        "sampling": SAMPLING,
        "learning_rate": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1000000,
            "description": "The step size, which phases may change; by default that of the training block.",
        },
        "baselines": {
            "type": "array",
            "uniqueItems": True,
            "items": {
                "enum": list(BASELINES),
                "description": "fractional: orders below 2, which no theorem covers. printed: the paper's formulas as "
                "printed. variance-matched: plain DP-SGD whose noise has the same variance. limit: what ever larger "
                "linf_truncation comes to. pair: what the pair of the bound truly leaks, by FFT.",
            },
            "default": list(BASELINES),
            "description": "What is shown beside the bounds. It changes no bound and no trial.",
        },
        "utility": _UTILITY,
    },
    "required": ["noise_multiplier", "clip_norm", "mixing", "sampling"],
    "additionalProperties": False,
}

_AUDIT: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "twins": {
            "type": "object",
            "description": "Plain DP-SGD trained beside ModelMix, and how accurate each is: with the same noise, and "
            "with the noise that gives it the same epsilon.",
            "properties": {
                "delta": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "exclusiveMaximum": 1,
                    "default": 1e-5,
                    "description": "The delta at which the second twin has the same epsilon.",
                },
                "learning_rate": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 1000000,
                    "description": "The twins' step size; by default two thirds of ModelMix's, which moves the model "
                    "as far.",
                },
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}

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
    audit="dpspec_modelmix.audit:ModelMixAudit",
    example=EXAMPLE,
    trial_revision=2,
)
