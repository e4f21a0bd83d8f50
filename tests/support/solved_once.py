"""The accountant asked each question once: results of a file that run the same mechanism again and again."""

from collections.abc import Sequence

import pytest

from dpspec.accounting import Interval, PrivacyLoss
from dpspec.accounting.profiles import Question

#: What asks the accountant itself.
solve = PrivacyLoss._solve

_SOLVED: dict[object, list[Interval]] = {}


def solved_once(
    loss: PrivacyLoss,
    questions: list[Question],
    widths: Sequence[float],
    other: Sequence[Interval | None] | None = None,
) -> list[Interval]:
    """``solve``, computed once for the same steps, direction, questions, widths and answers of the other direction."""
    phases = tuple((pair.key, steps) for pair, steps in loss.phases)
    asked = (phases, loss.direction, tuple(questions), tuple(widths), None if other is None else tuple(other))
    if asked not in _SOLVED:
        _SOLVED[asked] = solve(loss, questions, widths, other)
    return list(_SOLVED[asked])


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that patch nothing of the accountant."""
    monkeypatch.setattr(PrivacyLoss, "_solve", solved_once)
