"""The eight channels through which records can reach a released model, as a view of checks and assumptions.

A recorded run is private if its data reaches the released model only through the noisy sums. The channel of a check or
an assumption is its condition's (:mod:`dpspec_recording.outcomes.conditions`).
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from dpspec.contract import Assumption
from dpspec.contract.findings import AssumptionStatus, Channel, ChannelStatus
from dpspec.decimals import upper
from dpspec.results.conformance_status import rejected
from dpspec.results.honest_script import HONEST_SCRIPT
from dpspec.text import joined
from dpspec_recording.outcomes.conditions import CONDITIONS, channel_of, stated
from dpspec_recording.outcomes.issue import Issue


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A channel: its requirement, and the text if a recording has neither checks nor assumptions of it.

    Attributes:
        is_assumed_if_missing: Whether its absence from a recording is an assumption instead of an open question.
    """

    text: str
    missing: str
    is_assumed_if_missing: bool = False


KINDS = {
    "sensitivity": Kind(
        text="each record changes the sum of a step by at most one clip norm",
        missing="no contribution was observed",
    ),
    "noise": Kind(
        text="each sum gets fresh Gaussian noise of the recorded size",
        missing="no noise was observed",
    ),
    "sampling": Kind(
        text="batches are drawn as the accounting assumes",
        missing="no batch was observed",
    ),
    "update-rule": Kind(
        text="the parameters move by the noisy sums and by public numbers alone",
        missing="the recording does not show what moved the parameters",
    ),
    "gradient-parameters": Kind(
        text="gradients are computed at the parameters that the step before left",
        missing="the recording does not compare the forward pass's parameters with the last step's",
        is_assumed_if_missing=True,
    ),
    "model-state": Kind(
        text="of the model, only the noisy parameters depend on the records",
        missing="the recording does not show what else the model holds",
    ),
    "released-model": Kind(
        text="the recorded steps are all that was trained, and which model is released does not depend on the records",
        missing="the recording does not show where the training ends",
    ),
    "constants": Kind(
        text="the constants of the training do not depend on the records",
        missing="the recording does not show the constants",
    ),
}

#: The names of the channels, in the order of the table.
CHANNELS = tuple(KINDS)


def _others(channel: str) -> list[str]:
    """Names of the conditions of ``channel``, without the one that has its name."""
    return [name for name, condition in CONDITIONS.items() if condition.channel == channel != name]


#: What ``dpspec explain`` prints of channels, and of checks without another text.
MEANINGS = {
    name: f"channel {name}\nChannel by which records can reach a recorded model; requirement: {kind.text}.\n"
    f"Its checks and assumptions: {joined(_others(name)) or f'all called {name}'}."
    for name, kind in KINDS.items()
}
CHECKS = {
    name: f"A check of recorded runs, in the channel {condition.channel}."
    for name, condition in CONDITIONS.items()
    if condition.channel is not None
}


def complete(
    tests: Sequence[Issue], assumptions: Sequence[Assumption], assumed: Collection[str] = ()
) -> tuple[Assumption, ...]:
    """All assumptions of a recorded run: the given ones, and one for each channel without tests and assumptions.

    assumed: names of channels and assumptions that the user assumes. An unchecked assumption with such a name, or of
    such a channel, becomes a declared one. One that is false stays false.
    """
    covered = {test.channel for test in tests} | {channel_of(assumption.name) for assumption in assumptions}
    completed = list(assumptions)
    for name, kind in KINDS.items():
        if name not in covered:
            status: AssumptionStatus = "declared" if kind.is_assumed_if_missing else "unchecked"
            completed.append(stated(name, status=status, text=kind.missing))
    for number, assumption in enumerate(completed):
        if assumption.status == "unchecked" and {assumption.name, channel_of(assumption.name)} & {*assumed}:
            completed[number] = replace(assumption, status="declared", text=f"{assumption.text}; the user assumes it")
    return tuple(completed)


def channels(checks: Sequence[Issue], assumptions: Sequence[Assumption]) -> tuple[Channel, ...]:
    """The channels of a run. checks: one for each condition, combined from its tests."""
    run_channels = []
    for name in CHANNELS:
        channel_checks = [check for check in checks if check.channel == name]
        needed = [assumption for assumption in assumptions if channel_of(assumption.name) == name]
        run_channels.append(_channel(name, channel_checks, needed, max(1, len(checks))))
    # An exception is the cause of what follows it, so its channel comes first.
    return tuple(sorted(run_channels, key=lambda channel: "ended-by-error" not in channel.sources))


def assumes(run_channels: Sequence[Channel]) -> tuple[str, ...]:
    return _once([*(name for channel in run_channels for name in channel.assumes), HONEST_SCRIPT])


def _channel(name: str, checks: Sequence[Issue], assumptions: Sequence[Assumption], family: int) -> Channel:
    text = KINDS[name].text
    bad = [test for test in checks if rejected(test.check, family)]
    false = [assumption for assumption in assumptions if assumption.status == "false"]
    doubted = [assumption for assumption in assumptions if assumption.status == "unchecked"]
    declared = [
        assumption
        for assumption in assumptions
        if assumption.status == "declared" and not (checks and CONDITIONS[assumption.name].is_supported)
    ]
    if bad or false:
        sources = (*(test.condition for test in bad), *(assumption.name for assumption in false))
        notes = [test.text + (f" ({test.check.note})" if test.check.note else "") for test in bad]
        reasons = [*notes, *(assumption.text for assumption in false)]
        return _doubtful(name, "violated", reasons[0], _once(sources))
    if doubted or not (checks or assumptions):
        reasons = [assumption.text for assumption in doubted] or [KINDS[name].missing]
        return _doubtful(name, "open", reasons[0], _names(doubted))
    detectable = [test.check.detectable for test in checks]
    limits = [limit for limit in detectable if limit is not None and 0.0 < limit < math.inf]
    sharpest = min(limits) if limits else 0.0 if checks else None
    sharpest_text = f"; the sharpest detects {upper(100.0 * min(limits), digits=2)}%" if limits else ""
    text += f" ({len(checks)} check{'' if len(checks) == 1 else 's'}{sharpest_text})" if checks else ""
    status: ChannelStatus = "assumed"
    if declared:
        assumed = sources = _names(declared)
        text += f": assumes {', '.join(assumed)}"
    else:
        status = "verified" if all(check.is_exact for check in checks) else "tested"
        sources = _once(check.condition for check in checks) + _once(assumption.name for assumption in assumptions)
        assumed = ()
    return Channel(name=name, status=status, text=text, detectable=sharpest, sources=_once(sources), assumes=assumed)


def _doubtful(name: str, status: ChannelStatus, reason: str, sources: tuple[str, ...]) -> Channel:
    return Channel(name=name, status=status, text=f"{KINDS[name].text}: {reason}", reason=reason, sources=sources)


def _names(assumptions: Sequence[Assumption]) -> tuple[str, ...]:
    return _once(assumption.name for assumption in assumptions)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
