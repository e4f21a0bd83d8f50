"""How many cores are used: those of this process, and no more than a container's quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpspec.executors import cores as module
from dpspec.executors.cores import cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of 64 cores, whose control groups are files of this test."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(module, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(module, "_OWN", tmp_path / "own")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_all_cores_where_nothing_limits_them(machine: Path) -> None:
    assert cores() == 64
    write(machine / "own", "0::/user/session\n")
    write(machine / "groups/user/session/cpu.max", "max 100000\n")
    assert cores() == 64


@pytest.mark.parametrize(("quota", "seen"), [("200000", 2), ("250000", 3), ("1000", 1), ("9900000", 64)])
def test_the_quota_of_a_group(machine: Path, quota: str, seen: int) -> None:
    write(machine / "own", "0::/\n")
    write(machine / "groups/cpu.max", f"{quota} 100000\n")
    assert cores() == seen


def test_the_least_quota_of_all_groups_above(machine: Path) -> None:
    write(machine / "own", "0::/pod/container\n")
    write(machine / "groups/pod/container/cpu.max", "800000 100000\n")
    write(machine / "groups/pod/cpu.max", "400000 100000\n")
    assert cores() == 4


def test_groups_of_the_first_version(machine: Path) -> None:
    write(machine / "own", "5:memory:/x\n4:cpu,cpuacct:/docker/one\n")
    write(machine / "groups/cpu/docker/one/cpu.cfs_quota_us", "-1\n")
    write(machine / "groups/cpu/docker/one/cpu.cfs_period_us", "100000\n")
    assert cores() == 64
    write(machine / "groups/cpu/cpu.cfs_quota_us", "150000\n")
    write(machine / "groups/cpu/cpu.cfs_period_us", "100000\n")
    assert cores() == 2


@pytest.mark.parametrize("text", ["", "x", "5 0", "-3 100000", "1e5 100000", "100000"])
def test_what_is_no_quota_limits_nothing(machine: Path, text: str) -> None:
    write(machine / "own", "0::/../..\nnonsense\n")
    write(machine / "groups/cpu.max", text)
    assert cores() == 64


def test_what_people_set_is_heeded(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cores() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert cores() == 64
