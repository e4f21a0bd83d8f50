"""A recorded training in a report: what was executed, the channels, and why the script's accountant differs.

Text that a recording may have brought in is returned as it is: escaping is the task of the format.
"""

from __future__ import annotations

from dpspec.engine.results.decimals import exact, nearest
from dpspec.engine.results.recording import AccountantReport, RecordedPhase, Recording

#: The number of phases that a report lists.
_SHOWN = 8

#: The headings of the three parts.
EXECUTED, CHANNELS, ACCOUNTANT = "What was executed", "Channels", "The script's accountant"

#: The columns of the table of channels.
COLUMNS = ("channel", "status", "what must hold, and what the recording shows")


def executed(recording: Recording) -> list[str]:
    """The setup, and a line for each of the first phases."""
    shown = [*recording.setup, *map(_phase, recording.phases[:_SHOWN])]
    more = len(recording.phases) - _SHOWN + recording.more_phases
    return [*shown, f"and {more} more phases"] if more > 0 else shown


def channel_rows(recording: Recording) -> list[tuple[str, str, str]]:
    """A row for each channel, in the order of ``COLUMNS``."""
    return [(one.name, one.status, one.text) for one in recording.channels]


def accountant(report: AccountantReport | None) -> str:
    """The accountant's figure, and why it differs from the bound on the executed schedule."""
    if report is None:
        return "No accountant was given to the recorder: the script's own figure is not known."
    figure = "no figure" if report.epsilon is None else f"epsilon {nearest(report.epsilon)}, recomputed"
    return f"{report.mechanism}: {figure} at delta = {exact(report.delta)}. {report.difference}"


def declared(recording: Recording) -> str:
    """What the user assumes and declares public; empty for nothing."""
    parts = [
        f"{what} {', '.join(names)}"
        for what, names in (("assumes", recording.assumed), ("declares public", recording.public))
        if names
    ]
    return f"The user {' and '.join(parts)}." if parts else ""


def _phase(phase: RecordedPhase) -> str:
    last = phase.first + phase.steps - 1
    steps = f"step {phase.first}" if phase.steps == 1 else f"steps {phase.first} to {last}"
    noise = (
        "noise not observed"
        if phase.noise_multiplier is None
        else f"noise multiplier {nearest(phase.noise_multiplier)}"
    )
    if phase.noise_multiplier == 0.0:
        noise = "no noise"
    clip = "" if phase.clip_norm is None else f", clip norm {nearest(phase.clip_norm)}"
    rate = "no Poisson sample" if phase.rate is None else f"rate {nearest(phase.rate)}"
    return f"{steps}: {rate}, {noise}{clip}"
