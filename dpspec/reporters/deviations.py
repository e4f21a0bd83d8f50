"""Deviations of an executed run from its declaration: the rejected checks in plain words, and the next steps."""

from collections.abc import Iterator

from dpspec import decimals
from dpspec.contract import Check
from dpspec.contract.findings import CONSTANTS
from dpspec.contract.results import AuditResult
from dpspec.reporters import words
from dpspec.results.conformance_status import rejected
from dpspec.results.status import wrong_conformance
from dpspec.text import joined

#: The subject of each assumption, and the next step if one of its checks is rejected.
_ASSUMPTIONS = {
    "steps": ("the number of steps", "train the declared number of steps, or declare the executed one"),
    "noise-scale": (
        "the scale of the noise",
        "add noise of standard deviation noise_multiplier * clip_norm to the sum of clipped gradients, before you "
        "divide by the batch size",
    ),
    "per-layer-noise": ("the noise of single layers", "add noise of the declared scale to every trained parameter"),
    "independent-noise": (
        "the independence of the noise",
        "draw fresh noise for each step and each layer, from a generator that is seeded once per run",
    ),
    "sensitivity": (
        "the contribution of one record",
        "clip each record's gradient over all layers together, before gradients are summed or averaged",
    ),
    "clipping": ("the norms after clipping", "clip the gradient of every drawn record to the declared clip norm"),
    "update": (
        "the size of the updates",
        "clip every layer, and divide by the declared batch size and multiply by the declared learning rate only",
    ),
    "sampling": ("the batches", "draw batches as mechanism.sampling declares, or declare the executed sampling"),
    CONSTANTS: (
        "the constants, which depend on records",
        "choose divisors, clip norms and statistics of features without the records",
    ),
}

#: The next step for the assumptions of plugins.
_OTHER_STEP = "correct the training, or declare the executed one"

_MISSING_STEP = "Let the backend report what its capabilities declare (dpspec.testing.BackendSuite tests it)."

_INTACT = (
    "The run was expected to deviate, and no check found a deviation above its detection limit: dpspec plan shows the "
    "limits."
)


def worst_deviation(audit: AuditResult) -> str:
    """``the scale of the noise (noise-scale), 0.1 measured, 1 declared``; the violated channels of a recording."""
    if audit.recording is not None:
        return joined([channel.name for channel in audit.recording.channels if channel.status == "violated"])
    checks = _rejected(audit)
    return _fact(checks[0]) if checks else ""


def next_steps(audit: AuditResult) -> Iterator[str]:
    """For an unexpected conformance, one sentence per rejected assumption with its fix, the worst first."""
    if not wrong_conformance(audit) or audit.recording is not None:
        return
    status = audit.conformance.status
    if status == "no-deviation-found":
        yield _INTACT
    elif status == "checks-missing":
        yield f"{audit.conformance.reason} {_MISSING_STEP}"
    by_assumption: dict[str, Check] = {}
    for check in _rejected(audit):
        by_assumption.setdefault(check.assumption, check)
    for name, check in by_assumption.items():
        _, step = _ASSUMPTIONS.get(name, ("", _OTHER_STEP))
        yield f"{words.sentence(_fact(check))}: {step}."


def _rejected(audit: AuditResult) -> list[Check]:
    """The rejected checks of an audit without a recording, whose values may describe a record; the worst first."""
    if audit.recording is not None or audit.conformance.status != "deviates":
        return []
    return sorted((check for check in audit.checks if rejected(check, 1)), key=lambda check: check.p_value)


def _fact(check: Check) -> str:
    subject, _ = _ASSUMPTIONS.get(check.assumption, (check.assumption.replace("-", " "), ""))
    named = f"{subject} ({check.assumption})"
    return f"{named}{sizes(check) or f', {check.observed}: {check.test}'}"


def sizes(check: Check) -> str:
    """``, 0.1 measured, 1 declared``; empty without values."""
    if check.declared is None or check.measured is None:
        return ""
    measured, declared = (decimals.nearest(value, digits=2) for value in (check.measured, check.declared))
    return f", {measured} {check.observed}, {declared} declared"
