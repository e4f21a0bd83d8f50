"""Each test starts without answers of others, and leaves none that it computed with changed limits."""

from collections.abc import Iterator

import pytest

from dpspec.accounting.privacy_loss import _kept_answers


@pytest.fixture(autouse=True)
def nothing_answered_yet() -> Iterator[None]:
    _kept_answers.cache_clear()
    yield
    _kept_answers.cache_clear()
