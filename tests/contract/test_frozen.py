"""What JSON cannot hold is named with its place."""

import copy
import json
import math
import operator
import pickle
from decimal import Decimal

import numpy as np
import pytest

from dpspec.contract import FrozenMap
from dpspec.contract.frozen import canonical_json


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ({"a": [1, {"b": math.nan}]}, ValueError, r"a\[1\]\.b is nan, which JSON cannot hold"),
        ({"a": -math.inf}, ValueError, "a is -inf, which JSON cannot hold"),
        (FrozenMap({"hits": np.int64(3)}), TypeError, r"hits is a numpy\.int64; JSON holds numbers"),
        ([Decimal(1)], TypeError, r"\[0\] is a decimal\.Decimal; JSON holds"),
        (print, TypeError, "it is a builtin_function_or_method; JSON holds"),
    ],
)
def test_what_json_cannot_hold_is_named(value, error, says):
    with pytest.raises(error, match=says):
        canonical_json(value)


def test_a_frozen_map_is_a_dict_that_does_not_change() -> None:
    made = FrozenMap({"a": [1, {"b": 2}]})
    assert isinstance(made, dict)
    assert json.loads(json.dumps(made)) == {"a": [1, {"b": 2}]}
    assert hash(made) == hash(FrozenMap({"a": (1, {"b": 2})}))
    restored = pickle.loads(pickle.dumps(made))  # noqa: S301
    assert restored == copy.deepcopy(made) == made
    for change in (
        lambda: made.update(a=1),
        lambda: made.__setitem__("b", 1),
        lambda: made.pop("a"),
        lambda: made.setdefault("b", 1),
        made.clear,
        made.popitem,
        lambda: made.__delitem__("a"),
        lambda: operator.ior(made, {"b": 1}),
    ):
        with pytest.raises(TypeError, match="does not change"):
            change()
    assert made == {"a": (1, {"b": 2})}


def test_columns_of_a_series_are_columns_of_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(FrozenMap({"epsilon": [1.0, 2.0], "delta": [0.1, 0.2]}))
    assert list(frame.columns) == ["epsilon", "delta"]
    assert len(frame) == 2
