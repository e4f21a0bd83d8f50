"""A loop of one's own that says what it did; what nobody said stays unknown."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.checked_runs import Question, check_run, run_page
from torch import nn

import dpspec
from dpspec.errors import UsageError
from dpspec.recording.folder.run_folder import RunFolder
from dpspec.recording.folder.step_record import UNSEEN


def steps_of(folder):
    run = RunFolder.open(folder)
    *public, end = run.steps()
    return run.header, public, list(run.internal()), end


def model_of():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def test_what_is_said_is_what_is_recorded(tmp_path):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = torch.randn(15)
    given = {"noise_multiplier": 2.0, "clip_norm": 0.5, "rate": 0.25, "records": 20}
    with dpspec.record(tmp_path / "run", model=model, optimizer=optimizer, **given) as run:
        for _ in range(2):
            run.sampled(torch.tensor([7, 3]))
            run.sampled([11])
            run.clipped(torch.tensor([0.5, 0.25]))
            run.clipped([0.1])
            run.noised(noise.split([12, 3]))
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
            run.stepped()
        run.declare(noise_multiplier=3.0)
        run.noised(noise)
        optimizer.step()
        run.stepped()
    header, public, internal, end = steps_of(tmp_path / "run")
    assert (header.source, header.records, header.optimizer, header.scheme) == ("own-loop", 20, "SGD", "none")
    first, kept = public[0], internal[0]
    assert (first.drawn, first.rows, first.virtual, first.updates, first.batches) == (3, 3, 2, 1, 1)
    assert (first.noise_multiplier, first.clip_norm, first.deviation, first.rate) == (2.0, 0.5, 1.0, 0.25)
    assert kept.members.tolist() == [3, 7, 11]
    assert (kept.largest, kept.least) == pytest.approx((1.0, 0.2))
    assert (kept.moved, kept.outside) == (1.0, 0.0)
    assert first.noise_squares == pytest.approx(float(noise.square().sum()), rel=1e-5)
    sums = (noise[:3] + noise[12:]) / math.sqrt(2), (noise[:3] - noise[12:]) / math.sqrt(2)  # by secret signs
    along = np.abs(first.directions.astype(np.float64))
    assert np.allclose(along[3:], noise[3:12].abs(), atol=5e-3)
    assert (np.minimum(*(np.abs(along[:3] - one.abs().numpy()) for one in sums)) < 5e-3).all()
    assert (public[2].noise_multiplier, public[2].drawn, public[2].rows) == (3.0, UNSEEN, UNSEEN)
    assert end["untold"] is False


def test_what_is_not_said_is_unknown(tmp_path):
    model = model_of()
    with dpspec.record(tmp_path / "run", model=model) as run, torch.no_grad():
        model.weight += 1.0
        run.stepped()
    assert "batches not observed, drawn" in run_page(check_run(tmp_path / "run", Question(delta=1e-5)), 400)
    header, (step,), (kept,), _ = steps_of(tmp_path / "run")
    assert (step.drawn, step.rows, step.batches, step.told_steps) == (UNSEEN,) * 4
    unknown = ("noise_squares", "noise_multiplier", "clip_norm", "rate", "learning_rate", "divisor", "told_rate")
    assert all(math.isnan(getattr(step, name)) for name in unknown)
    assert kept.members is None
    assert math.isnan(kept.largest)
    assert kept.moved == 1.0
    assert header.notes == ("no loader was given: the drawn records are not observed",)


def test_moves_beside_the_optimizer_are_seen_before_and_after_it(tmp_path):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def nudge():
        with torch.no_grad():
            model.bias += 0.5

    with dpspec.record(tmp_path / "run", model=model, optimizer=optimizer) as run:
        for when in ("never", "before", "after"):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            if when == "before":
                nudge()
            optimizer.step()
            if when == "after":
                nudge()
            run.stepped()
        nudge()
    _, _, internal, end = steps_of(tmp_path / "run")
    assert [kept.outside for kept in internal] == [0.0, 1.0, 1.0]
    assert end["outside"] == 1.0


def test_updates_that_stepped_never_told_of_and_errors_are_noted_at_the_end(tmp_path):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        with dpspec.record(tmp_path / "run", model=model, optimizer=optimizer):
            for _ in range(3):
                for p in model.parameters():
                    p.grad = torch.ones_like(p)
                optimizer.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    _, (step,), _, end = steps_of(tmp_path / "run")
    assert (step.updates, end["untold"], end["error"]) == (3, True, "ZeroDivisionError")


def test_calls_that_make_no_sense_say_so(tmp_path):
    model = model_of()
    recorder = dpspec.record(tmp_path / "run", model=model)
    with pytest.raises(UsageError, match="outside"):
        recorder.stepped()
    with recorder as run:
        with pytest.raises(UsageError, match="must have 15 numbers, one for each parameter, got 4"):
            run.noised(torch.zeros(4))
        with pytest.raises(UsageError, match="got 13: bias has 3, and 1 were given for it"):
            run.summed([torch.zeros(3, 4), torch.zeros(1)])
        run.noised(torch.zeros(15))
        run.summed([torch.zeros(3, 4), torch.zeros(3)])
        for report in (run.noised, run.summed):
            with pytest.raises(UsageError, match="twice in one step"):
                report(torch.zeros(15))
    with pytest.raises(UsageError, match="records once"):
        recorder.__enter__()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier must be a number from 0"),
        ({"clip_norm": 0.0}, "clip_norm must be a number above 0"),
        ({"rate": 1.5}, "rate must be a number above 0 to 1"),
        ({"records": 0}, "records must be an integer"),
        ({"model": 3}, "model must be a torch.nn.Module, got int"),
        ({"optimizer": object()}, "optimizer must be an optimizer of torch or Opacus, got object"),
        ({"engine": object()}, "engine must be Opacus' PrivacyEngine"),
    ],
)
def test_arguments_are_checked_before_anything_is_written(given, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        dpspec.record(tmp_path / "run", **{"model": model_of(), **given})
    assert not (tmp_path / "run").exists()
