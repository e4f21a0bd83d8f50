"""The accountant asked each question once: results of a file that run the same mechanism again and again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dpspec.accounting import Interval, PrivacyLoss
from dpspec.accounting.solver import Question

#: What asks the accountant itself.
solve = PrivacyLoss._solve

_SOLVED: dict[object, list[Interval]] = {}


def solved_once(
    loss: PrivacyLoss,
    questions: list[Question],
    widths: float | Sequence[float],
    beside: Sequence[Interval | None] | None = None,
) -> list[Interval]:
    """As ``solve``, worked out once for the same steps, direction, questions, widths and intervals beside."""
    phases = tuple((pair.key, steps) for pair, steps in loss.phases)
    each = tuple(widths) if isinstance(widths, Sequence) else widths
    asked = (phases, loss.direction, tuple(questions), each, None if beside is None else tuple(beside))
    if asked not in _SOLVED:
        _SOLVED[asked] = solve(loss, questions, widths, beside)
    return list(_SOLVED[asked])


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that patch nothing of the accountant."""
    monkeypatch.setattr(PrivacyLoss, "_solve", solved_once)
