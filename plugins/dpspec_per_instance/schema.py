"""JSON Schema of the plugin's keys: mechanism, threat model and audit."""

from __future__ import annotations

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING

#: Default Renyi orders: the paper's orders, with intermediate ones for common noise multipliers.
ORDERS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)

_COMPOSITION: dict[str, dps.Json] = {
    **kit.block(
        "Composition of the steps' divergences.",
        exponent={
            "type": ["string", "number", "array"],
            "exclusiveMinimum": 1,
            "minItems": 2,
            "maxItems": 1000,
            "items": kit.number("An exponent above 1.", above=1),
            "default": "auto",
            "description": "Exponent p > 1 of the composition theorem. auto: three times the number of steps. A list: "
            "exponents from the last step to the first, spread evenly.",
        },
        observe_every=kit.integer(
            "Number of steps between measurements of all records' gradient norms. The first is before step 1.",
            least=1,
            most=1000000,
            default=10,
        ),
        unobserved=kit.choice(
            "Value of unobserved steps in estimates. nearest: the last observed value. data-independent: the value of "
            "a saturated gradient. Confidence bounds always use data-independent.",
            "nearest",
            "data-independent",
            default="nearest",
        ),
    ),
    "default": {},
}

MECHANISM: dict[str, dps.Json] = kit.block(
    None,
    ["noise_multiplier", "clip_norm", "sampling"],
    noise_multiplier=NOISE_MULTIPLIER,
    clip_norm=CLIP_NORM,
    sampling=SAMPLING,
    orders=kit.array(
        "Renyi orders of the composition; the best one counts. They change no trial.",
        kit.number("An order above 1, not necessarily an integer.", above=1, most=256),
        least=1,
        most=100,
        unique=True,
        default=list(ORDERS),
    ),
    step_bound=kit.choice(
        "Bound on a step. theorem: the paper's formula, equal in both directions. directional: a smaller value in "
        "direction add, which the paper's proof also gives.",
        "directional",
        "theorem",
        default="directional",
    ),
    composition=_COMPOSITION,
)

THREAT_MODEL: dict[str, dps.Json] = kit.block(
    None,
    population=kit.choice(
        "train: training records; the neighbor lacks the record. test: test records; the neighbor also has the record.",
        "train",
        "test",
        default="train",
    ),
    points={
        "type": ["string", "array", "object"],
        "default": "all",
        "minItems": 1,
        "maxItems": 100000,
        "uniqueItems": True,
        "items": kit.integer("Index of a record in the population.", least=0),
        "properties": {
            "count": kit.integer("Number of records, drawn without replacement.", least=1, most=100000000),
            "seed": kit.integer("Seed of the sample.", least=0, default=0),
        },
        "required": ["count"],
        "additionalProperties": False,
        "description": "Audited records of the population: all, {count, seed} or a list of indices.",
    },
)

_ATTACK: dict[str, dps.Json] = kit.block(
    "Also attack single records: many runs each include one record with probability 1/2, and the adversary sees every "
    "iterate.",
    most=kit.integer(
        "Number of audited records with the largest gradients in a pilot run to attack.", least=0, most=100, default=1
    ),
    least=kit.integer("Number of records with the smallest gradients to attack.", least=0, most=100, default=1),
    records=kit.array(
        "Indices of further records to attack.",
        kit.integer("An audited record.", least=0),
        most=100,
        unique=True,
        default=[],
    ),
    runs=kit.integer(
        "Number of attack runs per attacked record in each of audit.runs.", least=2, most=100000, default=20
    ),
    looks=kit.integer(
        "Number of evenly spaced steps that the adversary scores; all by default.", least=1, most=1000000
    ),
)

_MEAN_RULE: dict[str, dps.Json] = kit.block(
    "Also estimate the privacy loss of one step with the same noise on the mean of its batch, at models of a run: an "
    "estimate for each expected batch size, not a bound.",
    ["batches"],
    batches=kit.array(
        "Expected batch sizes.", kit.number("An expected batch size.", above=0), least=1, most=20, unique=True
    ),
    orders=kit.array(
        "Integer Renyi orders.",
        kit.integer("A whole order.", least=2, most=256),
        least=1,
        most=20,
        unique=True,
        default=[8],
    ),
    points=kit.integer("Number of audited records, from the first.", least=1, most=100000, default=30),
    outer=kit.integer("Number of reference batches.", least=1, most=10000, default=20),
    inner=kit.integer("Number of tuples of batches per reference batch.", least=1, most=10000, default=20),
)

_REFERENCE: dict[str, dps.Json] = kit.block(
    "Values of an external audit of the same experiment, for a table of comparison.",
    ["source"],
    source={"type": "string", "minLength": 1, "description": "Source of the values."},
    step_bound=kit.choice(
        "Bound on steps in the reference; the table requires the same bound here. Omit to always show it.",
        "directional",
        "theorem",
    ),
    ratios=kit.array(
        "Ratios over training.",
        kit.block(
            "Mean contribution of steps at one order, relative to a saturated record.",
            ["order", "steps", "means"],
            order=kit.number("One of mechanism.orders.", above=1),
            steps=kit.array("Observed steps.", kit.integer("An observed step, from 1.", least=1), most=1000),
            means=kit.array("The mean at each of these steps.", kit.number("The mean at a step.", above=0), most=1000),
        ),
        most=100,
    ),
    median=kit.number("Median epsilon over records, from Renyi divergences.", above=0),
    tenth=kit.number("10th percentile of epsilon over records.", above=0),
    share_below=kit.number(
        "Fraction of records below the data-independent epsilon of the same method.", above=0, most=1
    ),
    data_independent=kit.number("Data-independent epsilon from Renyi divergences.", above=0),
)


AUDIT: dict[str, dps.Json] = kit.block(
    None,
    attack=_ATTACK,
    mean_rule=_MEAN_RULE,
    reference=_REFERENCE,
    shard_records=kit.integer(
        "Maximum number of audited records per trial. Each run becomes several trials that repeat its training and "
        "measure different records, so that workers share the work. By default one trial measures all records. It "
        "changes no seed.",
        least=1,
        most=100000000,
    ),
    use=kit.choice(
        "Intended use of the per-record values. They depend on the data, and the audit does not cover training that "
        "uses them.",
        "inspect",
        default="inspect",
    ),
)
