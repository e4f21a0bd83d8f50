"""An issue: something that is not right with a recorded training, or that a person must confirm."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from dpspec.contract import Assumption, Check
from dpspec.contract.findings import AssumptionStatus
from dpspec_recording.outcomes.conditions import CONDITIONS, channel_of, stated

if TYPE_CHECKING:  # rules are listed without numpy
    from dpspec.stats.conformance.measurement import LimitOf

#: The consequence of an issue: the run deviates from its claim; its condition stays open, so that nothing is proved;
#: the verdict stays, and the exit code is 1; or a person confirms it.
Level: TypeAlias = Literal["deviates", "open", "caution", "confirm"]


@dataclass(frozen=True, kw_only=True)
class Issue:
    """Something that is not right, or that a person must confirm.

    An issue with a test is one if the test rejects. A test that finds nothing is listed as a check.

    Attributes:
        condition: The name of the condition that it violates, or leaves open.
        level: Its consequence.
        text: Its words, for users: of a test the title.
        fix: A likely cause, and what to do; empty if the text has it, or the condition's advice suffices.
        test: The outcome of the test that looked for it, as a result contains it; None without a test.
        explains: The names of tests that also reject a run with this issue, which then get no advice.
        name: An identifier, for code. Tests of several ranks or phases have one name.
        is_exact: Whether the test compares all steps without randomness. Otherwise it has a p-value, or covers some
            steps.
        limit_of: The kind of deviation whose smallest found size is ``test.detectable``.
        option: The option that it doubts: no issue of a user who declares it public.
    """

    condition: str
    level: Level
    text: str
    fix: str = ""
    test: Check | None = None
    explains: tuple[str, ...] = ()
    name: str = ""
    is_exact: bool = False
    limit_of: LimitOf = "all-steps"
    option: str = ""

    @property
    def check(self) -> Check:
        """The outcome of the test of an issue that has one."""
        assert self.test is not None
        return self.test

    @property
    def channel(self) -> str | None:
        """The channel of its condition."""
        return channel_of(self.condition)


#: A statement of an observer: an issue, or an assumption that nothing casts doubt on.
Statement: TypeAlias = Issue | Assumption


def doubted(condition: str, detail: str = "", *, text: str | None = None, option: str = "") -> Issue:
    """The issue of a condition that stays open: its statement, or another ``text``, and a ``detail`` of the run."""
    return Issue(condition=condition, level="open", text=stated(condition, detail, text=text).text, option=option)


def asked(condition: str, text: str) -> Issue:
    """The question whether a condition holds, as a sentence that a person confirms."""
    return Issue(condition=condition, level="confirm", text=text)


def with_tests(statements: Iterable[Statement]) -> Iterator[Issue]:
    """The issues with a test, also those whose test finds nothing."""
    return (issue for issue in statements if isinstance(issue, Issue) and issue.test is not None)


def checks_of(tests: Iterable[Issue]) -> tuple[Check, ...]:
    """The outcomes of tests as a result contains them."""
    return tuple(issue.check for issue in tests)


def undeclared(statements: Iterable[Statement], public: Collection[str]) -> Iterator[Statement]:
    """All statements without issues of options that the user declares public."""
    return (statement for statement in statements if not (isinstance(statement, Issue) and statement.option in public))


def doubts_about(condition: str, statements: Iterable[Statement]) -> list[str]:
    """The sentences that leave a condition open."""
    issues = (statement for statement in statements if isinstance(statement, Issue) and statement.level == "open")
    return [issue.text for issue in issues if issue.condition == condition]


def assumptions_of(statements: Iterable[Statement], besides: Collection[str] = ()) -> Iterator[Assumption]:
    """The assumptions that the statements make, as a result contains them.

    All statements on a condition that has no text are one assumption, doubts first.

    Args:
        statements: Of a run.
        besides: Conditions whose issues are part of another assumption.
    """
    together: dict[str, list[Assumption]] = {}
    for statement in statements:
        if isinstance(statement, Issue):
            if statement.level != "open" or statement.condition in besides:
                continue
            statement = stated(statement.condition, status="unchecked", text=statement.text)
        if CONDITIONS[statement.name].text:
            yield statement
        else:
            together.setdefault(statement.name, []).append(statement)
    for condition, said in together.items():
        said.sort(key=lambda statement: statement.status != "unchecked")
        status: AssumptionStatus = said[0].status
        yield stated(condition, status=status, text="; ".join(statement.text for statement in said))


def by_question(issues: Iterable[Issue]) -> list[Issue]:
    """Issues in the order in which a person confirms their conditions."""
    return sorted(issues, key=lambda issue: CONDITIONS[issue.condition].question_order)
