"""The conformance suite that every plugin author uses, on our own plugin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpspec.testing import MechanismSuite, decreasing, increasing
from dpspec_rero import tables, theory


@pytest.fixture(autouse=True, scope="module")
def few_baselines() -> Iterator[None]:
    """Eight of the curve's fifty, and wider intervals: values that are compared lie much farther apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "CURVE", tables.CURVE[::7])
        patch.setattr(theory, "WIDTH", 1e-4)
        yield


class TestRero(MechanismSuite):
    kind = "rero"
    overrides = ("mechanism.baselines=[clt]",)
    monotone = {  # noqa: RUF012
        "mechanism.noise_multiplier": decreasing(0.8, 1.0, 2.0),
        "mechanism.steps": increasing(5, 20, 60),
        "mechanism.sampling.rate": increasing(0.02, 0.1, 0.4),
    }
