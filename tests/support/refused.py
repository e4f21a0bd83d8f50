"""Data that cannot be used."""

import pytest

from dpspec.contract import DataError, DataSource


def refused(made: DataSource, *parts: str) -> None:
    """Facts or else rows raise ``DataError``, in words that hold every part."""
    with pytest.raises(DataError) as caught:
        _ = made.facts(), made.load()
    for part in parts:
        assert part in str(caught.value)
