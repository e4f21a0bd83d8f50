"""Fixtures for tests of the group plugin's audits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpspec_group import bounds, evidence


@pytest.fixture(scope="module")
def no_independent_bounds() -> Iterator[None]:
    """One-run audits without the bounds that hold if canaries are independent: most of what concluding costs.

    They decide no claim and no check. For tests of something else.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "independent_bounds", lambda *_, **__: iter(()))
        yield


@pytest.fixture(scope="module")
def claimed_deltas_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "CURVE_DELTAS", ())
        patch.setattr(bounds, "PROFILE_DELTAS", ())
        yield
