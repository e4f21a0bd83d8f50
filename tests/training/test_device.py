"""Devices are named, and refused in words."""

from __future__ import annotations

import pytest
import torch

from dpspec.errors import UsageError
from dpspec.training.device import resolve_device


def pretend(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_cpu_is_always_there():
    assert resolve_device("cpu") == "cpu"
    assert resolve_device(" CPU ") == "cpu"


def test_auto_takes_what_there_is(monkeypatch):
    pretend(monkeypatch, 0)
    assert resolve_device("auto") == "cpu"
    pretend(monkeypatch, 2)
    assert resolve_device("auto") == "cuda"
    assert resolve_device("cuda:1") == "cuda:1"


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_no_cuda_here(monkeypatch, name):
    pretend(monkeypatch, 0)
    with pytest.raises(UsageError, match="finds no CUDA device"):
        resolve_device(name)


def test_a_device_too_many(monkeypatch):
    pretend(monkeypatch, 2)
    with pytest.raises(UsageError, match=r"'cuda:2' does not exist here \(valid: cpu, cuda:0, cuda:1\)"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["metal", "", "cuda:", "cuda:x", "cuda:-1", "cpu:0:0"])
def test_anything_else_is_no_device(name):
    with pytest.raises(UsageError, match="is not a device"):
        resolve_device(name)


def test_did_you_mean():
    with pytest.raises(UsageError, match="did you mean 'cuda'"):
        resolve_device("cud")
