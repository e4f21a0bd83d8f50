"""Where trials were made, and what is said of those that were made in several ways."""

from __future__ import annotations

import pytest
import torch

from dpspec.contract import FrozenMap
from dpspec.engine.results.result import TrialRecord
from dpspec.engine.running.tasks import gpu_name
from dpspec.engine.storage.origins import mixture_notices


def made(**recorded: str | None) -> TrialRecord:
    return TrialRecord(index=0, key="", evidence=FrozenMap(), recorded=FrozenMap(recorded))


def test_a_gpu_is_named_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"cuda": "NVIDIA H200", "cuda:1": "NVIDIA L4"}
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    assert [gpu_name(device) for device in ("cuda", "cuda:1", "cpu", None)] == ["NVIDIA H200", "NVIDIA L4", None, None]


def test_trials_of_different_gpus_are_told_of() -> None:
    h200 = made(device="cuda:0", gpu="NVIDIA H200", dpspec="0.2.0")
    assert mixture_notices([h200, made(device="cuda:1", gpu="NVIDIA H200", dpspec="0.2.0")]) == []
    assert mixture_notices([h200, made(device="cuda:0", gpu="NVIDIA L4", dpspec="0.2.0")]) == [
        "its trials have different gpu: NVIDIA H200, NVIDIA L4"
    ]
    assert mixture_notices([h200, made(device="cpu", dpspec="0.2.0")]) == [
        "its trials have different device: cpu, cuda"
    ]
