"""A rule of dpspec, which may also ask a person, and explain tests that its mistake makes reject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from dpspec.contract.rules import TrainingRule
from dpspec_recording.outcomes.issue import Issue

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms

F = TypeVar("F")


class OwnRule(TrainingRule[F]):
    """A rule whose code reads the recorded run. noted: its facts in each rank and part; None if it failed there."""

    @staticmethod
    def ask(noted: Sequence[F | None], run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """The questions to a person, which depend on the claim."""
        return iter(())

    @staticmethod
    def explains(noted: Sequence[F | None]) -> tuple[str, ...]:
        """The names of the tests that its caution explains."""
        return ()
