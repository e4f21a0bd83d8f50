"""Recordings of earlier formats, which every later version reads.

``python tests/plugins/recording/test_kept_recordings.py`` writes the one of the present format, once for each format.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import dpspec
from dpspec_recording.folder.events import FIRST_FORMAT, FORMAT, PublicStep, Scored
from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.reader import RunFolder, read_start
from dpspec_recording.folder.script_facts import ScriptFacts
from dpspec_recording.folder.writer import PUBLIC
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.recorder import writer_of

KEPT = Path(__file__).parent / "kept"

#: The number of records, of steps, and the range of epsilon at delta = 1e-5 of the kept recordings.
RECORDS, STEPS, EPSILON = 200, 3, (0.810, 0.812)


def record(folder: Path) -> None:
    """Record a training with events of all types."""
    import torch
    from opacus import PrivacyEngine
    from torch import nn

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 6, generator=generator)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    planted = dpspec.plant(data, kind="mislabelled", count=8, classes=2, seed=1)
    loader = torch.utils.data.DataLoader(planted, batch_size=20)
    module = nn.Linear(6, 2)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    engine = PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=1.5, max_grad_norm=1.0
    )
    run = dpspec.record(folder, model=module, optimizer=optimizer, loader=loader, engine=engine, audit=1.0)
    with run:
        for _, (inputs, targets) in zip(range(STEPS), loader, strict=False):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()
        module.state_dict()
    run.score(module, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"))
    writer = writer_of(run)
    assert writer is not None
    writer.ran_in(ScriptFacts(whole=True))


@pytest.mark.parametrize("number", range(FIRST_FORMAT, FORMAT + 1))
def test_a_kept_recording_is_read_and_judged(number: int, tmp_path: Path) -> None:
    folder = shutil.copytree(KEPT / f"format-{number}", tmp_path / "run")
    assert read_start(folder / PUBLIC)[0].format == number
    found = RunFolder.open(folder, OBSERVERS)
    *steps, end, scored = found.steps()
    assert [type(event) for event in (*steps, end, scored)] == [PublicStep] * STEPS + [Facts, Scored]
    assert [step.step for step in found.internal()] == [1, 2, 3]
    assert [state.step for state in found.states()] == [0, 3, 3]
    assert found.script == ScriptFacts(whole=True)
    assert not isinstance(found.weights, str)
    assert set(found.weights) == {"weight", "bias"}
    assert found.header.records is not None
    assert RECORDS <= found.header.records <= RECORDS + 8
    checked = dpspec.check(folder, epsilon=EPSILON[1])
    assert checked.proved
    assert EPSILON[0] <= checked.epsilon <= EPSILON[1]


if __name__ == "__main__":
    place = KEPT / f"format-{FORMAT}"
    if place.exists():
        sys.exit(f"{place} is kept: a later format has its own folder")
    record(place)
