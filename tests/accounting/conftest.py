"""Each test starts without answers of others, and leaves none that it computed with changed limits."""

from collections.abc import Iterator

import pytest

from dpspec.accounting.privacy_loss import _cached_answers
from dpspec.accounting.profiles import estimates_of


@pytest.fixture(autouse=True)
def nothing_answered_yet() -> Iterator[None]:
    _cached_answers.cache_clear()
    yield
    _cached_answers.cache_clear()
    estimates_of.cache_clear()
