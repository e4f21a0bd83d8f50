"""What the plugin offers, as a light value."""

from __future__ import annotations

import dpspec.contract as dps
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING

_MECHANISM = {
    "type": "object",
    "properties": {
        "noise_multiplier": NOISE_MULTIPLIER,
        "clip_norm": CLIP_NORM,
        "sampling": SAMPLING,
        "baselines": {
            "type": "array",
            "items": {
                "enum": ["linear", "vadhan-literal", "vadhan-sharp", "full-batch"],
                "description": "linear: k times the epsilon of one record, which is no bound. vadhan-literal and "
                "vadhan-sharp: black-box conversions. full-batch: without amplification by sampling.",
            },
            "default": ["linear"],
            "description": "What is shown beside the tight bound in the table of epsilon by group size. It changes no "
            "bound and no verdict.",
        },
    },
    "required": ["noise_multiplier", "clip_norm", "sampling"],
    "additionalProperties": False,
}

_AUDIT = {
    "type": "object",
    "properties": {
        "score": {
            "enum": ["loss-difference", "loss", "likelihood-ratio"],
            "description": "What a final model is asked about planted records: by how much their loss fell since the "
            "first model (this is the default), how small it is, or how likely both are if they were planted, learned "
            "from half of the canaries, which are not guessed then.",
        },
        "stop": {
            "enum": ["planned", "settled"],
            "description": "When many runs end: after all of them (this is the default), or as soon as every claim "
            "about privacy is proved or refuted, by a test that holds whenever one stops.",
        },
    },
    "additionalProperties": False,
}

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

GROUP = dps.Mechanism(
    kind="group",
    summary="DP-SGD: what groups of k records lose, by mixtures of Gaussians",
    schemas=dps.Schemas(mechanism=_MECHANISM, audit=_AUDIT),
    claims=frozenset({"approx-dp", "metric"}),
    audit="dpspec_group.audit:GroupAudit",
    example=EXAMPLE,
    trial_revision=5,
)
