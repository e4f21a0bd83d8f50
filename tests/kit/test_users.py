"""Outcomes for groups of records, converted to users."""

from types import SimpleNamespace
from typing import Any

import pytest

import dpspec.contract as dps
from dpspec.kit.users import in_units


def test_a_group_consists_of_whole_users() -> None:
    threat = SimpleNamespace(unit="user")
    spec: Any = SimpleNamespace(threat_model=threat, phases=(), records_per_unit=2, unit="user (at most 2 records)")
    sizes = ((2, 1, "one user with 2 records"), (4, 2, "2 users with 2 records each"))
    for size, users, group in sizes:
        found = in_units(spec, dps.Power(at=dps.FrozenMap({"group_size": size}), epsilon=1.0, method="test"))
        assert (found.at["group_size"], found.method) == (users, f"test; a group is {group}")
    with pytest.raises(ValueError, match="does not consist of users with 2 each"):
        in_units(spec, dps.Power(at=dps.FrozenMap({"group_size": 3}), epsilon=1.0, method="test"))
