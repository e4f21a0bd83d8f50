"""The accountant asked each question once: results of a file that run the same mechanism again and again."""

from __future__ import annotations

import pytest

from dpspec.accounting import Interval, PrivacyLoss
from dpspec.accounting.solver.question import Question

#: What asks the accountant itself.
solve = PrivacyLoss._solve

_SOLVED: dict[object, list[Interval]] = {}


def solved_once(loss: PrivacyLoss, questions: list[Question], width: float) -> list[Interval]:
    """As ``solve``, worked out once for the same steps, direction, questions and width."""
    asked = (tuple((pair.key, steps) for pair, steps in loss.phases), loss.direction, tuple(questions), width)
    if asked not in _SOLVED:
        _SOLVED[asked] = solve(loss, questions, width)
    return list(_SOLVED[asked])


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that patch nothing of the accountant."""
    monkeypatch.setattr(PrivacyLoss, "_solve", solved_once)
