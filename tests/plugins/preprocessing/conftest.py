"""Fixtures for tests of the preprocessing plugin's audits."""

import pytest

from dpspec_preprocessing import bounds


@pytest.fixture
def claimed_deltas_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CURVE_DELTAS", ())
