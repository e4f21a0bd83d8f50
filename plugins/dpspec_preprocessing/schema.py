"""The keys of a spec that are the plugin's own, as JSON Schema: mechanism, threat model and audit."""

from __future__ import annotations

import dpspec.contract as dps
from dpspec import kit

#: The old value of ``accounting`` for ``repaired``: "certified" is a rigor, which these formulas do not have.
OLD_REPAIRED = "certified"

_STEP: dict[str, dps.Json] = {
    **kit.block(
        "One pre-processing step, named by its first key and fitted on training records; test records pass through the "
        "same maps.",
        impute=kit.choice(
            "What replaces a missing value: its feature's mean, median or trimmed mean, or a least-squares fit on "
            "complete records. Others, such as nearest neighbours, move records without a limit: nothing is proved of "
            "them.",
            "mean",
            "median",
            "trimmed",
            "regression",
        ),
        mask=kit.choice(
            "Whether a replaced record may miss other entries than its replacement (any, the default), or both miss "
            "the same (imputation by the mean): then bounds speak of such neighbours alone, and claims say neighbours: "
            "same-missing-values.",
            "any",
            "same",
        ),
        trim=kit.integer("How many values are left out at each end of a feature (trimmed).", least=1),
        deduplicate=kit.number(
            "eta: of records that lie within this euclidean distance of one another, one is kept and the others become "
            "zero.",
            least=0,
        ),
        quantise=kit.number(
            "eta: records that lie within this distance of one another become equal to one of them.", least=0
        ),
        pca=kit.integer(
            "k: records are projected on the first k principal directions, in the same space, by a full solver. Of k "
            "coordinates, whitened records and approximate solvers nothing is proved.",
            least=1,
        ),
        affine=kit.flag("Project around the mean, as inverse_transform(transform(x)) does (pca)."),
        scale=kit.choice("Features less their mean, divided by their standard deviation.", "standard"),
        clip=kit.number(
            "The l2 norm that scaled records are cut back to (scale). Constants of a known loss follow from it, and "
            "declared ones must hold there.",
            above=0,
        ),
    ),
    "minProperties": 1,
    "anyOf": [{"required": [key]} for key in ("impute", "deduplicate", "quantise", "pca", "scale")],
}

_PRIVATE: dict[str, dps.Json] = kit.block(
    "What runs on the processed records; only its output is released.",
    ["kind", "eps_noise"],
    kind=kit.choice(
        "gaussian: a weighted sum of all records plus noise. laplace: that of the first feature. exponential: a "
        "feature with a large sum. dp-gd: projected full gradient steps with noise. sgd-sampled: one random record a "
        "step. sgd-iterated: one pass in order, stopped at a random step, of which the last iterate is released.",
        "gaussian",
        "laplace",
        "exponential",
        "dp-gd",
        "sgd-sampled",
        "sgd-iterated",
    ),
    eps_noise=kit.number(
        "The paper's noise parameter, no epsilon of a guarantee. Deviation or scale: sensitivity / eps_noise; for "
        "a mean gradient L sqrt(steps) / (eps_noise n); sgd-sampled L sqrt(factor steps) / (eps_noise n); "
        "sgd-iterated 8 sqrt(2 ln n) L / (eps_noise sqrt(n)).",
        above=0,
        most=1e6,
    ),
    lipschitz=kit.number(
        "L: of a query or quality in the sum of the distances between records (of a mean 1 / n, not 1 / sqrt(n) as "
        "in the Frobenius norm); of a loss the largest norm of a record's gradient. 1 if left out, or the loss's.",
        above=0,
    ),
    smooth=kit.number(
        "mu: how fast a record's gradient moves with the record. That of the loss if left out; without either "
        "only group privacy is proved.",
        above=0,
    ),
    sensitivity=kit.number("By how much one replaced record moves the query or a quality. 1 if left out.", above=0),
    loss=kit.choice(
        "What is trained. logistic, squared: a linear model without intercept on two classes, -1 and 1, whose "
        "constants follow from theta_radius and the norm of processed records. cross-entropy: the spec's model by its "
        "training block, each record's gradient clipped to lipschitz; nothing is known of how such gradients move with "
        "records: without smooth only group privacy is proved.",
        "logistic",
        "squared",
        "cross-entropy",
    ),
    theta_radius=kit.number("A linear model's parameters are projected to this l2 norm. 1 if left out.", above=0),
    steps=kit.integer("T, the number of steps (dp-gd, sgd-sampled).", least=1),
    factor=kit.number(
        "c, by which the noise's variance exceeds the paper's; its closed form needs 4, the default (sgd-sampled).",
        above=0,
    ),
    learning_rate=kit.number("Each step's factor on a linear model's noisy gradient. 0.5 if left out.", above=0),
)

_COLLECTION: dict[str, dps.Json] = kit.block(
    "The declared collection: data sets of the declared number of records, within limits that both of two neighbours "
    "keep. Public constants, not measured; data outside is an error.",
    max_missing_rows=kit.integer("At most so many records miss a value.", least=0),
    max_missing_in_row=kit.integer("A record misses at most so many values; all its features if left out.", least=1),
    min_observed=kit.integer("Every feature has at least so many observed values.", least=1),
    max_mean_norm=kit.number("The l2 norm of the vector of observed means is at most this.", least=0),
    max_spread=kit.number(
        "The two order statistics between which a feature's median, or trimmed values, lie differ by at most this "
        "over the whole collection.",
        least=0,
    ),
    min_eigenvalue=kit.number(
        "The least eigenvalue of X^T X over complete records is at least this (regression).", above=0
    ),
    max_eigenvalue=kit.number("The largest is at most this (regression).", above=0),
    max_ball=kit.integer("Within 8 eta of a record lie at most so many records, itself included.", least=1),
    max_cluster=kit.integer("Good clusters have at most so many members; read by printed formulas only.", least=1),
    min_eigengap=kit.number("The k-th and the next eigenvalue of the covariance differ by at least this.", above=0),
    min_std=kit.number("Every feature has at least this population standard deviation.", above=0),
)

_TABLE: dict[str, dps.Json] = kit.block(
    "Also draw up Table 2 of the paper, every mechanism against every pre-processing, for these parameters and the "
    "declared eps_noise.",
    ["order", "changed", "eta", "ball", "eigengap", "steps"],
    order=kit.number("The Renyi order.", above=1),
    changed=kit.integer(
        "p: the largest Delta_inf of deduplication and quantisation, and the missing records.", least=1
    ),
    eta=kit.number("The radius of quantisation.", least=0),
    ball=kit.integer("The largest number of records within 8 eta, for the repaired columns.", least=1),
    eigengap=kit.number("The eigengap.", above=0),
    steps=kit.integer("T of sampled gradients.", least=1),
)

MECHANISM: dict[str, dps.Json] = kit.block(
    None,
    ["pipeline", "private"],
    pipeline=kit.array(
        "The pre-processing, computed from the records without noise. One step has the bounds of this plugin; of a "
        "chain only group privacy for all records is proved.",
        _STEP,
        least=1,
        most=16,
    ),
    private=_PRIVATE,
    collection=_COLLECTION,
    radius=kit.number("Records lie in the ball of this l2 norm.", above=0, default=1.0),
    clip_rows=kit.flag(
        "Scale longer records down to radius before anything else; otherwise they are an error.", default=False
    ),
    accounting=kit.choice(
        "repaired: corrected formulas, which alone can prove a claim. theorem2: Theorem 2 with the paper's "
        "sensitivities. printed: Table 2 as published. certified: the old word for repaired.",
        "repaired",
        "theorem2",
        "printed",
        OLD_REPAIRED,
        default="repaired",
    ),
    also=kit.array(
        "What stands beside it in the table. It proves nothing.",
        kit.choice(
            "ignored: the private mechanism alone, which is no bound. group: group privacy.",
            "ignored",
            "printed",
            "theorem2",
            "group",
        ),
        unique=True,
        default=["ignored", "printed", "theorem2", "group"],
    ),
    orders=kit.array(
        "Renyi orders of the table of divergences.",
        kit.number("An order above 1.", above=1, most=512),
        least=1,
        most=100,
        unique=True,
        default=[1.5, 2.0, 4.0, 8.0, 11.0, 16.0, 32.0],
    ),
    ptr=kit.block(
        "Propose, test, release: refuse data near the collection's edge, by a noisy test, and hold for all data sets "
        "of at least the declared number of records (min_records in claims). The collection's limit is the one that is "
        "proposed.",
        ["epsilon", "delta"],
        epsilon=kit.number("What the test costs.", above=0),
        delta=kit.number("The test's and the guarantee's delta.", above=0, below=1),
    ),
    sweep=kit.block(
        "Also bound with one value replaced by each of these: a figure of epsilon against it.",
        ["over", "values"],
        over=kit.choice(
            "What is varied. max_missing_rows takes all other records as observed; max_ball takes half of it as the "
            "largest cluster.",
            "eps_noise",
            "eta",
            "max_ball",
            "max_missing_rows",
            "min_eigengap",
            "records",
        ),
        values=kit.array("The values, in order.", kit.number("A value.", above=0), least=2, most=200, unique=True),
    ),
    table=_TABLE,
)

THREAT_MODEL: dict[str, dps.Json] = kit.block(
    None,
    adversary=kit.choice(
        "Who chooses the replaced record. Pre-processing sees records, so that gradients of one's own are not covered.",
        "record",
        default="record",
    ),
    released=kit.array(
        "What leaves the pipeline. Bounds hold for the output alone; all else is refused.",
        kit.choice(
            "output: what the private mechanism gives. fitted: imputed values, centres, directions or deviations. "
            "kept-rows, removed-count: which records were kept, or how many.",
            "output",
            "fitted",
            "kept-rows",
            "removed-count",
        ),
        unique=True,
        default=["output"],
    ),
)

AUDIT: dict[str, dps.Json] = kit.block(
    None,
    repeats=kit.integer(
        "How often each run executes the private mechanism, each time on the data set that a fair coin chooses.",
        least=1,
        most=20000,
        default=1,
    ),
    clusters=kit.integer(
        "How many clusters are planted around the canary (deduplicate, quantise). 5 if left out.", least=1
    ),
    members=kit.integer(
        "How many near-duplicates each planted cluster has (deduplicate, quantise). 3 if left out.", least=1
    ),
)
