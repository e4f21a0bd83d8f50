"""Variables of a script by name."""

from types import SimpleNamespace

import pytest

from dpspec.errors import UsageError
from dpspec_recording.scripts.named_values import named_values


def test_the_innermost_variable_counts() -> None:
    data = SimpleNamespace(public=[1])

    def train() -> list[object]:
        data = SimpleNamespace(public=[2])
        assert data
        return named_values(["data.public"])

    assert named_values(["data", "data.public"]) == [data, [1]]
    assert train() == [[2]]


def test_a_missing_variable_or_attribute_is_an_error() -> None:
    with pytest.raises(UsageError, match="no variable of the script has this name"):
        named_values(["no_such_variable_at_all"])
    data = SimpleNamespace()
    assert not vars(data)
    with pytest.raises(UsageError, match="has no attribute 'public'"):
        named_values(["data.public"])
