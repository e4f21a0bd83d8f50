"""The backends and attacks that dpspec itself offers, as descriptors: neither torch nor numpy is imported."""

from __future__ import annotations

from dpspec.contract.attacks import Canary, Score
from dpspec.contract.findings import Assumption, Facts
from dpspec.contract.frozen import FrozenMap, Json
from dpspec.contract.providers import CAPABILITIES, Backend
from dpspec.contract.spec import Spec

_SAMPLER = {
    "enum": ["poisson", "declared-rate", "shuffled", "weighted"],
    "default": "poisson",
    "description": "Where the data loader of Poisson batches comes from. poisson: make_private turns a loader with a "
    "batch size of records * rate, rounded, into one whose rate is one over its length. declared-rate: a DPDataLoader "
    "with the declared rate, used as it is. shuffled: a loader that shuffles each epoch, used as it is. weighted: one "
    "with a WeightedRandomSampler that balances the classes, used as it is.",
}

_DIVISOR = {
    "enum": ["records", "declared"],
    "default": "records",
    "description": "By what Opacus divides noisy sums where reduction is mean. records: what make_private sets, "
    "int(records * rate) of the records at hand, which tells how many there are. declared: the expected batch size "
    "that the spec declares, written to the optimizer's expected_batch_size after make_private.",
}

#: The native loop has no numbers of its own.
NATIVE_CONSTANTS = Assumption(
    name="public-constants",
    status="by-construction",
    text="the native loop takes divisor, rate, clip norm and schedule from its job, whatever the records are",
)


def native_constants(spec: Spec) -> Assumption:
    """Whether the native loop's divisor is a number that the spec declares, or rests on the number of records."""
    fixed = "add-remove" not in {spec.threat_model.adjacency, *(claim.adjacency for claim in spec.claims)}
    told = [p for p in spec.phases if p.get("reduction", spec.training.get("reduction", "mean")) == "mean"]
    # An epoch of shuffled batches ends with a smaller one: their mean size follows from the number of records.
    sizes = [phase.sampling for phase in told if "sampling" in phase]
    counted = any(one.batch_size is None or one.scheme == "shuffled" for one in sizes)
    if "expected_batch_size" in spec.training.options or not counted or fixed:
        return NATIVE_CONSTANTS
    whom = "users" if any(one.of_users for one in sizes) else "records"
    text = (
        f"the divisor is the sampling rate times the number of {whom}, which is taken to be public; "
        "training.expected_batch_size declares one that rests on nothing"
    )
    return Assumption(name="public-constants", status="declared", text=text)


def opacus_constants(spec: Spec) -> Assumption:
    """Which constants Opacus computes from the records, as the spec has it called."""
    options = spec.training.options
    schemes = {phase.sampling.scheme for phase in spec.phases if "sampling" in phase}
    sampler = str(options.get("sampler", "poisson"))
    wrong = []
    if options.get("reduction", "mean") == "mean" and options.get("divisor", "records") == "records":
        wrong.append("Opacus divides by int(records * rate), a number that depends on the records (Opacus issue 819)")
    if "poisson" in schemes and sampler == "poisson":
        wrong.append("its rate is one over the number of batches that the records fill")
    if "poisson" in schemes and sampler == "weighted":
        wrong.append("a record's weight depends on the others' labels")
    mend = "; a declared rate (sampler: declared-rate) and divisor (divisor: declared) depend on none"
    text = "; ".join(wrong) + mend if wrong else "Opacus is given divisor, rate and clip norm as the spec declares them"
    return Assumption(name="public-constants", status="false" if wrong else "by-construction", text=text)


_RUN = {
    "type": "string",
    "minLength": 1,
    "maxLength": 4096,
    "description": "The folder that dpspec.record wrote, relative to the spec's own. Nothing is trained: the phases of "
    "the mechanism are what is claimed, the recording is what ran.",
}

_PUBLIC = {
    "type": "boolean",
    "default": False,
    "description": "Declares that no hyperparameter of the recorded training depends on the records: public, with all "
    "names. One run does not show it. A proof names it.",
}

_ASSUME: dict[str, Json] = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 100},
    "maxItems": 50,
    "default": [],
    "description": "Names of channels, or of assumptions, that the recording leaves open and that you assume. A proof "
    "names them. A channel that is violated cannot be assumed.",
}

_PUBLIC_NAMES: dict[str, Json] = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 100},
    "maxItems": 50,
    "default": [],
    "description": "Names of hyperparameters whose values do not depend on the records, such as learning_rate, "
    "weight_decay, clip_norm or divisor. public_constants declares all of them.",
}

BACKENDS: tuple[Backend, ...] = (
    Backend(
        kind="native",
        summary="DP-SGD on torch: per-example gradients, clipped, summed, noised",
        schema={"type": "object", "properties": {}, "additionalProperties": False},
        capabilities=CAPABILITIES,
        trainer="dpspec.training.loop.native:NativeTrainer",
        trial_revision=2,
        users=True,
        constants="dpspec.training.providers:native_constants",
    ),
    Backend(
        kind="opacus",
        summary="Opacus' PrivacyEngine, as its users call it; needs the extra dpspec[opacus]",
        schema={
            "type": "object",
            "properties": {"sampler": _SAMPLER, "divisor": _DIVISOR},
            "additionalProperties": False,
        },
        capabilities=frozenset({"iterates", "sampling-log", "noise-log", "gradient-canaries"}),
        trainer="dpspec.training.opacus_backend:OpacusTrainer",
        trial_revision=2,
        as_declared=FrozenMap({"sampler": "declared-rate", "divisor": "declared"}),
        constants="dpspec.training.providers:opacus_constants",
    ),
    Backend(
        kind="recorded",
        summary="A training that dpspec.record saw: judged as it ran, never made again",
        schema={
            "type": "object",
            "properties": {
                "run": _RUN,
                "assume": _ASSUME,
                "public": _PUBLIC_NAMES,
                "public_constants": _PUBLIC,
            },
            "required": ["run"],
            "additionalProperties": False,
        },
        capabilities=frozenset(),
        trainer="dpspec.training.recorded_backend:RecordedTrainer",
        constants=Assumption(name="public-constants", status="unchecked", text="the recorded run was not looked at"),
    ),
)


#: Directions of least variance are looked for among this many features at most: larger covariances are not taken apart.
MOST_FEATURES = 4096


def blank_limit(facts: Facts, options: FrozenMap) -> tuple[int, str]:
    """How many blank records there can be."""
    return facts.classes, "there is one blank record for each label"


def least_variance_limit(facts: Facts, options: FrozenMap) -> tuple[int, str]:
    """How many different records of least variance there can be."""
    if facts.vocabulary is not None:
        return 0, "texts have no directions of least variance"
    return (
        2 * facts.features * facts.classes if facts.features <= MOST_FEATURES else 0,
        f"directions of least variance are found in up to {MOST_FEATURES} features, with a record for each label on "
        "either side",
    )


CANARIES = (
    Canary(
        kind="orthogonal",
        summary="Each in a direction of its own, random signs on coordinates that it shares with no other",
        space="gradient",
        make="dpspec.training.canaries:orthogonal",
    ),
    Canary(
        kind="mislabelled",
        summary="Training records with a wrong label",
        space="input",
        make="dpspec.training.canaries:mislabelled",
        reads_data=True,
    ),
    Canary(
        kind="blank",
        summary="All features at their smallest value, each with another label",
        space="input",
        make="dpspec.training.canaries:blank",
        limit="dpspec.training.providers:blank_limit",
        reads_data=True,
    ),
    Canary(
        kind="noise",
        summary="Features uniform between the smallest and the largest value, or any tokens, and a random label",
        space="input",
        make="dpspec.training.canaries:noise",
        reads_data=True,
    ),
    Canary(
        kind="duplicate",
        summary="Training records as they are",
        space="input",
        make="dpspec.training.canaries:duplicate",
        reads_data=True,
    ),
    Canary(
        kind="least-variance",
        summary="Records in the directions in which the others reach least, with the least likely labels (ClipBKD)",
        space="input",
        make="dpspec.training.canaries:least_variance",
        limit="dpspec.training.providers:least_variance_limit",
        reads_data=True,
    ),
)

#: How many models the score ``shadow`` trains, an even number.
SHADOWS = 32

SCORES = (
    Score(
        kind="loss-difference",
        summary="By how much the loss of a planted record fell since the first model",
        score="dpspec.training.measure.final_scores:loss_difference",
    ),
    Score(
        kind="loss",
        summary="How small the loss of a planted record is",
        score="dpspec.training.measure.final_scores:loss",
    ),
    Score(
        kind="likelihood-ratio",
        summary="How likely both are if it was planted, learned from half of the canaries, which are not guessed then",
        score="dpspec.training.measure.final_scores:likelihood_ratio",
        learns=True,
    ),
    Score(
        kind="path",
        summary="How likely the weights are if training came straight from the first model and it was planted",
        score="dpspec.training.measure.final_scores:path",
        gradients=True,
    ),
    Score(
        kind="shadow",
        summary="How small the loss of a planted record is, against models trained alike with coins of their own",
        score="dpspec.training.measure.final_scores:shadow",
        models=SHADOWS,
    ),
)
