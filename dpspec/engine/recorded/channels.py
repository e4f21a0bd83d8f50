"""The eight channels through which records can reach a released model, as a view of checks and assumptions.

A recorded run is private if its data reaches the released model only through the noisy sums. Each check and each
assumption belongs to one channel by its name, as listed in ``KINDS``. Checks of ``accounting``, ``canaries`` and
``bounded`` belong to no channel: they compare the run with its accountant, its attack and its spec.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from dpspec.contract import Assumption, Check
from dpspec.contract.findings import AssumptionStatus, Channel, ChannelStatus
from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.results.decimals import upper
from dpspec.engine.results.recording import UNKNOWN
from dpspec.errors import UsageError
from dpspec.text import closest, did_you_mean, listed


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
            *("loss-reduction", "repeated-records", "replaced-methods"),
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
        names=("update", "steps", "library-code"),
        missing="the recording does not show what moved the parameters",
    ),
    "gradient-parameters": _Kind(
        text="gradients are computed at the parameters that the step before left",
        names=("observed-passes",),
        missing="the recording does not compare the forward pass's parameters with the last step's",
    ),
    "model-state": _Kind(
        text="of the model, only the noisy parameters depend on the records",
        names=(),
        missing="the recording does not show what else the model holds",
    ),
    "released-model": _Kind(
        text="the recorded steps are all that was trained, and which model is released does not depend on the records",
        names=("nothing-unseen", "ended-by-error", "joined-parts"),
        missing="the recording does not show where the training ends",
    ),
    "constants": _Kind(
        text="the constants of the training do not depend on the records",
        names=("data-independent-hyperparameters",),
        missing="the recording does not show the constants",
    ),
}

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

#: Assumptions of every recorded proof. The headline names them; a channel with checks stays tested or verified.
_GENERAL = {"library-code", "observed-passes"}

#: Channels whose absence from a recording is an assumption instead of an open question.
_ASSUMED_IF_MISSING = {"gradient-parameters"}


def channel_of(name: str) -> str | None:
    return _NAMES.get(name.removesuffix(UNKNOWN))


def require_known(option: str, names: Collection[str], valid: Collection[str]) -> None:
    wrong = next((name for name in names if name not in valid), None)
    if wrong is not None:
        near = did_you_mean(closest(wrong, valid))
        raise UsageError(f"{option}: {wrong!r} is unknown{near} (valid: {listed(valid)})")


def complete(
    checks: Sequence[Check], assumptions: Sequence[Assumption], assumed: Collection[str] = ()
) -> tuple[Assumption, ...]:
    """All assumptions of a recorded run: the given ones, and one for each channel without checks and assumptions.

    Args:
        checks: The checks of the run.
        assumptions: The assumptions with the status that the recording supports.
        assumed: Names of channels and assumptions that the user assumes. An unchecked assumption with such a name, or
            of such a channel, becomes a declared one. One that is false stays false.
    """
    known = {channel_of(one.assumption) for one in checks} | {channel_of(one.name) for one in assumptions}
    found = list(assumptions)
    for name, kind in KINDS.items():
        if name not in known:
            status: AssumptionStatus = "declared" if name in _ASSUMED_IF_MISSING else "unchecked"
            found.append(Assumption(name=name, status=status, text=kind.missing))
    return tuple(_assumed(one) if {one.name, channel_of(one.name)} & {*assumed} else one for one in found)


def _assumed(one: Assumption) -> Assumption:
    if one.status != "unchecked":
        return one
    return replace(one, status="declared", text=f"{one.text}; the user assumes it")


def channels(
    checks: Sequence[Check], assumptions: Sequence[Assumption], family: int | None = None
) -> tuple[Channel, ...]:
    among = max(1, len(checks) if family is None else family)
    found = []
    for name in CHANNELS:
        made = [one for one in checks if channel_of(one.assumption) == name]
        found.append(_channel(name, made, [one for one in assumptions if channel_of(one.name) == name], among))
    return tuple(found)


def assumes(found: Sequence[Channel]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for channel in found for name in channel.assumes))


def _channel(name: str, checks: Sequence[Check], assumptions: Sequence[Assumption], family: int) -> Channel:
    text = KINDS[name].text
    bad = [one for one in checks if rejected(one, family)]
    false = [one for one in assumptions if one.status == "false"]
    doubted = [one for one in assumptions if one.status == "unchecked"]
    set_aside = (_SUPPORTED | _GENERAL) if checks else set()
    declared = [one for one in assumptions if one.status == "declared" and one.name not in set_aside]
    general = _names([one for one in assumptions if one.status == "declared" and one.name in _GENERAL])
    if bad or false:
        sources = (*(one.assumption for one in bad), *(one.name for one in false))
        why = [*(_measured(one) for one in bad), *(one.text for one in false)]
        return Channel(name=name, status="violated", text=f"{text}: {why[0]}", sources=_once(sources))
    if doubted or not (checks or assumptions):
        why = [one.text for one in doubted] or [KINDS[name].missing]
        return Channel(name=name, status="open", text=f"{text}: {why[0]}", sources=_names(doubted))
    tests = [one.detectable for one in checks if one.detectable is not None and 0.0 < one.detectable < math.inf]
    statistical = [one for one in checks if not one.test.endswith(", exact")]
    sharpest = min(tests) if tests else 0.0 if checks else None
    made = f"{len(checks)} checks" if len(checks) != 1 else "1 check"
    seen = f"; the sharpest detects {upper(100.0 * sharpest, digits=2)}%" if tests and sharpest is not None else ""
    evidence = f" ({made}{seen})" if checks else ""
    if declared:
        named = _once([*_names(declared), *general])
        return Channel(
            name=name,
            status="assumed",
            text=f"{text}{evidence}: assumes {', '.join(named)}",
            detectable=sharpest,
            sources=named,
            assumes=named,
        )
    sources = _once([*(one.assumption for one in checks), *(one.name for one in assumptions)])
    status: ChannelStatus = "tested" if statistical else "verified"
    limits = f"; assumes {', '.join(general)}" if general else ""
    return Channel(
        name=name,
        status=status,
        text=f"{text}{evidence}{limits}",
        detectable=sharpest,
        sources=sources,
        assumes=general,
    )


def _measured(one: Check) -> str:
    note = f" ({one.note})" if one.note else ""
    return f"{one.test.removesuffix(', exact')}{note}"


def _names(assumptions: Sequence[Assumption]) -> tuple[str, ...]:
    return _once(one.name.removesuffix(UNKNOWN) for one in assumptions)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
