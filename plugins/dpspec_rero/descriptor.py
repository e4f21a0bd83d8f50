"""What the plugin offers, as a light value."""

from __future__ import annotations

import dpspec.contract as dps
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING

#: What can stand beside the certified bound.
BASELINES = ("clt", "clt-printed", "edgeworth", "contour", "rdp", "epsilon-delta", "absent-first", "symmetrised")

_SENSITIVITY: dict[str, dps.Json] = {
    "type": "object",
    "description": "By how much one record can move what a step computes: in the l1 norm for Laplace noise, in the l2 "
    "norm for Gaussian noise. Instead of clip_norm.",
    "properties": {
        "l1": {"type": "number", "exclusiveMinimum": 0, "description": "The sensitivity in the l1 norm."},
        "l2": {"type": "number", "exclusiveMinimum": 0, "description": "The sensitivity in the l2 norm."},
    },
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}

_MECHANISM: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "noise": {
            "enum": ["gaussian", "laplace"],
            "default": "gaussian",
            "description": "The law of the noise that every step adds.",
        },
        "noise_multiplier": NOISE_MULTIPLIER,
        "clip_norm": CLIP_NORM,
        "scale": {
            "type": "number",
            "minimum": 0,
            "description": "The noise in units of what is released: the scale b of Laplace noise, the standard "
            "deviation of Gaussian noise. Instead of noise_multiplier.",
        },
        "sensitivity": _SENSITIVITY,
        "sampling": SAMPLING,
        "baselines": {
            "type": "array",
            "uniqueItems": True,
            "items": {
                "enum": list(BASELINES),
                "description": "clt and edgeworth: approximations, on neither side for certain; clt-printed: with the "
                "exponent that the paper's main text prints. contour: about eleven digits, for Gaussian noise. rdp and "
                "epsilon-delta: bounds by way of Renyi divergences and of one epsilon. absent-first: the other "
                "direction, which is no bound. symmetrised: the curve for both directions, a looser bound.",
            },
            "default": ["clt", "edgeworth", "rdp"],
            "description": "What is shown beside the certified bound. It changes neither that bound nor a trial.",
        },
        "edgeworth_order": {
            "type": "integer",
            "minimum": 0,
            "maximum": 4,
            "default": 4,
            "description": "The order of the Edgeworth series.",
        },
        "noise_factors": {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "uniqueItems": True,
            "items": {
                "type": "number",
                "minimum": 1e-6,
                "maximum": 1e6,
                "description": "A factor on the noise of all phases.",
            },
            "description": "Also bound with all noise multiplied by each of these: a table of gamma, epsilon and the "
            "membership advantage against the noise.",
        },
        "rates": {
            "type": "array",
            "minItems": 1,
            "maxItems": 20,
            "uniqueItems": True,
            "items": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "A sampling rate."},
            "description": "Also bound with these sampling rates in all phases, each with the least noise for the same "
            "epsilon at the last delta that is claimed: what one epsilon leaves open about reconstruction.",
        },
        "monte_carlo": {
            "type": "object",
            "description": "Also estimate by Monte Carlo, with a confidence interval.",
            "properties": {
                "samples": {
                    "type": "integer",
                    "minimum": 100,
                    "maximum": 100000000,
                    "default": 1000000,
                    "description": "How many outputs are drawn, each of all steps.",
                },
                "confidence": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "exclusiveMaximum": 1,
                    "default": 0.95,
                    "description": "The confidence of all intervals together.",
                },
                "seed": {"type": "integer", "minimum": 0, "default": 0, "description": "Decides what is drawn."},
            },
            "additionalProperties": False,
        },
    },
    "required": ["sampling"],
    "additionalProperties": False,
    "if": {"required": ["scale"]},
    "then": {"required": ["sensitivity"], "properties": {"noise_multiplier": False, "clip_norm": False}},
    "else": {"required": ["noise_multiplier", "clip_norm"], "properties": {"sensitivity": False}},
}

_THREAT_MODEL: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "prior": {
            "type": "object",
            "description": "What the adversary knows of the record beforehand.",
            "properties": {
                "kappa": {
                    "type": ["number", "array"],
                    "exclusiveMinimum": 0,
                    "maximum": 1,
                    "minItems": 1,
                    "maxItems": 100,
                    "uniqueItems": True,
                    "items": {
                        "type": "number",
                        "exclusiveMinimum": 0,
                        "maximum": 1,
                        "description": "A baseline success.",
                    },
                    "description": "How likely the best guess without the release reconstructs the record; several "
                    "values ask for a bound at each.",
                },
                "candidates": {
                    "type": "integer",
                    "minimum": 2,
                    "maximum": 4096,
                    "description": "The record is one of so many that the adversary knows; 1 / candidates is its "
                    "baseline, unless probabilities or top say otherwise.",
                },
                "from": {
                    "enum": ["all", "same-class", "planted"],
                    "default": "all",
                    "description": "Where an attack takes the candidates from: all training records, or those of one "
                    "class, or planted: records made to be told apart, one feature and a label each, which come close "
                    "to the worst case that the bound is about.",
                },
                "probabilities": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 4096,
                    "items": {"type": "number", "minimum": 0, "maximum": 1, "description": "A probability."},
                    "description": "The prior probability of each candidate; uniform where they are left out.",
                },
                "top": {
                    "type": "integer",
                    "minimum": 1,
                    "default": 1,
                    "description": "The adversary wins if the record is among its so many best candidates.",
                },
            },
            "minProperties": 1,
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}

EXAMPLE = """\
dpspec: 1
name: rero-example
description: DP-SGD on synthetic points. How well could one record of sixteen known candidates be reconstructed?

mechanism:
  kind: rero
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 20

data: {kind: synthetic, pattern: blobs, records: 200, features: 16, classes: 2}
model: {kind: linear}
training: {backend: native, learning_rate: 0.1}

threat_model:
  prior: {candidates: 16}

claims:
  - {id: one-of-sixteen, kind: rero, kappa: 0.0625, gamma: 0.25}
  - {id: one-in-a-million, kind: rero, kappa: 1e-6, gamma: 1e-4}
  - {id: membership, kind: membership, advantage: 0.5}
  - {id: epsilon, kind: approx-dp, epsilon: 6.0, delta: 1e-5}

audit: {method: many-run, runs: 40, seed: 1}
"""

RERO = dps.Mechanism(
    kind="rero",
    summary="DP-SGD and its like: how well a record could be reconstructed, from hypothesis testing",
    schemas=dps.Schemas(mechanism=_MECHANISM, threat_model=_THREAT_MODEL),
    claims=frozenset({"rero", "approx-dp", "pure-dp", "membership", "tradeoff", "metric"}),
    audit="dpspec_rero.audit:ReroAudit",
    example=EXAMPLE,
    trial_revision=2,
)
