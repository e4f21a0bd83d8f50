"""What the plugin offers, as a light value."""

from __future__ import annotations

import dpspec.contract as dps


def _number(description: str, **limits: dps.Json) -> dict[str, dps.Json]:
    return {"type": "number", **limits, "description": description}


def _count(description: str, least: int = 1) -> dict[str, dps.Json]:
    return {"type": "integer", "minimum": least, "description": description}


_STEP: dict[str, dps.Json] = {
    "type": "object",
    "description": "One pre-processing step, named by its first key.",
    "properties": {
        "impute": {
            "enum": ["mean", "median", "trimmed", "regression", "knn", "iterative"],
            "description": "What replaces a missing value: its feature's mean, median or trimmed mean, or a "
            "least-squares fit on complete records. Nothing is proved of knn and iterative, which are refused.",
        },
        "mask": {
            "enum": ["any", "same"],
            "description": "Whether a replaced record may miss other entries than its replacement (any, the default), "
            "or both miss the same (imputation by the mean).",
        },
        "trim": _count("How many values are left out at each end of a feature (trimmed)."),
        "deduplicate": _number(
            "eta: of records that lie within this distance of one another, one is kept and the others become zero.",
            minimum=0,
        ),
        "quantise": _number(
            "eta: records that lie within this distance of one another become equal to one of them.", minimum=0
        ),
        "pca": _count("k: records are projected on the first k principal directions, in the same space."),
        "affine": {
            "type": "boolean",
            "description": "Project around the mean, as inverse_transform(transform(x)) does (pca).",
        },
        "output": {
            "enum": ["same", "reduced"],
            "description": "same: projected records keep their dimension, the default. reduced: k coordinates, of "
            "which nothing is proved, so that it is refused (pca).",
        },
        "whiten": {"type": "boolean", "description": "Refused where true: no bound holds for whitened records (pca)."},
        "solver": {
            "enum": ["full", "randomised", "truncated"],
            "description": "full, the default; nothing is proved of the others, which are refused (pca).",
        },
        "similarity": {
            "enum": ["distance", "minhash", "embedding"],
            "description": "How near-duplicates are found: by euclidean distance, the default; nothing is proved of "
            "the others, which are refused (deduplicate, quantise).",
        },
        "scale": {
            "enum": ["standard"],
            "description": "Features less their mean, divided by their standard deviation.",
        },
        "fit": {
            "enum": ["train", "all"],
            "description": "Which records a step is fitted on: training records, the default. all: test records too, "
            "of which nothing is proved, so that it is refused.",
        },
        "clip": _number(
            "The l2 norm that scaled records are cut back to; the constants of private hold there (scale).",
            exclusiveMinimum=0,
        ),
    },
    "additionalProperties": False,
    "minProperties": 1,
    "anyOf": [{"required": [key]} for key in ("impute", "deduplicate", "quantise", "pca", "scale")],
}

_PRIVATE: dict[str, dps.Json] = {
    "type": "object",
    "description": "What runs on the processed records; only its output is released.",
    "properties": {
        "kind": {
            "enum": ["gaussian", "laplace", "exponential", "dp-gd", "sgd-sampled", "sgd-iterated"],
            "description": "gaussian: a weighted sum of all records plus noise. laplace: that of the first feature. "
            "exponential: a feature with a large sum. dp-gd: projected full gradient steps with noise. sgd-sampled: "
            "one random record a step. sgd-iterated: one pass in order, stopped at a random step, of which the last "
            "iterate is released.",
        },
        "eps_noise": _number(
            "The paper's noise parameter, no epsilon of a guarantee. Deviation or scale: sensitivity / eps_noise; for "
            "a mean gradient L sqrt(steps) / (eps_noise n); sgd-sampled L sqrt(factor steps) / (eps_noise n); "
            "sgd-iterated 8 sqrt(2 ln n) L / (eps_noise sqrt(n)).",
            exclusiveMinimum=0,
            maximum=1e6,
        ),
        "lipschitz": _number(
            "L: of a query or quality in the sum of the distances between records; of a loss the largest norm of a "
            "record's gradient. 1 if left out, or that of the loss.",
            exclusiveMinimum=0,
        ),
        "norm": {
            "enum": ["summed", "frobenius"],
            "description": "What lipschitz is measured in: the sum of record distances, the default, which is what "
            "the bounds take, or the Frobenius norm, which is refused.",
        },
        "smooth": _number(
            "mu: how fast a record's gradient moves with the record. That of the loss if left out; without either "
            "only group privacy is proved.",
            exclusiveMinimum=0,
        ),
        "sensitivity": _number(
            "By how much one replaced record moves the query or a quality. 1 if left out.", exclusiveMinimum=0
        ),
        "loss": {
            "enum": ["logistic", "squared", "cross-entropy"],
            "description": "What is trained. logistic, squared: a linear model without intercept on two classes, -1 "
            "and 1. cross-entropy: the spec's model by its training block, each record's gradient clipped to "
            "lipschitz; nothing is known of how such gradients move with records: without smooth only group privacy is "
            "proved.",
        },
        "theta_radius": _number(
            "A linear model's parameters are projected to this l2 norm. 1 if left out.", exclusiveMinimum=0
        ),
        "steps": _count("T, the number of steps (dp-gd, sgd-sampled)."),
        "factor": _number(
            "c, by which the noise's variance exceeds the paper's; its closed form needs 4, the default (sgd-sampled).",
            exclusiveMinimum=0,
        ),
        "batch_size": _count("Records in a step; theory covers 1 only, the default (sgd-sampled)."),
        "learning_rate": _number(
            "Each step's factor on a linear model's noisy gradient. 0.5 if left out.", exclusiveMinimum=0
        ),
    },
    "required": ["kind", "eps_noise"],
    "additionalProperties": False,
}

_COLLECTION: dict[str, dps.Json] = {
    "type": "object",
    "description": "The declared collection of data sets: limits that both of two neighbours keep. Public constants, "
    "not measured; data outside is an error.",
    "properties": {
        "max_missing_rows": _count("At most so many records miss a value.", 0),
        "max_missing_in_row": _count("A record misses at most so many values; all its features if left out."),
        "min_observed": _count("Every feature has at least so many observed values."),
        "max_mean_norm": _number("The l2 norm of the vector of observed means is at most this.", minimum=0),
        "max_spread": _number(
            "The two order statistics between which a feature's median, or trimmed values, lie differ by at most this "
            "over the whole collection.",
            minimum=0,
        ),
        "min_eigenvalue": _number(
            "The least eigenvalue of X^T X over complete records is at least this (regression).", exclusiveMinimum=0
        ),
        "max_eigenvalue": _number("The largest is at most this (regression).", exclusiveMinimum=0),
        "max_ball": _count("Within 8 eta of a record lie at most so many records, itself included."),
        "max_cluster": _count("Good clusters have at most so many members; read by printed formulas only."),
        "min_eigengap": _number(
            "The k-th and the next eigenvalue of the covariance differ by at least this.", exclusiveMinimum=0
        ),
        "min_std": _number("Every feature has at least this population standard deviation.", exclusiveMinimum=0),
    },
    "additionalProperties": False,
}

_TABLE: dict[str, dps.Json] = {
    "type": "object",
    "description": "Also draw up Table 2 of the paper, every mechanism against every pre-processing, for these "
    "parameters and the declared eps_noise.",
    "properties": {
        "order": _number("The Renyi order.", exclusiveMinimum=1),
        "changed": _count("p: the largest Delta_inf of deduplication and quantisation, and the missing records."),
        "eta": _number("The radius of quantisation.", minimum=0),
        "ball": _count("The largest number of records within 8 eta, for the certified columns."),
        "eigengap": _number("The eigengap.", exclusiveMinimum=0),
        "steps": _count("T of sampled gradients."),
    },
    "required": ["order", "changed", "eta", "ball", "eigengap", "steps"],
    "additionalProperties": False,
}

_MECHANISM: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "pipeline": {
            "type": "array",
            "minItems": 1,
            "maxItems": 16,
            "items": _STEP,
            "description": "The pre-processing, computed from the records without noise. One step has the bounds of "
            "this plugin; of a chain only group privacy for all records is proved.",
        },
        "private": _PRIVATE,
        "collection": _COLLECTION,
        "radius": {**_number("Records lie in the ball of this l2 norm.", exclusiveMinimum=0), "default": 1.0},
        "clip_rows": {
            "type": "boolean",
            "default": False,
            "description": "Scale longer records down to radius before anything else; otherwise they are an error.",
        },
        "accounting": {
            "enum": ["certified", "theorem2", "printed"],
            "default": "certified",
            "description": "certified: corrected formulas, which alone can prove a claim. theorem2: Theorem 2 with the "
            "paper's sensitivities. printed: Table 2 as published.",
        },
        "also": {
            "type": "array",
            "uniqueItems": True,
            "items": {
                "enum": ["ignored", "printed", "theorem2", "group"],
                "description": "ignored: the private mechanism alone, which is no bound. group: group privacy.",
            },
            "default": ["ignored", "printed", "theorem2", "group"],
            "description": "What stands beside it in the table. It proves nothing.",
        },
        "orders": {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "uniqueItems": True,
            "items": {"type": "number", "exclusiveMinimum": 1, "maximum": 512, "description": "An order above 1."},
            "default": [1.5, 2.0, 4.0, 8.0, 11.0, 16.0, 32.0],
            "description": "Renyi orders of the table of divergences.",
        },
        "ptr": {
            "type": "object",
            "description": "Propose, test, release: refuse data near the collection's edge, by a noisy test, and hold "
            "for all data sets. The collection's limit is the one that is proposed.",
            "properties": {
                "epsilon": _number("What the test costs.", exclusiveMinimum=0),
                "delta": _number("The test's and the guarantee's delta.", exclusiveMinimum=0, exclusiveMaximum=1),
            },
            "required": ["epsilon", "delta"],
            "additionalProperties": False,
        },
        "sweep": {
            "type": "object",
            "description": "Also bound with one value replaced by each of these: a figure of epsilon against it.",
            "properties": {
                "over": {
                    "enum": ["eps_noise", "eta", "max_ball", "max_missing_rows", "min_eigengap", "records"],
                    "description": "What is varied. max_missing_rows takes all other records as observed; max_ball "
                    "takes half of it as the largest cluster.",
                },
                "values": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 200,
                    "uniqueItems": True,
                    "items": _number("A value.", exclusiveMinimum=0),
                    "description": "The values, in order.",
                },
            },
            "required": ["over", "values"],
            "additionalProperties": False,
        },
        "table": _TABLE,
    },
    "required": ["pipeline", "private"],
    "additionalProperties": False,
}

_THREAT_MODEL: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "adversary": {
            "enum": ["record"],
            "default": "record",
            "description": "Who chooses the replaced record. Pre-processing sees records, so that gradients of one's "
            "own are not covered.",
        },
        "released": {
            "type": "array",
            "uniqueItems": True,
            "items": {
                "enum": ["output", "fitted", "kept-rows", "removed-count"],
                "description": "output: what the private mechanism gives. fitted: imputed values, centres, directions "
                "or deviations. kept-rows, removed-count: which records were kept, or how many.",
            },
            "default": ["output"],
            "description": "What leaves the pipeline. Bounds hold for the output alone; all else is refused.",
        },
    },
    "additionalProperties": False,
}

_AUDIT: dict[str, dps.Json] = {
    "type": "object",
    "properties": {
        "repeats": {
            "type": "integer",
            "minimum": 1,
            "maximum": 20000,
            "default": 1,
            "description": "How often each run executes the private mechanism, each time on the data set that a fair "
            "coin chooses.",
        },
        "clusters": _count("How many clusters are planted around the canary (deduplicate, quantise). 5 if left out."),
        "members": _count("How many near-duplicates each planted cluster has (deduplicate, quantise). 3 if left out."),
    },
    "additionalProperties": False,
}

EXAMPLE = """\
dpspec: 1
name: preprocessing-example
description: Deduplication leaks. One record decides whether fifteen near-duplicates are kept

mechanism:
  kind: preprocessing
  pipeline: [{deduplicate: 0.01}]
  private: {kind: gaussian, eps_noise: 0.3, lipschitz: 0.5}
  collection: {max_ball: 16, max_cluster: 3}
  clip_rows: true

data: {kind: synthetic, pattern: blobs, records: 200, features: 8, classes: 2}

threat_model: {adjacency: replace-one}

claims:
  - {id: counted, kind: approx-dp, epsilon: 45.0, delta: 1e-5, over: collection}
  - {id: ignored, kind: approx-dp, epsilon: 1.2, delta: 1e-5, over: collection, expect: refuted}

audit: {method: many-run, runs: 4, repeats: 200, clusters: 5, members: 3, seed: 1}
"""

PREPROCESSING = dps.Mechanism(
    kind="preprocessing",
    summary="Pre-processing without noise before a private mechanism: what it really costs",
    schemas=dps.Schemas(mechanism=_MECHANISM, threat_model=_THREAT_MODEL, audit=_AUDIT),
    claims=frozenset({"approx-dp", "pure-dp", "renyi-dp", "gdp", "metric"}),
    audit="dpspec_preprocessing.audit:PreprocessingAudit",
    example=EXAMPLE,
    trial_revision=2,
    steps=False,
    missing=True,
)
