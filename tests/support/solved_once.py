"""A cache of the accountant, for test files that run the same mechanism often."""

from collections.abc import Sequence

import pytest

from dpspec.accounting import Interval, PrivacyLoss
from dpspec.accounting.profiles import Question

#: The method without the cache.
solve = PrivacyLoss._solve

_SOLVED: dict[object, list[Interval]] = {}


def solved_once(
    loss: PrivacyLoss,
    questions: list[Question],
    widths: Sequence[float],
    other: Sequence[Interval | None] | None = None,
) -> list[Interval]:
    """Cache ``solve`` by steps, direction, questions, widths and answers of the other direction."""
    phases = tuple((pair.key, steps) for pair, steps in loss.phases)
    key = (phases, loss.direction, tuple(questions), tuple(widths), None if other is None else tuple(other))
    if key not in _SOLVED:
        _SOLVED[key] = solve(loss, questions, widths, other)
    return list(_SOLVED[key])


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache the accountant; only for tests that do not patch it."""
    monkeypatch.setattr(PrivacyLoss, "_solve", solved_once)
