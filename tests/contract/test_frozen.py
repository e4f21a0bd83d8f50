"""What JSON cannot hold is named with its place."""

import math
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
