"""The conditions of a proof on a recorded run: by name the channel, the statement and the advice of each.

A condition is tested by checks, assumed, or both. Records can reach a released model through eight channels, and most
conditions belong to one. Conditions without a channel compare the run with its accountant, its attack or its spec.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dpspec.contract import Assumption
from dpspec.contract.findings import AssumptionStatus
from dpspec.kit.findings import EXACT_ARITHMETIC
from dpspec.results.honest_script import HONEST_SCRIPT, HONEST_SCRIPT_TEXT

#: The place of a condition that comes after all others.
LAST = 99


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition that checks test or that a proof assumes.

    Attributes:
        channel: The channel that it belongs to; None without one.
        text: The statement of an assumption; a run adds what its recording shows. Empty for conditions of checks alone.
        advice: What to do if a test rejects it, and no test of the run has specific advice. Empty without tests.
        assumption_order: Its place in a list of assumptions: the first doubt about a channel is its reason.
        question_order: Its place among the sentences that a person confirms.
        is_statistical: Whether some of its tests have p-values between 0 and 1, which share the level.
        is_supported: Whether the checks of its channel support it, so that it makes no channel an assumed one.
    """

    name: str
    channel: str | None = None
    text: str = ""
    advice: str = ""
    assumption_order: int = LAST
    question_order: int = LAST
    is_statistical: bool = False
    is_supported: bool = False


#: The condition of runs in which not every contribution was observed, such as those with ghost clipping.
PER_RECORD_CLIPPING = "per-record-clipping"

#: The condition of runs with a kind of step that no replay measured. A person may accept it, like a rule's caution.
NOT_REPLAYED = "not-replayed"

#: Advice on noise that repeats, and on noise of another distribution.
FRESH = "Draw new noise for every coordinate of every tensor at every step: a difference removes noise that repeats."
GAUSSIAN = "Draw independent normal values, by torch.normal or torch.randn, and change nothing about them."

#: The statement on other trainings and on choices, for a model whose values alone are released.
NOTHING_ELSE = (
    "nothing is trained on these records before or after the recording, and no choice among models reads them: early "
    "stopping and the best of several checkpoints are such choices"
)

#: All conditions, in the order of the table of channels.
_ALL = (
    Condition(name="sensitivity", channel="sensitivity"),
    Condition(
        name="clipping",
        channel="sensitivity",
        advice=(
            "Clip the gradient of each record by itself to the declared clip norm, and change the sum by nothing "
            "but noise."
        ),
    ),
    Condition(
        name=PER_RECORD_CLIPPING,
        question_order=14,
        assumption_order=4,
        channel="sensitivity",
        text="a sum has one contribution of each drawn record, none longer than the clip norm",
    ),
    Condition(
        name="one-record",
        question_order=6,
        assumption_order=22,
        channel="sensitivity",
        text=(
            "each index of the dataset is one record, the rows of a batch are the drawn records, once each, and "
            "nothing that the gradients depend on is computed from other records: dataset, transforms, labels, "
            "collate function, constants of the loss, noise of any step"
        ),
    ),
    Condition(
        name="unmixed-batches",
        assumption_order=23,
        channel="sensitivity",
        text="no layer, loss, norm, padding or edit of gradients mixes the records of a batch, at any step",
        advice="Let each record contribute one gradient that depends on no other record.",
    ),
    Condition(
        name=NOT_REPLAYED,
        assumption_order=24,
        channel="sensitivity",
        text="steps that no replay repeats with other records change by at most one clip norm for each record",
    ),
    Condition(
        name="loop-reports",
        question_order=15,
        assumption_order=11,
        channel="sensitivity",
        text=(
            "the reports of the loop are true: the batches and norms that it reports, and that the reported sum "
            "contains each drawn record once, with its reported norm, and that the reported noise is fresh and "
            "Gaussian beyond the limits of the channel's tests; the gradients are the noisy sum over the divisor "
            "as rounding leaves it, and arrays of parameters are the update as rounding leaves it, with nothing "
            "written into their last bits"
        ),
    ),
    Condition(
        name="loss-reduction",
        question_order=12,
        assumption_order=26,
        channel="sensitivity",
        text="the loss has the reduction that make_private got as loss_reduction",
    ),
    Condition(
        name="repeated-records",
        question_order=1,
        assumption_order=25,
        channel="sensitivity",
        text="no record occurs more often in the dataset of the loader than the claim's group size",
    ),
    Condition(
        name="public-rows",
        assumption_order=5,
        channel="sensitivity",
        text=(
            "rows of gradients beyond the drawn records are public, as the outputs of a generator that was "
            "trained through the noisy sums alone: no record, a copy or a memory of one is among them"
        ),
    ),
    Condition(name="noise", assumption_order=13, channel="noise"),
    Condition(
        name="noise-scale",
        channel="noise",
        advice=(
            "The noise has another size than declared: its standard deviation is the noise multiplier times the "
            "clip norm, in the sum before it is divided."
        ),
        is_statistical=True,
    ),
    Condition(
        name="per-layer-noise",
        channel="noise",
        advice="A tensor got less noise than declared: draw noise of one standard deviation for all.",
        is_statistical=True,
    ),
    Condition(
        name="independent-noise",
        channel="noise",
        advice=f"Noise of steps, layers or coordinates depends on each other. {FRESH}",
        is_statistical=True,
    ),
    Condition(name="noise-shape", channel="noise"),
    Condition(
        name="noise-law",
        assumption_order=7,
        channel="noise",
        text="noise is Gaussian and unpredictable",
        advice=f"The noise is not Gaussian. {GAUSSIAN}",
        is_statistical=True,
        is_supported=True,
    ),
    Condition(
        name="exact-arithmetic",
        assumption_order=8,
        channel="noise",
        text=EXACT_ARITHMETIC,
        is_supported=True,
    ),
    Condition(
        name="secret-randomness",
        question_order=13,
        assumption_order=9,
        channel="noise",
        text=(
            "the adversary does not know the seeds of noise and batches, neither the seeds nor the states and "
            "uses of the generators depend on the records, and no random number is used twice: a script that sets"
            " a constant seed must keep it secret"
        ),
    ),
    Condition(
        name="precision",
        assumption_order=6,
        channel="noise",
        text="the rounding of sums of gradients and noise has no effect on the privacy loss",
    ),
    Condition(
        name="sampling",
        question_order=7,
        assumption_order=2,
        channel="sampling",
        text="each record enters each batch independently",
        advice=(
            "Batches were not drawn as declared, some records more often, or several together: draw each record "
            "independently at each step, at the declared rate, and use every batch that is drawn; or account for the "
            "actual scheme."
        ),
        is_statistical=True,
    ),
    Condition(
        name="unused-batches",
        assumption_order=3,
        channel="sampling",
        text="drawn batches are unused only at the ends of passes over the loader, independently of their records",
    ),
    Condition(
        name="order",
        assumption_order=29,
        channel="sampling",
        text="the order of the batches does not depend on the content of the records",
    ),
    Condition(
        name="joined-ranks",
        assumption_order=12,
        channel="sampling",
        text=(
            "the ranks of the process group are all processes that train, on one dataset, and the generators of "
            "their batches, and of noise that several ranks draw, have different seeds and are independent"
        ),
    ),
    Condition(
        name="update-rule",
        question_order=10,
        assumption_order=16,
        channel="update-rule",
        advice="Let the optimizer of torch make its own update, without hooks that change it.",
    ),
    Condition(
        name="update",
        question_order=9,
        channel="update-rule",
        advice=(
            "Let the optimizer step once for each noisy sum, with this sum over the divisor, and write to "
            "parameters by it alone."
        ),
    ),
    Condition(
        name="steps",
        channel="update-rule",
        advice="The run made other steps than declared: declare the executed number of updates.",
    ),
    Condition(
        name="gradient-map",
        assumption_order=17,
        channel="update-rule",
        text="what changes the noisy gradient between its noise and the update reads no record",
    ),
    Condition(
        name="public-data",
        question_order=11,
        assumption_order=18,
        channel="update-rule",
        text="the data that public= declares holds no record, no copy of one, and nothing computed from one",
    ),
    Condition(
        name="gradient-parameters",
        assumption_order=27,
        channel="gradient-parameters",
        advice="Compute gradients at the parameters that the last step left.",
    ),
    Condition(
        name="model-state",
        question_order=8,
        assumption_order=19,
        channel="model-state",
        advice="Train no buffer and no frozen parameter: they change without noise.",
    ),
    Condition(
        name="released-model",
        question_order=2,
        assumption_order=20,
        channel="released-model",
        text=(
            "only the values of the parameters and buffers in state_dict() at the end of the recording are "
            "released, not storages, metadata or further entries, the module object (with its class, attributes, "
            f"hooks and per-sample gradients) or the optimizer's state; {NOTHING_ELSE}"
        ),
    ),
    Condition(
        name="nothing-unseen",
        channel="released-model",
        advice=(
            "Canaries show more than the recorded steps allow: something trains on the records that was not "
            "recorded. Look for other training, before, within or after the block, and for code that writes to "
            "the model."
        ),
    ),
    Condition(
        name="ended-by-error",
        assumption_order=28,
        channel="released-model",
        text=(
            "the recording does not show how the script continued: record a run without it, or leave the loop "
            "with break"
        ),
    ),
    Condition(
        name="joined-parts",
        assumption_order=14,
        channel="released-model",
        text=(
            "the recorded parts of the training are on one dataset, with one model, whose attributes and "
            "functions no record changed between them, nothing else was trained between them, their generators "
            "are independent, and no record affects the choice of the checkpoints and of the loaded values"
        ),
    ),
    Condition(
        name="server-weights",
        question_order=3,
        assumption_order=15,
        channel="released-model",
        text=(
            "the weights that parts start with come from a server, which has of these records only the weights "
            "that earlier parts ended with: an average of clients' weights after private steps has no more, a state "
            "that was trained or measured on the records without noise has"
        ),
    ),
    Condition(
        name="model-choice",
        question_order=4,
        assumption_order=21,
        channel="released-model",
        text=(
            "nothing is trained on these records before the recording, and no choice among models reads them: "
            "early stopping and the best of several checkpoints are such choices"
        ),
    ),
    Condition(name="constants", channel="constants"),
    Condition(
        name="data-independent-hyperparameters",
        question_order=5,
        assumption_order=1,
        channel="constants",
        text=(
            "rate and number of records of the sampler, divisor, clip norm, noise multiplier, learning rate and "
            "number of steps, how and when their schedulers change them, and the initial model (parameters, "
            "buffers and attributes) do not depend on the records"
        ),
        advice="Take divisor, rate, clip norm and schedule from constants that no record changes.",
    ),
    Condition(name=HONEST_SCRIPT, assumption_order=10, text=HONEST_SCRIPT_TEXT),
    Condition(
        name="blind-training",
        text=(
            "the training got its canaries from the recorder or dpspec.plant only, and neither it nor the loss "
            "read their inclusion bits"
        ),
    ),
    Condition(
        name="fair-coins", text="the inclusion bits of the canaries are independent and fair, and fixed before training"
    ),
    Condition(
        name="scored-once",
        text=(
            "this run was not selected among several by the results of its canaries; all canaries are scored, by "
            "one rule"
        ),
    ),
    Condition(name="scored-model", text="the scored model is the recorded one after its last step"),
    Condition(name="bounded", text="the executed schedule has a bound"),
    Condition(
        name="accounting",
        advice="Let the accountant count the steps, the noise and the rate that the optimizer and the loader used.",
    ),
    Condition(name="canaries", advice="Keep the scores of all inserted canaries in the folder."),
)

#: All conditions by name.
CONDITIONS: Mapping[str, Condition] = {condition.name: condition for condition in _ALL}

#: The statements of assumptions, by name.
TEXTS: Mapping[str, str] = {condition.name: condition.text for condition in _ALL if condition.text}

#: The names of all conditions that checks test.
TESTED = tuple(condition.name for condition in _ALL if condition.advice)

#: All names that ``--assume`` accepts.
ASSUMABLE = tuple(condition.name for condition in _ALL if condition.channel is not None)


def stated(
    name: str, detail: str = "", status: AssumptionStatus = "declared", *, text: str | None = None
) -> Assumption:
    """The assumption of a condition: its statement, or another ``text``, and a ``detail`` of the run."""
    return Assumption(name=name, status=status, text=f"{CONDITIONS[name].text if text is None else text}{detail}")


def channel_of(name: str) -> str | None:
    """The channel of a check or an assumption, by its name."""
    condition = CONDITIONS.get(name)
    return None if condition is None else condition.channel
