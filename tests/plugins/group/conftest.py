"""Fixtures for tests of the group plugin's audits."""

from collections.abc import Iterator

import pytest

from dpspec_group import bounds


@pytest.fixture(scope="module")
def claimed_deltas_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "CURVE_DELTAS", ())
        patch.setattr(bounds, "PROFILE_DELTAS", ())
        yield
