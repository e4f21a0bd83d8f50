"""The records of a training: observed with Opacus, reported by a custom loop."""

import functools
import math
import random
import secrets
import warnings

import numpy as np
import pytest
import torch
from support.checked_runs import Question, check_run, run_page
from support.opacus_training import RECORDS, SECRET, Training
from support.sketches import directions
from torch import nn

import dpspec
from dpspec.cli.app import main
from dpspec.errors import UsageError
from dpspec_recording.folder.events import UNSEEN, PublicStep
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.sampling.batches import Batches
from dpspec_recording.observers.update_rule.parameters import Parameters

WAYS = {
    "flat": {},
    "virtual": {"physical": 8, "optimizer": "adamw"},
    "per-layer": {"clipping": "per_layer"},
    "adaptive": {"clipping": "adaptive"},
    "ghost": {"clipping": "ghost"},
    "ghost-virtual": {"clipping": "ghost", "physical": 8, "clip": 0.3},
    "sum": {"reduction": "sum"},
    "shuffled": {"poisson": False},
    "loaded-ahead": {"workers": 1, "epochs": 1},
    "empty-batches": {"batch": 2, "epochs": 1},
}


def steps_of(folder):
    run = RunFolder.open(folder, OBSERVERS)
    *public, end = run.steps()
    internal = list(run.internal())
    assert [step.step for step in public] == [step.step for step in internal] == list(range(1, len(public) + 1))
    return run.header, public, internal, end


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that makes each training once, and returns its folder, itself and its last parameters."""
    place = tmp_path_factory.mktemp("ways")

    @functools.cache
    def train(name):
        way = Training(**WAYS[name])
        return place / name, way, way.run(place / name)

    return train


@pytest.mark.family
@pytest.mark.parametrize("name", WAYS)
def test_recording_changes_no_bit_of_the_training_and_leaves_nothing_behind(name, trained):
    folder, way, found = trained(name)
    assert all(torch.equal(a, b) for a, b in zip(Training(**WAYS[name]).run(), found, strict=True))
    replaced = {"clip_and_accumulate", "accumulate", "add_noise", "scale_grad"}
    assert not replaced & set(vars(way.private))
    assert "get_clipping_coef" not in vars(way.model)
    assert not way.private.original_optimizer._optimizer_step_pre_hooks
    assert "iterate" not in type(way.loader.batch_sampler).__iter__.__qualname__
    header, public, internal, _ = steps_of(folder)
    assert (len(public) >= 10, header.source) == (True, "opacus")
    assert {kept.outside for kept in internal} == {0.0}


@pytest.mark.unrepeated
def test_the_path_of_the_readme_with_the_system_s_random_numbers(tmp_path, capsys):
    """Record and check as the README does, with no part of the product replaced: other steps are audited each time.

    Its false-alarm rate is that of ``dpspec check``, 1e-9 for each test of the recording.
    """
    assert random.SystemRandom.__module__ == "random"
    assert secrets.randbits.__self__.__class__ is random.SystemRandom
    training = Training().build()
    parts = {"model": training.model, "optimizer": training.private, "loader": training.loader}
    with dpspec.record(tmp_path / "run", engine=training.engine, **parts):
        training.train()
    command = ["check", str(tmp_path / "run"), "--epsilon", "8", "--delta", "1e-5", "--group-size", "1,2"]
    assert main(command) == 0
    assert capsys.readouterr().out.split()[0] == "PROVED"


def test_norms_noise_and_batches_are_those_of_the_training(tmp_path):
    """The oracle: per-sample gradients clipped once more by the definition, the noise drawn by an equal generator."""
    way, seen = Training(noise=0.7, clip=0.5, epochs=1), []
    way.build()
    other = torch.Generator().manual_seed(SECRET + way.seed + 1)
    original = way.private.clip_and_accumulate

    def noticed():
        rows = torch.cat([p.grad_sample.flatten(1) for p in way.private.params], dim=1).double()
        lengths = rows.norm(dim=1)
        clipped = rows * (0.5 / (lengths + 1e-6)).clamp(max=1.0)[:, None]
        noise = [torch.normal(0.0, 0.35, size=p.shape, generator=other).flatten() for p in way.private.params]
        seen.append((clipped, torch.cat(noise)))
        original()

    way.private.clip_and_accumulate = noticed
    with way.recorder(tmp_path / "run") as run:
        sketch = run._training._training.sketch
        way.train()
    header, public, internal, _ = steps_of(tmp_path / "run")
    sizes = [size for _, size in header.layers]
    along = directions(sketch, sizes)
    assert len(public) == len(seen) == 10
    for step, kept, (clipped, noise) in zip(public, internal, seen, strict=True):
        norms = clipped.norm(dim=1)
        assert (step.rows, step.drawn, len(kept.members)) == (len(clipped),) * 3
        assert math.isclose(kept.largest, float(norms.max()) / 0.5, rel_tol=1e-5)
        assert math.isclose(kept.middle, float(norms.quantile(0.5)) / 0.5, rel_tol=1e-5)
        assert math.isclose(kept.sum_norm, float(clipped.sum(0).norm()) / 0.5, rel_tol=1e-4)
        squares = [float(part.double().square().sum()) for part in noise.split(sizes)]
        assert np.allclose(step.layers, squares, rtol=1e-3)
        assert math.isclose(step.noise_squares, sum(squares), rel_tol=1e-3)
        assert np.allclose(step.directions, (along @ noise.double()) / 0.35, atol=5e-3)
        assert step.deviation == pytest.approx(0.35)
        assert (step.divisor, step.updates) == (30.0, 1)
        assert step.measured_divisor == pytest.approx(30.0, rel=1e-4)
        assert (step.told_noise, step.told_rate, step.told_steps) == (0.7, 0.1, step.step)


@pytest.mark.ci
def test_who_was_drawn_is_who_the_sampler_drew(trained):
    _, public, internal, end = steps_of(trained("virtual")[0])
    assert all(step.drawn == len(kept.members) == step.rows for step, kept in zip(public, internal, strict=True))
    assert {step.batches for step in public} == {1}
    assert end.of(Batches).unused == 0
    assert len(public) == 20
    counts = np.bincount(np.concatenate([kept.members for kept in internal]), minlength=RECORDS)
    assert 0.8 < counts.mean() / 2.0 < 1.2
    assert max(len(set(kept.members.tolist())) - len(kept.members) for kept in internal) == 0


@pytest.mark.ci
def test_adaptive_clipping_shows_the_noise_that_it_really_adds(trained):
    header, public, *_ = steps_of(trained("adaptive")[0])
    adjusted = (1.1**-2 - 6.0**-2) ** -0.5
    assert header.clipping == "adaptive"
    assert all(step.deviation == pytest.approx(adjusted * step.clip_norm) for step in public)
    assert len({step.clip_norm for step in public}) > 5
    total = sum(step.noise_squares / step.deviation**2 for step in public) / header.parameters / len(public)
    assert 0.9 < total < 1.1


@pytest.mark.ci
def test_ghost_clipping_has_counts_and_norms(trained):
    header, public, internal, _ = steps_of(trained("ghost-virtual")[0])
    assert header.clipping == "ghost"
    assert all(step.rows == step.drawn for step in public)
    assert all(kept.lower <= kept.largest == pytest.approx(1.0, abs=1e-4) for kept in internal)
    assert all(kept.sum_norm <= step.rows for step, kept in zip(public, internal, strict=True))


@pytest.mark.ci
def test_empty_batches_are_steps(trained):
    _, public, internal, _ = steps_of(trained("empty-batches")[0])
    empty = [(step, kept) for step, kept in zip(public, internal, strict=True) if step.rows == 0]
    assert (len(public), len(empty) > 5) == (RECORDS // 2, True)
    assert all(step.drawn == 0 and step.noise_squares > 0.0 for step, _ in empty)
    assert {float(kept.largest) for _, kept in empty if not math.isnan(kept.largest)} == {0.0}


@pytest.mark.ci
def test_accumulation_over_batches_takes_all_of_them(tmp_path):
    way = Training(poisson=False, epochs=1).build()
    with way.recorder(tmp_path / "run"):
        for number, (x, y) in enumerate(way.loader, start=1):
            way.criterion(way.model(x), y).backward()
            if number % 5 == 0:
                way.private.step()
                way.private.zero_grad()
    header, public, internal, _ = steps_of(tmp_path / "run")
    assert header.scheme == "shuffled"
    assert [(step.drawn, step.rows, step.batches) for step in public] == [(150, 150, 5)] * 2
    assert all(step.divisor == 150.0 for step in public)
    assert all(kept.largest == pytest.approx(1.0, abs=1e-4) or kept.largest < 1.0 for kept in internal)


@pytest.mark.ci
def test_batches_that_were_loaded_ahead_and_never_used_are_counted(tmp_path):
    way = Training(workers=1, epochs=2).build()
    with way.recorder(tmp_path / "run"):
        for _ in range(2):
            for number, (x, y) in enumerate(way.loader):
                way.step(x, y)
                if number == 3:
                    break
    _, public, _, end = steps_of(tmp_path / "run")
    assert len(public) == 8
    assert all(step.drawn == step.rows for step in public)
    assert end.of(Batches).unused == 2 * 2


def test_a_fault_of_the_recorder_ends_the_recording_and_never_the_training(tmp_path, monkeypatch):
    way = Training()
    without = way.run()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        way.build()
        recorder = way.recorder(tmp_path / "run")
        with recorder:
            writer = recorder._training.writer

            def full(*steps):
                if writer.steps == 1:
                    raise OSError(28, "No space left on device")
                type(writer).write(writer, *steps)

            monkeypatch.setattr(writer, "write", full)
            way.train()
    assert [str(one.message) for one in warned if "dpspec.record" in str(one.message)] == [
        f"dpspec.record: the recording into {tmp_path / 'run'} ends at step 1, the training continues: "
        "OSError: [Errno 28] No space left on device"
    ]
    assert all(torch.equal(a, b) for a, b in zip(without, way.model.parameters(), strict=True))
    found = list(RunFolder.open(tmp_path / "run", OBSERVERS).steps())
    assert [type(step) for step in found] == [PublicStep]
    assert found[0].rows != UNSEEN


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
    header, public, internal, _ = steps_of(tmp_path / "run")
    assert (header.source, header.records, header.optimizer, header.scheme) == ("own-loop", 20, "SGD", "none")
    first, kept = public[0], internal[0]
    assert (first.drawn, first.rows, first.updates, first.batches) == (3, 3, 1, 1)
    assert (first.noise_multiplier, first.clip_norm, first.deviation, first.rate) == (2.0, 0.5, 1.0, 0.25)
    assert kept.members.tolist() == [3, 7, 11]
    assert kept.largest == pytest.approx(1.0)
    assert kept.outside == 0.0
    assert first.noise_squares == pytest.approx(float(noise.square().sum()), rel=1e-5)
    sums = (noise[:3] + noise[12:]) / math.sqrt(2), (noise[:3] - noise[12:]) / math.sqrt(2)  # by secret signs
    along = np.abs(first.directions.astype(np.float64))
    assert np.allclose(along[3:], noise[3:12].abs(), atol=5e-3)
    assert (np.minimum(*(np.abs(along[:3] - one.abs().numpy()) for one in sums)) < 5e-3).all()
    assert (public[2].noise_multiplier, public[2].drawn, public[2].rows) == (3.0, UNSEEN, UNSEEN)


def test_what_is_not_said_is_unknown(tmp_path):
    model = model_of()
    with dpspec.record(tmp_path / "run", model=model) as run, torch.no_grad():
        model.weight += 1.0
        run.stepped()
    assert "unobserved batches" in run_page(check_run(tmp_path / "run", Question(delta=1e-5)), 400, every=True)
    header, (step,), (kept,), _ = steps_of(tmp_path / "run")
    assert (step.drawn, step.rows, step.batches, step.told_steps) == (UNSEEN,) * 4
    unknown = ("noise_squares", "noise_multiplier", "clip_norm", "rate", "learning_rate", "divisor", "told_rate")
    assert all(math.isnan(getattr(step, name)) for name in unknown)
    assert kept.members is None
    assert math.isnan(kept.largest)
    assert header.no_loader
    section = check_run(tmp_path / "run", Question(delta=1e-5)).audit.recording
    (accountant,) = (group for group in section.groups if group.title == "The script's accountant")
    unseen = [text for text in accountant.sentences if text.startswith("not recognized: ")]
    assert unseen == ["not recognized: no loader was given: the drawn records are not observed"]


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
    assert end.of(Parameters).outside == 1.0


def test_unreported_updates_and_errors_are_noted_at_the_end(tmp_path):
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
    assert (step.updates, end.error) == (3, "ZeroDivisionError")


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
        with pytest.raises(UsageError, match="noise must have real numbers"):
            run.noised(torch.zeros(15, dtype=torch.complex64))
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
