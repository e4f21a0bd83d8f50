"""The outcomes of a fact: tests, assumptions, and remarks on a condition."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dpspec.contract import Assumption
from dpspec.contract.findings import AssumptionStatus
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.faults import RunTest


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A sentence on a condition of a run; the sentences of all facts together are its assumption.

    Attributes:
        condition: The name of the condition.
        text: The sentence.
        is_doubt: Whether it leaves the condition open, with its own advice.
        option: The option that it doubts: none is left of one that the user declares public.
    """

    condition: str
    text: str
    is_doubt: bool = True
    option: str = ""


#: An outcome of a fact.
Outcome: TypeAlias = RunTest | Assumption | Remark


def run_tests(outcomes: Iterable[Outcome]) -> Iterator[RunTest]:
    """The tests among the outcomes."""
    return (outcome for outcome in outcomes if isinstance(outcome, RunTest))


def undeclared(outcomes: Iterable[Outcome], public: Collection[str]) -> Iterator[Outcome]:
    """All outcomes without remarks on options that the user declares public."""
    return (outcome for outcome in outcomes if not (isinstance(outcome, Remark) and outcome.option in public))


def doubts_about(condition: str, outcomes: Iterable[Outcome]) -> list[str]:
    """The sentences that leave a condition open."""
    remarks = (outcome for outcome in outcomes if isinstance(outcome, Remark))
    return [remark.text for remark in remarks if remark.condition == condition and remark.is_doubt]


def assumptions_of(outcomes: Iterable[Outcome], besides: Collection[str] = ()) -> Iterator[Assumption]:
    """The assumptions among the outcomes, and for each condition with remarks the one that they make, doubts first.

    Args:
        outcomes: Of a run.
        besides: Conditions whose remarks are part of another assumption.
    """
    remarks: dict[str, list[Remark]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Assumption):
            yield outcome
        elif isinstance(outcome, Remark) and outcome.condition not in besides:
            remarks.setdefault(outcome.condition, []).append(outcome)
    for condition, said in remarks.items():
        doubts = [remark for remark in said if remark.is_doubt]
        status: AssumptionStatus = "unchecked" if doubts else "declared"
        further = [remark for remark in said if not remark.is_doubt]
        yield stated(condition, status=status, text="; ".join(remark.text for remark in (*doubts, *further)))
