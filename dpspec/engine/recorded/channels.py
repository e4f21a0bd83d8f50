"""The eight channels through which records can reach a released model, as a view of checks and assumptions.

A recorded run is private if its data reaches the released model only through the noisy sums. Each check and each
assumption belongs to one channel by its name, as listed in ``KINDS``. Checks of ``accounting``, ``canaries`` and
``bounded`` belong to no channel: they compare the run with its accountant, its attack and its spec.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dpspec.contract import Assumption, Check
from dpspec.contract.findings import AssumptionStatus, Channel, ChannelStatus
from dpspec.contract.results import UNKNOWN
from dpspec.decimals import upper
from dpspec.errors import UsageError
from dpspec.results.conformance_status import rejected
from dpspec.results.honest_script import HONEST_SCRIPT, HONEST_SCRIPT_TEXT
from dpspec.text import closest, did_you_mean, joined, listed


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A channel: its requirement, the names of its checks and assumptions, and the text if a recording has none."""

    text: str
    names: tuple[str, ...]
    missing: str


KINDS = {
    "sensitivity": _Kind(
        text="each record changes the sum of a step by at most one clip norm",
        names=(
            *("clipping", "per-record-clipping", "sensitivity", "one-record", "unmixed-batches", "loop-reports"),
            *("loss-reduction", "repeated-records", "public-rows"),
        ),
        missing="no contribution was observed",
    ),
    "noise": _Kind(
        text="each sum gets fresh Gaussian noise of the recorded size",
        names=(
            "noise-scale",
            "per-layer-noise",
            "independent-noise",
            "noise-shape",
            "noise-law",
            "secret-randomness",
            "precision",
        ),
        missing="no noise was observed",
    ),
    "sampling": _Kind(
        text="batches are drawn as the accounting assumes",
        names=("unused-batches", "order", "joined-ranks"),
        missing="no batch was observed",
    ),
    "update-rule": _Kind(
        text="the parameters move by the noisy sums and by public numbers alone",
        names=("update", "steps", "gradient-map"),
        missing="the recording does not show what moved the parameters",
    ),
    "gradient-parameters": _Kind(
        text="gradients are computed at the parameters that the step before left",
        names=(),
        missing="the recording does not compare the forward pass's parameters with the last step's",
    ),
    "model-state": _Kind(
        text="of the model, only the noisy parameters depend on the records",
        names=(),
        missing="the recording does not show what else the model holds",
    ),
    "released-model": _Kind(
        text="the recorded steps are all that was trained, and which model is released does not depend on the records",
        names=("nothing-unseen", "ended-by-error", "joined-parts", "model-choice"),
        missing="the recording does not show where the training ends",
    ),
    "constants": _Kind(
        text="the constants of the training do not depend on the records",
        names=("data-independent-hyperparameters",),
        missing="the recording does not show the constants",
    ),
}

#: The statements of assumptions, by name; a run adds what its recording shows.
TEXTS: Mapping[str, str] = {
    "data-independent-hyperparameters": "rate and number of records of the sampler, divisor, clip norm, noise "
    "multiplier, learning rate and number of steps, how and when their schedulers change them, and the initial model "
    "(parameters, buffers and attributes) do not depend on the records",
    "sampling": "each record enters each batch independently",
    "unused-batches": "drawn batches are unused only at the ends of passes over the loader, independently of their "
    "records",
    "order": "the order of the batches does not depend on the content of the records",
    "joined-ranks": "the ranks of the process group are all processes that train, on one dataset, and the generators "
    "of their batches, and of noise that several ranks draw, have different seeds and are independent",
    "per-record-clipping": "a sum has one contribution of each drawn record, none longer than the clip norm",
    "precision": "the rounding of sums of gradients and noise has no effect on the privacy loss",
    "noise-law": "noise is Gaussian and unpredictable",
    "secret-randomness": "the adversary does not know the seeds of noise and batches, neither the seeds nor the states "
    "and uses of the generators depend on the records, and no random number is used twice: a script that sets a "
    "constant seed must keep it secret",
    HONEST_SCRIPT: HONEST_SCRIPT_TEXT,
    "loop-reports": "the reports of the loop are true: the batches and norms that it reports, and that the reported "
    "sum contains each drawn record once, with its reported norm, and that the reported noise is fresh and Gaussian "
    "beyond the limits of the channel's tests; the gradients are the noisy sum over the divisor as rounding leaves it, "
    "and arrays of parameters are the update as rounding leaves it, with nothing written into their last bits",
    "gradient-map": "what changes the noisy gradient between its noise and the update reads no record",
    "released-model": "only the values of the parameters and buffers in state_dict() at the end of the recording are "
    "released, not storages, metadata or further entries, the module object (with its class, attributes, hooks and "
    "per-sample gradients) or the optimizer's state; nothing is "
    "trained on these records before or after the recording, and no choice among models reads them: early stopping and "
    "the best of several checkpoints are such choices",
    "model-choice": "nothing is trained on these records before the recording, and no choice among models reads them: "
    "early stopping and the best of several checkpoints are such choices",
    "joined-parts": "the recorded parts of the training are on one dataset, with one model, whose attributes and "
    "functions no record changed between them, nothing else was trained between them, "
    "their generators are independent, and no record affects the choice of the checkpoints and of the loaded values",
    "one-record": "each index of the dataset is one record, the rows of a batch are the drawn records, once each, and "
    "nothing that the gradients depend on is computed from other records: dataset, transforms, labels, collate "
    "function, constants of the loss, noise of any step",
    "unmixed-batches": "no layer, loss, norm, padding or edit of gradients mixes the records of a batch, at any step",
    "repeated-records": "no record occurs more often in the dataset of the loader than the claim's group size",
    "public-rows": "rows of gradients beyond the drawn records are public, as the outputs of a generator that was "
    "trained through the noisy sums alone: no record, a copy or a memory of one is among them",
    "loss-reduction": "the loss has the reduction that make_private got as loss_reduction",
    "ended-by-error": "the recording does not show how the script continued: record a run without it, or leave the "
    "loop with break",
    "blind-training": "the training got its canaries from the recorder or dpspec.plant only, and neither it nor the "
    "loss read their inclusion bits",
    "fair-coins": "the inclusion bits of the canaries are independent and fair, and fixed before training",
    "scored-once": "this run was not selected among several by the results of its canaries; all canaries are scored, "
    "by one rule",
    "scored-model": "the scored model is the recorded one after its last step",
    "bounded": "the executed schedule has a bound",
}


def stated(name: str, detail: str = "", status: AssumptionStatus = "declared") -> Assumption:
    """The assumption of :data:`TEXTS`, with a sentence on the run."""
    return Assumption(name=name, status=status, text=f"{TEXTS[name]}{detail}")


#: The names of the channels, in the order of the table.
CHANNELS = tuple(KINDS)

#: The channel of each check and assumption.
_NAMES = {name: channel for channel, kind in KINDS.items() for name in (channel, *kind.names)}

#: All names that ``--public`` accepts: hyperparameters of the private sum, and options of torch's optimizers.
HYPERPARAMETERS = (
    *("rate", "divisor", "clip_norm", "noise_multiplier", "steps"),
    *("learning_rate", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "alpha", "rho", "lambd"),
    *("parameters", "lr_decay", "momentum_decay", "etas", "step_sizes", "t0", "amsgrad", "centered", "maximize"),
)

#: All names that ``--assume`` accepts.
ASSUMABLE = tuple(_NAMES)

#: Conditions that a channel's own checks support: they do not make it an assumed one.
_SUPPORTED = {"noise-law"}

#: Channels whose absence from a recording is an assumption instead of an open question.
_ASSUMED_IF_MISSING = {"gradient-parameters"}


def channel_of(name: str) -> str | None:
    return _NAMES.get(name.removesuffix(UNKNOWN))


#: What ``dpspec explain`` prints of channels, and of checks without another text.
MEANINGS = {
    name: f"channel {name}\nChannel by which records can reach a recorded model; requirement: {kind.text}.\n"
    f"Its checks and assumptions: {joined([check for check in kind.names if check != name]) or f'all called {name}'}."
    for name, kind in KINDS.items()
}
CHECKS = {
    check: f"A check of recorded runs, in the channel {channel_of(check)}."
    for kind in KINDS.values()
    for check in kind.names
}


def require_known(option: str, names: Collection[str], valid: Collection[str]) -> None:
    wrong = next((name for name in names if name not in valid), None)
    if wrong is not None:
        suggestion = did_you_mean(closest(wrong, valid))
        raise UsageError(f"{option}: {wrong!r} is unknown{suggestion} (valid: {listed(valid)})")


def complete(
    checks: Sequence[Check], assumptions: Sequence[Assumption], assumed: Collection[str] = ()
) -> tuple[Assumption, ...]:
    """All assumptions of a recorded run: the given ones, and one for each channel without checks and assumptions.

    assumed: names of channels and assumptions that the user assumes. An unchecked assumption with such a name, or of
    such a channel, becomes a declared one. One that is false stays false.
    """
    covered = {channel_of(check.assumption) for check in checks} | {
        channel_of(assumption.name) for assumption in assumptions
    }
    completed = list(assumptions)
    for name, kind in KINDS.items():
        if name not in covered:
            status: AssumptionStatus = "declared" if name in _ASSUMED_IF_MISSING else "unchecked"
            completed.append(Assumption(name=name, status=status, text=kind.missing))
    for number, assumption in enumerate(completed):
        if assumption.status == "unchecked" and {assumption.name, channel_of(assumption.name)} & {*assumed}:
            completed[number] = replace(assumption, status="declared", text=f"{assumption.text}; the user assumes it")
    return tuple(completed)


def channels(checks: Sequence[Check], assumptions: Sequence[Assumption]) -> tuple[Channel, ...]:
    run_channels = []
    for name in CHANNELS:
        channel_checks = [check for check in checks if channel_of(check.assumption) == name]
        needed = [assumption for assumption in assumptions if channel_of(assumption.name) == name]
        run_channels.append(_channel(name, channel_checks, needed, max(1, len(checks))))
    # An exception is the cause of what follows it, so its channel comes first.
    return tuple(sorted(run_channels, key=lambda channel: "ended-by-error" not in channel.sources))


def assumes(run_channels: Sequence[Channel]) -> tuple[str, ...]:
    return _once([*(name for channel in run_channels for name in channel.assumes), HONEST_SCRIPT])


def _channel(name: str, checks: Sequence[Check], assumptions: Sequence[Assumption], family: int) -> Channel:
    text = KINDS[name].text
    bad = [check for check in checks if rejected(check, family)]
    false = [assumption for assumption in assumptions if assumption.status == "false"]
    doubted = [assumption for assumption in assumptions if assumption.status == "unchecked"]
    set_aside = _SUPPORTED if checks else set()
    declared = [
        assumption for assumption in assumptions if assumption.status == "declared" and assumption.name not in set_aside
    ]
    if bad or false:
        sources = (*(check.assumption for check in bad), *(assumption.name for assumption in false))
        notes = [check.test.removesuffix(", exact") + (f" ({check.note})" if check.note else "") for check in bad]
        reasons = [*notes, *(assumption.text for assumption in false)]
        return Channel(name=name, status="violated", text=f"{text}: {reasons[0]}", sources=_once(sources))
    if doubted or not (checks or assumptions):
        reasons = [assumption.text for assumption in doubted] or [KINDS[name].missing]
        return Channel(name=name, status="open", text=f"{text}: {reasons[0]}", sources=_names(doubted))
    tests = [check.detectable for check in checks if check.detectable is not None and 0.0 < check.detectable < math.inf]
    sharpest = min(tests) if tests else 0.0 if checks else None
    sharpest_text = f"; the sharpest detects {upper(100.0 * min(tests), digits=2)}%" if tests else ""
    text += f" ({len(checks)} check{'' if len(checks) == 1 else 's'}{sharpest_text})" if checks else ""
    status: ChannelStatus = "assumed"
    if declared:
        assumed = sources = _names(declared)
        text += f": assumes {', '.join(assumed)}"
    else:
        status = "verified" if all(check.test.endswith(", exact") for check in checks) else "tested"
        sources = _once(check.assumption for check in checks) + _once(assumption.name for assumption in assumptions)
        assumed = ()
    return Channel(name=name, status=status, text=text, detectable=sharpest, sources=_once(sources), assumes=assumed)


def _names(assumptions: Sequence[Assumption]) -> tuple[str, ...]:
    return _once(assumption.name.removesuffix(UNKNOWN) for assumption in assumptions)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
