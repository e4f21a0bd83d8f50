"""Assertions about unusable data."""

import pytest

from dpspec.contract import DataError, DataSource


def refused(made: DataSource, *parts: str) -> None:
    """Require a ``DataError`` from the facts or the rows, with every part in its message."""
    with pytest.raises(DataError) as caught:
        _ = made.facts(), made.load()
    for part in parts:
        assert part in str(caught.value)
