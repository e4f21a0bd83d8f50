"""Descriptors of dpspec's own backends, canaries and scores, and learning rates of a spec, without torch or numpy.

Rates are public and fixed before training, so they reveal nothing about the records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, pi
from operator import attrgetter
from typing import Any

from dpspec.contract.attacks import Canary, Score
from dpspec.contract.findings import CONSTANTS, Assumption, Facts
from dpspec.contract.fragments import block, choice, number
from dpspec.contract.frozen import FrozenMap, Json
from dpspec.contract.providers import CAPABILITIES, Backend, Loss
from dpspec.contract.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Learning rate schedule: ``peak`` times a factor for each of ``total`` steps. All rates are positive.

    The factor of ``kind`` constant is 1; of linear and cosine it falls from 1 to ``final`` one step after the last. It
    rises linearly during the first ``warmup`` steps.
    """

    peak: float
    total: int
    kind: str = "constant"
    warmup: int = 0
    final: float = 0.0

    def __call__(self, step: int) -> float:
        """Learning rate of a step, counted from 1. Later steps use the last one's."""
        step = min(step, self.total)
        if step <= self.warmup:
            return self.peak * step / self.warmup
        if self.kind == "constant":
            return self.peak
        share = (step - 1 - self.warmup) / (self.total - self.warmup)
        height = 1.0 - share if self.kind == "linear" else (1.0 + cos(pi * share)) / 2.0
        return self.peak * (self.final + (1.0 - self.final) * height)


def rates_of(options: Mapping[str, Any], steps: int) -> Rates:
    schedule = {key: value for key, value in (options.get("schedule") or {}).items() if value is not None}
    return Rates(peak=float(options["learning_rate"]), total=steps, **schedule)


def chosen_optimizer(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ``training.optimizer`` that the spec sets."""
    return {key: value for key, value in (options.get("optimizer") or {}).items() if value is not None}


#: Updates that an adversary with all models can invert (:mod:`dpspec.training.loop.optimizers`).
_INVERTIBLE = ("sgd", "momentum")


def optimizer_kind(options: Mapping[str, Any]) -> str:
    return str((options.get("optimizer") or {}).get("kind", "sgd"))


def updates_invertible(options: Mapping[str, Any]) -> bool:
    """Whether an adversary with all models can recover each noisy sum from the update. False for Adam."""
    return optimizer_kind(options) in _INVERTIBLE


def iterates_reveal_sums(options: Mapping[str, Any], steps: int) -> bool:
    """Whether all iterates together are equivalent to all noisy sums.

    If updates are invertible and no learning rate is 0, each model with its predecessors determines the noisy sum.
    Adam's update loses information, so an adversary with all iterates may learn less.
    """
    if not updates_invertible(options):
        return False
    rates = rates_of({"learning_rate": 1.0, **options}, steps)
    return min(rates(1), rates(steps)) > 0.0  # rates rise to the peak, then fall


_SAMPLER = choice(
    "Data loader of Poisson batches. poisson: make_private converts a loader with batch size round(records * rate) to "
    "one with rate 1 / (its length). declared-rate: an unmodified DPDataLoader with the declared rate. shuffled: an "
    "unmodified loader that shuffles each epoch. weighted: an unmodified loader with a WeightedRandomSampler that "
    "balances the classes.",
    *("poisson", "declared-rate", "shuffled", "weighted"),
    default="poisson",
)

_DIVISOR = choice(
    "Divisor of noisy sums for reduction mean. records: make_private's int(records * rate), which reveals the number "
    "of records. declared: the expected batch size of the spec, written to the optimizer's expected_batch_size after "
    "make_private.",
    *("records", "declared"),
    default="records",
)


#: The native loop computes no constants from the records.
NATIVE_CONSTANTS = Assumption(
    name=CONSTANTS,
    status="by-construction",
    text="the native loop takes divisor, rate, clip norm and schedule from its job, not from the records",
)


def native_constants(spec: Spec) -> Assumption:
    """Whether the native loop's divisor is declared by the spec or computed from the number of records."""
    fixed = "add-remove" not in (spec.threat_model.adjacency, *map(attrgetter("adjacency"), spec.claims))
    counted, unit = False, "records"
    for phase in spec.phases:
        divided = phase.get("reduction", spec.training.get("reduction", "mean")) == "mean"
        # The count of adaptive clipping is divided by the expected batch size, too.
        if "sampling" in phase and (divided or phase.clipping_scheme == "adaptive"):
            # The last batch of a shuffled epoch is smaller: the mean size depends on the number of records.
            counted = counted or phase.sampling.batch_size is None or phase.sampling.is_shuffled
            unit = "users" if phase.sampling.of_users else unit
    if "expected_batch_size" in spec.training.options or not counted or fixed:
        return NATIVE_CONSTANTS
    text = (
        f"the divisor is the sampling rate times the number of {unit}, which is assumed to be public; "
        "training.expected_batch_size declares a divisor without this assumption"
    )
    return Assumption(name=CONSTANTS, status="declared", text=text)


def opacus_constants(spec: Spec) -> Assumption:
    options = spec.training.options
    poisson = any(phase.sampling.is_poisson for phase in spec.phases if "sampling" in phase)
    sampler = options.get("sampler", _SAMPLER["default"])
    wrong = []
    if options.get("reduction", "mean") == "mean" and options.get("divisor", "records") == "records":
        wrong.append("Opacus divides by int(records * rate), a number that depends on the records (Opacus issue 819)")
    if poisson and sampler == _SAMPLER["default"]:
        wrong.append("its rate is one over the number of batches, which depends on the number of records")
    if poisson and sampler == "weighted":
        wrong.append("a record's weight depends on other records' labels")
    fix = "; a declared rate (sampler: declared-rate) and divisor (divisor: declared) do not depend on records"
    text = "; ".join(wrong) + fix if wrong else "Opacus uses the divisor, rate and clip norm that the spec declares"
    return Assumption(name=CONSTANTS, status="false" if wrong else "by-construction", text=text)


BACKENDS: tuple[Backend, ...] = (
    Backend(
        kind="native",
        summary="DP-SGD in torch: per-example gradients, clipped, summed, noised",
        schema=block(),
        capabilities=CAPABILITIES,
        trainer="dpspec.training.loop.native:NativeTrainer",
        trial_revision=2,
        users=True,
        losses=True,
        constants="dpspec.training.providers:native_constants",
    ),
    Backend(
        kind="opacus",
        summary="Opacus's PrivacyEngine, called as its users do; needs the extra dpspec[opacus]",
        schema=block(sampler=_SAMPLER, divisor=_DIVISOR),
        capabilities=frozenset({"iterates", "sampling-log", "noise-log", "gradient-canaries"}),
        trainer="dpspec.training.opacus_backend:OpacusTrainer",
        trial_revision=2,
        as_declared=FrozenMap({"sampler": "declared-rate", "divisor": "declared"}),
        losses=True,
        schemes=frozenset({"full", "fixed", "poisson", "shuffled"}),
        constants="dpspec.training.providers:opacus_constants",
    ),
)


_SMOOTHING = number("Share of the label that is spread evenly over all values.", least=0, most=1, default=0.0)


def _loss(kind: str, summary: str, *targets: str, **keys: Json) -> Loss:
    """A loss whose function has the kind's name."""
    function = f"dpspec.training.losses:{kind.replace('-', '_')}"
    return Loss(kind=kind, summary=summary, function=function, targets=targets, schema=block(**keys))


_THRESHOLD = number("Absolute error above which the loss is linear.", above=0, default=1.0)
_OF_LABELS = "Cross entropy of the softmax of the outputs with the label"
_OF_CLASSES = "Sum over classes of the cross entropy of the output's sigmoid with whether it is the label"
_SQUARES = "Squared distance of the outputs from the one-hot label, or from a real-valued target"

LOSSES = (
    _loss("cross-entropy", _OF_LABELS, "class", label_smoothing=_SMOOTHING),
    _loss("binary-cross-entropy", _OF_CLASSES, "class", label_smoothing=_SMOOTHING),
    _loss("squared-error", _SQUARES, "class", "real"),
    _loss("huber", "Huber loss of the output for a real-valued target", "real", threshold=_THRESHOLD),
)

#: Maximum number of features for least-variance canaries, whose covariance is decomposed.
MOST_FEATURES = 4096


def blank_limit(facts: Facts, options: FrozenMap) -> tuple[int, str]:
    return facts.classes, "there is one blank record for each label"


def least_variance_limit(facts: Facts, options: FrozenMap) -> tuple[int, str]:
    if facts.vocabulary is not None:
        return 0, "texts have no directions of least variance"
    return (
        2 * facts.features * facts.classes if facts.features <= MOST_FEATURES else 0,
        f"directions of least variance are found in up to {MOST_FEATURES} features, with a record for each label on "
        "either side",
    )


#: Maximum number of proxy-crafted canaries, whose choice takes quadratic memory and cubic time.
MOST_CRAFTED = 5000


def proxy_crafted_limit(facts: Facts, options: FrozenMap) -> tuple[int, str]:
    if facts.vocabulary is not None or facts.features > MOST_FEATURES:
        return 0, f"proxy models take records of up to {MOST_FEATURES} features, and no texts"
    return MOST_CRAFTED, "the greedy choice takes quadratic memory"


def random_direction_limit(facts: Facts, options: FrozenMap) -> tuple[int, str] | None:
    return (0, "texts have no directions") if facts.vocabulary is not None else None


def _records(kind: str, summary: str, *, limited: bool = False, module: str = "canaries", **keys: Json) -> Canary:
    """Canaries that are records, made from training records by the function of the kind's name."""
    name = kind.replace("-", "_")
    return Canary(
        kind=kind,
        summary=summary,
        space="input",
        reads_data=True,
        schema=block(**keys),
        make=f"dpspec.training.{module}:{name}",
        limit=f"dpspec.training.providers:{name}_limit" if limited else "",
    )


_LENGTH = number("Norm of the records, in norms of the longest training record.", above=0, most=1e6, default=8.0)
_UNIFORM = "Uniform features between minimum and maximum, or uniform tokens, with a random label"
_LEAST = "Records along the directions of least variance with the least likely labels (ClipBKD)"
_RANDOM = "Records of one length in random directions, equally many with each label"
_CRAFTED = "Records chosen greedily for distinct gradients in proxy models, for up to 5000 canaries"

CANARIES = (
    Canary(
        kind="orthogonal",
        summary="Gradients with random signs on disjoint coordinates",
        space="gradient",
        make="dpspec.training.canaries:orthogonal",
    ),
    _records("mislabelled", "Training records with a wrong label"),
    _records("blank", "Records with all features at their minimum and distinct labels", limited=True),
    _records("noise", _UNIFORM),
    _records("duplicate", "Unmodified training records"),
    _records("least-variance", _LEAST, limited=True),
    _records("random-direction", _RANDOM, limited=True, length=_LENGTH),
    _records("proxy-crafted", _CRAFTED, limited=True, module="crafted_canaries"),
)

#: Maximum number of canaries whose gradients the score ``path`` stores, if their batches are full and clipping is flat.
MOST_STORED = 4096

#: Number of models that the score ``shadow`` trains; even.
SHADOWS = 32


def _score(kind: str, summary: str, **fields: Any) -> Score:
    """A score whose function has the kind's name."""
    return Score(kind=kind, summary=summary, score=f"dpspec.training.measure.scores:{kind.replace('-', '_')}", **fields)


_FITTED = "Likelihood ratio of both losses, fitted on half of the canaries, which are then not guessed"
_STRAIGHT = "Likelihood ratio of the final weights, assuming a straight path from the first model"
_RELATIVE = "Loss of the canary relative to shadow models trained with independent inclusion bits"

SCORES = (
    _score("loss-difference", "Decrease of the canary's loss since the first model"),
    _score("loss", "Negative loss of the canary"),
    _score("likelihood-ratio", _FITTED, learns=True),
    _score("path", _STRAIGHT, gradients=True, streamed_above=MOST_STORED),
    _score("shadow", _RELATIVE, models=SHADOWS),
)
