"""The parts of a recording's section in words: channels, executed run, accountant, open points."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dpspec import decimals
from dpspec.contract.executed import ExecutedSection, FiredRule, SectionGroup
from dpspec.contract.findings import Channel
from dpspec.contract.frozen import FrozenMap
from dpspec.results.executed_schedule import schedule_in_words
from dpspec.results.honest_script import HONEST_SCRIPT, HONEST_SCRIPT_TEXT, UNTRUSTED

CLOSING = f"Assumed ({HONEST_SCRIPT}): {HONEST_SCRIPT_TEXT}. {UNTRUSTED}."

_NO_ACCOUNTANT = "The recorder received no accountant: the script's figure is unknown."

_ANSWERS = {
    "verification": "with the result file and the folder of the recording, dpspec verify recomputes tests, bounds and "
    "verdicts; without the folder only the verdicts",
    "not-recorded": "A recording does not see the name, the origin and the content of the dataset, nor the person who "
    "ran it: check --declare FILE declares them.",
}

#: The maximum number of open points.
_MOST_OPEN = 4

#: Channels that nothing else than a missing end leaves open, or that it hides.
_UNKNOWN_WITHOUT_END = ("model-state", "released-model")

#: The channel whose reason says why the recorder gave up before the training ended.
_ENDING = "released-model"


@dataclass(frozen=True, kw_only=True)
class AccountantReport:
    """The figure of the script's own accountant.

    Attributes:
        mechanism: The accountant's method, as ``rdp`` or ``prv``.
        delta: The delta of the figure.
        epsilon: The figure, recomputed from the accountant's history; None if it has none.
        difference: A sentence on why it differs from the bound on the executed schedule.
    """

    mechanism: str
    delta: float
    epsilon: float | None
    difference: str

    @property
    def of_deviating_run(self) -> "AccountantReport":
        return replace(self, difference="The run deviates: this is not its cost.")

    def in_full(self) -> str:
        figure = "no figure" if self.epsilon is None else f"epsilon {decimals.nearest(self.epsilon)}, recomputed"
        return f"{self.mechanism}: {figure} at delta = {decimals.exact(self.delta)}. {self.difference}"

    def in_brief(self, doubt: str = "") -> str:
        at_delta = f"at delta = {decimals.exact(self.delta)}"
        if self.epsilon is None:
            return f"Accountant {self.mechanism}: no figure {at_delta}. {self.difference}"
        figure = f"epsilon {decimals.nearest(self.epsilon)} {at_delta}"
        return f"Accountant {self.mechanism}: {figure}, recomputed from its history.{doubt}"


def with_words(
    section: ExecutedSection,
    *,
    setup: Sequence[str],
    channels: Sequence[Channel],
    report: AccountantReport | None,
    unrecognized: Sequence[str],
    steps: int,
    ended: bool,
    stopped: bool,
) -> ExecutedSection:
    """The section with its parts in words.

    Args:
        section: The section with its other values.
        setup: Sentences on model, optimizer, batches and canaries.
        channels: The eight channels through which records can reach the released model.
        report: The script's own accountant; None if none was recorded.
        unrecognized: Notes of the recorder on unknown objects.
        steps: The number of recorded steps.
        ended: Whether the recording has an end.
        stopped: Whether the recorder gave up before the training ended.
    """
    full, brief, void_full, void_brief = _NO_ACCOUNTANT, _NO_ACCOUNTANT, _NO_ACCOUNTANT, _NO_ACCOUNTANT
    if report is not None:
        full, brief = report.in_full(), report.in_brief()
        void_full = report.of_deviating_run.in_full()
        void_brief = report.of_deviating_run.in_brief(" It is not the cost of this run.")
    notes = (
        *_declared(section),
        *map(_rule, section.rules),
        *section.cautions,
        *section.advice,
        *(f"not recognized: {note}" for note in unrecognized),
    )
    prefix = "The script's own accountant: "
    incomplete = f"The recording has no end after step {steps}: the process was killed, failed or still runs."
    return replace(
        section,
        groups=(
            SectionGroup(
                title="Channels",
                columns=("channel", "status", "requirement, and evidence in the recording"),
                rows=tuple(channels),
            ),
            SectionGroup(
                title="Executed run", sentences=(*setup, *schedule_in_words(section.phases, section.more_phases))
            ),
            SectionGroup(title="The script's accountant", sentences=(full, *notes), if_deviating=(void_full, *notes)),
        ),
        brief=SectionGroup(title="WHAT RAN", sentences=(section.ran, brief), if_deviating=(section.ran, void_brief)),
        closing=CLOSING,
        open=tuple(_reasons_not_proved(channels, unrecognized, "" if ended else incomplete, stopped=stopped)),
        incomplete="" if ended else f"{incomplete} Record the whole training again.",
        answers=FrozenMap({**_ANSWERS, "accounting": f"{prefix}{full}"}),
        answers_if_deviating=FrozenMap({"accounting": f"{prefix}{void_full}"}),
        facts=FrozenMap(
            {
                "steps": steps,
                "ended": ended,
                "accountant": None
                if report is None
                else {"mechanism": report.mechanism, "delta": report.delta, "epsilon": report.epsilon},
            }
        ),
    )


def _declared(section: ExecutedSection) -> Iterator[str]:
    declarations = [
        f"{verb} {', '.join(names)}"
        for verb, names in (("assumes", section.assumed), ("declares public", section.public))
        if names
    ]
    if declarations:
        yield f"The user {' and '.join(declarations)}."


def _rule(rule: FiredRule) -> str:
    accepted = f" Accepted: {rule.accepted}." if rule.accepted else ""
    return f"{rule.name}: {rule.text} {rule.why} {rule.fix}{accepted}"


def _reasons_not_proved(
    channels: Sequence[Channel], unrecognized: Sequence[str], no_end: str, *, stopped: bool
) -> Iterator[Channel]:
    """The reasons why nothing is proved of a run that does not deviate."""
    doubted = [channel for channel in channels if channel.status in ("open", "violated")]
    if not doubted:
        return
    says_why = stopped and any(channel.name == _ENDING for channel in doubted)
    if no_end and not says_why:
        advice = "Continue it from a checkpoint, with dpspec.record(..., resume=True), or record the training again."
        yield Channel(name="", status="open", text=f"{no_end} {advice}")
        doubted = [channel for channel in doubted if channel.name not in _UNKNOWN_WITHOUT_END]
    for channel in doubted[:_MOST_OPEN]:
        yield Channel(name=channel.name, status=channel.status, text=channel.reason)
    for note in unrecognized[:2] if len(doubted) < _MOST_OPEN else ():
        yield Channel(name="", status="open", text=note)
