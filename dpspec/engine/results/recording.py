"""The section ``recording`` of an audit in a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dpspec.contract import Assumption, Check, Evidence, Finding, Outcome
from dpspec.contract.findings import Channel

#: Prefix of the source of every bound on an executed schedule.
SOURCE = "the executed schedule"

#: Suffix of the names of assumptions that the recording leaves open, in the result of a spec.
UNKNOWN = "-unknown"


@dataclass(frozen=True, kw_only=True)
class RecordedPhase:
    """Consecutive steps that share their parameters.

    Attributes:
        first: The number of the first step, from 1.
        steps: The number of steps.
        noise_multiplier: The standard deviation of the noise on a sum, in clip norms; 0 for updates without noise, None
            if the recording does not show it.
        clip_norm: The clip norm; None if it is not known.
        rate: The rate of Poisson sampling; None for other batches, or if it is not known.
    """

    first: int
    steps: int
    noise_multiplier: float | None
    clip_norm: float | None
    rate: float | None


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


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recorded training.

    Attributes:
        steps: The number of recorded steps.
        ended: Whether the recording has an end.
        setup: Sentences on model, optimizer, batches and canaries.
        cautions: Limits of the result, in the order of importance.
        unrecognized: Notes of the recorder on unknown objects.
        phases: The executed schedule, or its first phases if there are many.
        more_phases: The number of phases that are not listed.
        accountant: The script's own accountant; None if none was recorded.
        advice: What may be wrong, for the checks that are rejected.
        channels: The eight channels through which records can reach the released model.
        assumes: Names of everything that a proof assumes.
        assumed: Names that the user assumes (``--assume``).
        public: Names of hyperparameters that the user declares public (``--public``).
    """

    steps: int
    ended: bool
    setup: tuple[str, ...]
    cautions: tuple[str, ...] = ()
    unrecognized: tuple[str, ...] = ()
    phases: tuple[RecordedPhase, ...] = ()
    more_phases: int = 0
    accountant: AccountantReport | None = None
    advice: tuple[str, ...] = ()
    channels: tuple[Channel, ...] = ()
    assumes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExecutedRun:
    """Contribution of a recorded run to the audit of its spec.

    ``assumptions`` are additional ones of the bounds of a declared mechanism; ``findings`` bound the executed schedule,
    or are the lower bound from canaries.
    """

    checks: tuple[Check, ...]
    assumptions: tuple[Assumption, ...]
    findings: tuple[Finding, ...]
    evidence: tuple[Evidence, ...]
    section: Recording

    def joined(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """The outcomes of a declared mechanism with the assumptions of the recording, and its own outcomes.

        Without lower bounds, and without bounds that the recording states itself: whether the worst case is attained
        depends on the executed updates.
        """
        own = {(f.quantity, f.at, f.scope.adjacency) for f in self.findings if f.bound == "upper"}
        names = {assumption.name.removesuffix(UNKNOWN) for assumption in self.assumptions}
        for outcome in outcomes:
            if not isinstance(outcome, Finding):
                yield outcome
            elif outcome.bound != "lower" and (outcome.quantity, outcome.at, outcome.scope.adjacency) not in own:
                kept = [assumption for assumption in outcome.assumptions if assumption.name not in names]
                yield replace(outcome, assumptions=(*kept, *self.assumptions))
        yield from self.checks
        yield from self.findings
        yield from self.evidence
