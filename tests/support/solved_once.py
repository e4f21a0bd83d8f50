"""A cache of the accountant: many tests run the same mechanism, and the accountant has tests that run without it."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

#: Answers by question; a test of what is computed clears them.
SOLVED: dict[object, list[Any]] = {}


@contextlib.contextmanager
def solved_once() -> Iterator[None]:
    """Cache ``PrivacyLoss._solve`` by steps, direction, questions, widths and answers of the other direction."""
    if (module := sys.modules.get("dpspec.accounting.privacy_loss")) is None:  # tests of what is imported
        yield
        return
    solve = module.PrivacyLoss._solve

    def cached(loss: Any, questions: list[Any], widths: Sequence[float], other: Any = None) -> list[Any]:
        phases = tuple((pair.key, steps) for pair, steps in loss.phases)
        key = (phases, loss.direction, tuple(questions), tuple(widths), None if other is None else tuple(other))
        if key not in SOLVED:
            SOLVED[key] = solve(loss, questions, widths, other)
        return list(SOLVED[key])

    with mock.patch.object(module.PrivacyLoss, "_solve", cached):
        yield
