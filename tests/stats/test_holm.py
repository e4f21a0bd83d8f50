from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpspec.stats import holm

p_values = st.lists(st.floats(0, 1), max_size=12)


@given(p_values, st.floats(1e-6, 1))
def test_rejects_what_the_step_down_procedure_rejects(values: list[float], level: float) -> None:
    rejected = set()
    for rank, index in enumerate(sorted(range(len(values)), key=lambda k: values[k])):
        if (len(values) - rank) * values[index] > level:
            break
        rejected.add(index)
    assert {i for i, p in enumerate(holm.adjust(values)) if p <= level} == (
        rejected if level < 1 else set(range(len(values)))
    )


@given(p_values)
def test_lies_between_the_raw_value_and_bonferroni(values: list[float]) -> None:
    for raw, adjusted in zip(values, holm.adjust(values), strict=True):
        assert raw <= adjusted <= 1
        assert adjusted <= max(max(values), len(values) * raw)


def test_family_wise_error_is_held_when_some_nulls_are_false() -> None:
    errors = 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        values = [*rng.uniform(size=5), *rng.uniform(0, 1e-4, size=5)]  # the first five nulls are true
        errors += min(holm.adjust(values)[:5]) <= 0.05
    assert errors <= stats.binom.ppf(0.999, 1000, 0.05)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_value_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="p-values"):
        holm.adjust([0.5, bad])
