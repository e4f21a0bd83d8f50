"""The meeting point of ranks: torchrun's processes meet."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from support.checked_runs import Question, check_run

SCRIPT = """
import sys
import torch
from opacus import PrivacyEngine
from opacus.utils.fsdp_utils import FSDP2Wrapper
import dpspec

torch.distributed.init_process_group("gloo")
torch.manual_seed(100 + torch.distributed.get_rank())
x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
model = FSDP2Wrapper(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)))
engine = PrivacyEngine()
model, optimizer, criterion, loader = engine.make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    data_loader=torch.utils.data.DataLoader(data, batch_size=100),
    criterion=torch.nn.CrossEntropyLoss(),
    noise_multiplier=1.0,
    max_grad_norm=0.5,
    grad_sample_mode="ghost_fsdp",
)
with dpspec.record(sys.argv[1], model=model, optimizer=optimizer, loader=loader, engine=engine):
    for _ in range(3):
        for batch, labels in loader:
            optimizer.zero_grad()
            criterion(model(batch), labels).backward()
            optimizer.step()
torch.distributed.destroy_process_group()
"""


@pytest.mark.skipif(importlib.util.find_spec("torch.distributed.run") is None, reason="torch without torchrun")
@pytest.mark.ci
def test_a_script_of_torchrun_is_proved(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, "train.py", "run"], cwd=tmp_path, check=True, timeout=120, capture_output=True)
    assert sorted(one.name for one in (tmp_path / "run").iterdir()) == ["rank-0", "rank-1"]
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=50.0, accept=("not-replayed",)))
    assert (found.verdict, found.fine, found.run.steps) == ("proved", True, 12)
