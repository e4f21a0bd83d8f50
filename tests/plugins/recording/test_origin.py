"""The origin of a recording: what its process knows, and a commitment that reveals no indices."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import dpspec
from dpspec.integrations.federated import check_rounds, record_rounds
from dpspec.results import codec
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.origin import origin

ROWS = TensorDataset(torch.arange(20.0).reshape(20, 1))
PARAMETERS = [torch.zeros(3, dtype=torch.float32), torch.zeros(2, dtype=torch.float64)]


def test_the_indices_of_a_subset_are_committed_to_with_a_salt() -> None:
    kept = [3, 1, 19]
    first, second = origin(Subset(ROWS, kept), PARAMETERS), origin(Subset(ROWS, kept), PARAMETERS)
    content = bytes.fromhex(first["indices_salt"]) + np.array(kept, dtype="<i8").tobytes()
    assert first["indices"] == hashlib.sha256(content).hexdigest()
    assert first["indices"] != second["indices"]  # nobody confirms a guess of the indices with the digest alone
    assert first["dataset"] == "Subset of TensorDataset"


def test_other_datasets_have_a_class_and_no_commitment() -> None:
    for dataset, name in ((ROWS, "TensorDataset"), (ConcatDataset([ROWS]), "ConcatDataset"), (None, "")):
        found = origin(dataset, PARAMETERS)
        assert (found["dataset"], found["indices"], found["indices_salt"]) == (name, "", "")


def test_types_and_versions_are_those_of_the_process() -> None:
    found = origin(ROWS, PARAMETERS)
    assert found["dtypes"] == ("float32", "float64")
    assert found["versions"]["torch"] == torch.__version__
    assert found["machine"].endswith("cpu")


@pytest.mark.ci
def test_a_result_has_the_origin_without_the_salt(tmp_path: Path) -> None:
    model = nn.Linear(3, 2, bias=False)
    declared = {"clients": 9, "rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 1.0}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with record_rounds(tmp_path / "rounds", model, optimizer, **declared) as rounds:
        update, noise = torch.full((2, 3), 0.1), torch.randn(2, 3)
        model.weight.grad = update + noise
        optimizer.step()
        rounds.aggregated([0], [[update]], [noise])
    (audit,) = check_rounds(tmp_path / "rounds").run.result.audits
    assert audit.recording.origin.federated
    assert "indices_salt" not in codec.dump(check_rounds(tmp_path / "rounds").run.result)
    assert audit.recording.origin.records == 9
    loader = DataLoader(Subset(ROWS, [1, 2, 3]), batch_size=1)
    net = nn.Linear(1, 1)
    with dpspec.record(tmp_path / "run", model=net, optimizer=torch.optim.SGD(net.parameters(), lr=1.0), loader=loader):
        pass
    header = RunFolder.open(tmp_path / "run", OBSERVERS).header
    assert header.dataset == "Subset of TensorDataset"
    assert not header.federated
