"""The declared pipeline: steps, private mechanism, collection, and the distance tau that follows from them."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.private import GRADIENT, QUERIES, Private, PrivateMechanism
from dpspec_preprocessing.sensitivity import STEPS, Sensitivity, Step, read_step, repaired_sensitivity

#: Neighbour relation: the replaced record and its replacement have the same missing entries.
SAME_MASK = "same-missing-values"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Steps and private mechanism for data of known size; no ``repaired`` bound if only the group bound is proved."""

    steps: tuple[Step, ...]
    private: PrivateMechanism
    collection: Mapping[str, Any]
    features: int
    radius: float
    repaired: Sensitivity | None

    @property
    def for_all_data(self) -> bool:
        """Whether the bound needs no collection: no step, or a private one."""
        return not self.steps or self.private_step is not None

    @property
    def private_step(self) -> Step | None:
        return next((step for step in self.steps if step.mu), None)

    @property
    def step(self) -> Step | None:
        return self.steps[0] if len(self.steps) == 1 else None

    @property
    def step_name(self) -> str | None:
        """The statistic for imputation."""
        return None if self.step is None else self.step.name

    @property
    def out_radius(self) -> float:
        return out_radius(self.steps, self.radius)

    @property
    def same_mask(self) -> bool:
        return self.step_name == "mean" and self.steps[0].same_mask

    @property
    def tau(self) -> float | None:
        """Distance at which the repaired curve is evaluated; infinite if only group privacy holds."""
        return None if self.repaired is None else distance_of(self.private, self.repaired)

    @property
    def changed(self) -> float:
        """Maximum number of common records that differ."""
        return self.private.records if self.repaired is None else min(self.repaired.changed, self.private.records)


def distance_of(m: PrivateMechanism, sensitivity: Sensitivity) -> float:
    """Tau, n times the maximum displacement of a record for one-record batches, or infinite without smoothness."""
    if not math.isfinite(m.smooth):
        return math.inf
    return m.records * sensitivity.moved if m.kind == "sgd-sampled" else sensitivity.tau


def out_radius(steps: Sequence[Step], radius: float) -> float:
    """Maximum norm after all steps of rows with norm at most ``radius``.

    Imputation and scaling clip rows. A projection around the mean m maps x to P x + (I - P) m, the sum of two
    orthogonal vectors inside the ball: sqrt(2) times its radius. Other steps do not increase norms.
    """
    reach = radius
    for step in steps:
        if step.imputes:
            reach = radius
        elif step.name == "scale":
            reach = step.clip
        elif step.affine:
            reach *= math.sqrt(2.0)
    return reach


@dataclass(frozen=True, kw_only=True)
class Test(kit.Options):
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class Declaration(kit.Options):
    """The block ``mechanism``."""

    steps: tuple[Step, ...]
    private: Private
    collection: dps.FrozenMap
    radius: float = 1.0
    clip_rows: bool = False
    ptr: Test | None = None

    @classmethod
    def read(cls, block: dps.FrozenMap) -> "Declaration":
        limits = block.get("collection") or {}
        return cls.fill(
            block,
            steps=tuple(map(read_step, block.get("pipeline", ()))),
            collection=dps.FrozenMap({key: limit for key, limit in limits.items() if limit is not None}),
        )

    @property
    def processed_norm(self) -> float:
        norm = out_radius(self.steps, self.radius)
        return norm if math.isfinite(norm) else self.radius  # scaling without a clip norm is refused

    def pipeline(self, records: int, features: int) -> Pipeline:
        steps, limits = self.steps, self.collection
        repaired = None if steps else Sensitivity(0.0, 0.0)
        if len(steps) == 1:
            repaired = repaired_sensitivity(steps[0], limits, records, features, self.radius)
        private = self.private.mechanism(records, self.processed_norm)
        return Pipeline(
            steps=steps,
            private=replace(private, released=max((step.mu for step in steps), default=0.0)),
            collection=limits,
            features=features,
            radius=self.radius,
            repaired=repaired,
        )


@dataclass(frozen=True, kw_only=True)
class AuditBlock(kit.Options):
    repeats: int = 1
    clusters: int = 5
    members: int = 3


def claimed_orders(spec: dps.Spec) -> list[float]:
    return sorted({float(claim["alpha"]) for claim in spec.claims if claim.kind == "renyi-dp"})


def bound_scope(
    spec: dps.Spec, m: PrivateMechanism, *, data: str, neighbours: str = "all", min_records: int = 0
) -> dps.Scope:
    return dps.Scope(
        adjacency="replace-one",
        unit=spec.threat_model.unit,
        direction="both",
        access="final-model" if m.kind == "sgd-iterated" else "all-iterates",
        adversary="record",
        data=data,
        min_records=min_records,
        neighbours=neighbours,
    )


#: A number for which the formulas, their squares and quotients, and the noise keep full precision.
_number = functools.partial(kit.number, above=1e-30, most=1e30)


def _condition(test: dict[str, dps.Json], *without: str, required: Sequence[str] = ()) -> dict[str, dps.Json]:
    """Blocks for which ``test`` holds may not have the options ``without``, and need the ``required`` ones."""
    return {"if": test, "then": {"properties": dict.fromkeys(without, False), "required": list(required)}}


def _with(key: str, *values: str) -> dict[str, dps.Json]:
    return {"properties": {key: {"enum": list(values)}}, "required": [key]}


#: Options of each step, by the key that names the step.
_STEP_OPTIONS = {
    "impute": ("mask", "trim"),
    "deduplicate": (),
    "quantise": (),
    "pca": ("affine",),
    "dp-pca": ("eps_noise",),
    "scale": ("clip",),
}
_EVERY_OPTION = [key for name, options in _STEP_OPTIONS.items() for key in (name, *options)]

_STEP: dict[str, dps.Json] = {
    **kit.block(
        "One pre-processing step, named by its first key and fitted on training records; test records pass through the "
        "same maps.",
        impute=kit.choice(
            "Replacement of a missing value: the feature's mean, median or trimmed mean, or a least-squares fit on "
            "complete records. Other imputations, such as nearest neighbours, have unbounded sensitivity.",
            *(name for name, kind in STEPS.items() if kind.key == "impute"),
        ),
        mask=kit.choice(
            "any (default): a record and its replacement may have different missing entries. same: bounds cover only "
            "neighbours with the same missing entries (mean imputation; claims need neighbours: same-missing-values).",
            "any",
            "same",
        ),
        trim=kit.integer("Number of values dropped at each end of a feature (trimmed).", least=1),
        deduplicate=kit.number(
            "eta, a Euclidean distance. One record of each cluster within this distance is kept; the others become "
            "zero.",
            least=0,
        ),
        quantise=kit.number(
            "eta, a Euclidean distance. All records of a cluster within this distance become its representative.",
            least=0,
        ),
        pca=kit.integer(
            "k: records are projected onto the first k principal directions, in the original space, with a full "
            "solver. No bound is known for reduced coordinates, whitening or approximate solvers.",
            least=1,
        ),
        affine=kit.flag("Project around the mean, as inverse_transform(transform(x)) does (pca)."),
        **{
            "dp-pca": kit.integer(
                "k: records are projected onto the first k eigenvectors of their second-moment matrix, which is "
                "released with Gaussian noise. This step is private, needs no collection, and must be the only step.",
                least=1,
            )
        },
        eps_noise=_number(
            "The paper's noise parameter for the second-moment matrix (dp-pca): its Frobenius norm moves by at most "
            "sqrt(2) radius^2, and the noise has standard deviation sqrt(2) radius^2 / eps_noise in every direction. "
            "The release is eps_noise-GDP, and composes with the private mechanism.",
            most=1e6,
        ),
        scale=kit.choice("Subtract each feature's mean and divide by its standard deviation.", "standard"),
        clip=_number(
            "Scaled records are clipped to this l2 norm (scale). The constants of a known loss follow from it; "
            "declared constants must hold for it."
        ),
    ),
    "minProperties": 1,
    "anyOf": [{"required": [name]} for name in _STEP_OPTIONS],
    "allOf": [
        *(
            _condition({"required": [name]}, *(key for key in _EVERY_OPTION if key not in (name, *options)))
            for name, options in _STEP_OPTIONS.items()
        ),
        _condition(_with("impute", "trimmed"), required=["trim"]),
        _condition({"required": ["scale"]}, required=["clip"]),
        _condition({"required": ["dp-pca"]}, required=["eps_noise"]),
    ],
}

_PRIVATE: dict[str, dps.Json] = kit.block(
    "The private mechanism on the processed records. Only its output is released.",
    ["kind", "eps_noise"],
    kind=kit.choice(
        "gaussian: a weighted sum of all records plus noise. laplace: the same sum of the first feature only. "
        "exponential: selection of a feature with a large sum. dp-gd: projected noisy full-gradient steps. "
        "sgd-sampled: one random record per step. sgd-iterated: one pass in order, stopped at a random step; the last "
        "iterate is released.",
        *QUERIES,
        *GRADIENT,
    ),
    eps_noise=_number(
        "The paper's noise parameter, not the epsilon of a guarantee. Standard deviation or scale of the noise: "
        "queries sensitivity / eps_noise; dp-gd L sqrt(steps) / (eps_noise n); sgd-sampled L sqrt(factor steps) / "
        "(eps_noise n); sgd-iterated 8 sqrt(2 ln n) L / (eps_noise sqrt(n)).",
        most=1e6,
    ),
    lipschitz=_number(
        "L. Queries: Lipschitz constant in the sum of the distances between records (1 / n for a mean, not "
        "1 / sqrt(n) as in the Frobenius norm). Gradients: the maximum norm of a record's gradient. Default: the "
        "constant of the loss, else 1."
    ),
    smooth=_number(
        "mu: Lipschitz constant of a record's gradient as a function of the record. Default: the constant of the loss. "
        "If neither is known, only group privacy is proved."
    ),
    sensitivity=_number("Sensitivity of the query or quality to one replaced record. Default: 1."),
    loss=kit.choice(
        "The loss of gradient mechanisms. logistic, squared: a linear model without intercept on two classes, -1 and "
        "1; its constants follow from theta_radius and the norm of processed records. cross-entropy: the spec's model "
        "with its training block, each record's gradient clipped to lipschitz; without smooth only group privacy is "
        "proved.",
        "logistic",
        "squared",
        "cross-entropy",
    ),
    theta_radius=_number("Parameters of a linear model are projected to this l2 norm. Default: 1."),
    steps=kit.integer("T, the number of steps (dp-gd, sgd-sampled).", least=1),
    factor=_number(
        "c, the noise variance relative to the paper's (sgd-sampled). The paper's closed form needs 4, the default."
    ),
    learning_rate=_number("Learning rate of a linear model. Default: 0.5."),
)
_PRIVATE["allOf"] = [
    _condition(_with("kind", *QUERIES), "loss", "smooth", "theta_radius", "learning_rate", "steps", "factor"),
    _condition(_with("kind", *GRADIENT), "sensitivity"),
    _condition(_with("kind", "dp-gd", "sgd-sampled"), required=["steps"]),
    _condition(_with("kind", "dp-gd"), "factor"),
    _condition(_with("kind", "sgd-iterated"), "steps", "factor", required=["loss"]),
    _condition(_with("loss", "cross-entropy"), "theta_radius", "learning_rate"),
    _condition(  # without a loss of known constants
        {"properties": {"kind": {"enum": list(GRADIENT)}, "loss": {"const": "cross-entropy"}}, "required": ["kind"]},
        required=["lipschitz"],
    ),
]

_COLLECTION: dict[str, dps.Json] = kit.block(
    "The declared collection: datasets of the declared number of records within these limits. Both neighbours must be "
    "in the collection. The limits are public constants, not measured; a dataset outside is an error.",
    max_missing_rows=kit.integer("Maximum number of records with a missing value.", least=0),
    max_missing_in_row=kit.integer(
        "Maximum number of missing values in a record. Default: the number of features.", least=1
    ),
    min_observed=kit.integer("Minimum number of observed values of a feature.", least=1),
    max_mean_norm=kit.number("Maximum l2 norm of the vector of observed means.", least=0),
    max_spread=kit.number(
        "Maximum difference, over the collection, of the two order statistics that enclose a feature's median or "
        "trimmed values.",
        least=0,
    ),
    min_eigenvalue=kit.number("Minimum eigenvalue of X^T X over complete records (regression).", above=0),
    max_eigenvalue=kit.number("Maximum eigenvalue of X^T X over complete records (regression).", above=0),
    max_ball=kit.integer("Maximum number of records within 8 eta of a record, which counts itself.", least=1),
    max_cluster=kit.integer("Maximum size of a good cluster; only printed formulas read it.", least=1),
    min_eigengap=kit.number("Minimum gap between eigenvalues k and k + 1 of the covariance.", above=0),
    min_std=kit.number("Minimum population standard deviation of a feature.", above=0),
)

MECHANISM: dict[str, dps.Json] = kit.block(
    None,
    ["pipeline", "private"],
    pipeline=kit.array(
        "The pre-processing steps, fitted on the records without noise, except for dp-pca. A single step has the "
        "bounds of this plugin; for a chain only group privacy for all records is proved. [] is the baseline without "
        "pre-processing.",
        _STEP,
        most=16,
    ),
    private=_PRIVATE,
    collection=_COLLECTION,
    radius=_number("Maximum l2 norm of a record.", default=1.0),
    clip_rows=kit.flag(
        "Scale longer records down to radius before the first step. Otherwise longer records are an error.",
        default=False,
    ),
    ptr=kit.block(
        "Propose-test-release: a noisy test refuses datasets near the edge of the collection, and the bound holds for "
        "all datasets of at least the declared number of records (min_records in claims). The test proposes the "
        "collection's limit.",
        ["epsilon", "delta"],
        epsilon=kit.number("Epsilon of the test.", above=0),
        delta=kit.number("Delta of the test and of the guarantee.", above=0, below=1),
    ),
)

THREAT_MODEL: dict[str, dps.Json] = kit.block(
    None,
    adversary=kit.choice(
        "The adversary chooses the replaced record. Chosen gradients are not supported, because pre-processing reads "
        "records.",
        "record",
        default="record",
    ),
)

AUDIT: dict[str, dps.Json] = kit.block(
    None,
    repeats=kit.integer(
        "Number of executions of the private mechanism per run, each on one of the two datasets chosen at random.",
        least=1,
        most=20000,
        default=1,
    ),
    clusters=kit.integer("Number of inserted clusters around the canary (deduplicate, quantise). Default: 5.", least=1),
    members=kit.integer("Number of near-duplicates per inserted cluster (deduplicate, quantise). Default: 3.", least=1),
)
