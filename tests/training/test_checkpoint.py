"""A stopped run resumes at its last checkpoint, and ends with the same bits as an uninterrupted run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.phases import phase_of

from dpspec.contract import Cancelled, FrozenMap, Observer, Resumable
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.gradients import flat_model
from dpspec.training.loop import checkpoint, native
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.logs import NoiseLog, NormLog, SamplingLog
from dpspec.training.measure.scores import ProjectionObserver

STEPS = 20
DIRECTIONS = SignBlocks(63, 20, seed=0)


class Counter(Observer):
    def __init__(self, deadly=None):
        self.steps, self.deadly = [], deadly

    def released(self, step, state):
        self.steps.append(step)
        if step == self.deadly:
            raise MemoryError

    def state(self):
        return {}

    def restore(self, state):
        pass


class Forgetful(Observer):
    """An observer with state that it cannot save."""


def watched(job, *further):
    canaries = CanaryGroups.planted(DIRECTIONS, torch.arange(20) % 2 == 0, 1, 10.0)
    job = replace(job, canaries=canaries)
    projections = ProjectionObserver(job, DIRECTIONS)
    seen = projections, SamplingLog(job.phases, 60), NoiseLog(), NormLog()
    return replace(job, observers=(*seen, *further)), seen


def outcome(job, seen):
    projections, *logs = seen
    parts = [projections.projections, projections.squares, projections.spread, projections.rounding]
    states = [log.state() for log in logs]
    rows = [state[name] for state in states for name in sorted(state)]
    return [flat_model.flatten(job.model).numpy(), *(p.numpy() for p in parts), *rows]


def equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


PHASES = phase_of("shuffled", 13, 1.0, 0.5, batch_size=17), phase_of("poisson", 7, 2.0, 0.7, rate=0.3)
ALLOCATED = phase_of("random-allocation", 15, 1.0, 0.5, epoch_steps=5, batches_per_epoch=2)
RUNS = {
    "allocated": ({"schedule": {"kind": "cosine"}}, (ALLOCATED, phase_of("poisson", 5, 2.0, 0.7, rate=0.3))),
    "decay": ({"optimizer": {"kind": "momentum", "weight_decay": 0.1}}, PHASES),
}


def made(make_job, name, **changes):
    options, phases = RUNS[name]
    options = FrozenMap({"learning_rate": 0.5, "reduction": "mean", **options})
    return make_job(options=options, phases=phases, **changes)


@pytest.mark.family
@pytest.mark.parametrize("name", RUNS)
def test_killed_and_run_again(make_job, tmp_path, name):
    """Before anything was saved, at a step that is saved, within either phase, and at the end."""
    whole, seen = watched(made(make_job, name), Counter())
    NativeTrainer().train(whole)
    expected = outcome(whole, seen)
    for deadly in (1, 12, 14, 20) if name == "allocated" else (3, 14, 20):
        killed_and_run_again(make_job, tmp_path / str(deadly), name, deadly, expected)


def killed_and_run_again(make_job, folder, name, deadly, expected):
    where = Resumable(folder=folder, steps=3)
    job, _ = watched(made(make_job, name, resumable=where), Counter(deadly))
    with pytest.raises(MemoryError):
        NativeTrainer().train(job)

    counter = Counter()
    job, seen = watched(made(make_job, name, resumable=where), counter)
    NativeTrainer().train(job)
    assert equal(outcome(job, seen), expected)
    saved = (deadly - 1) // 3 * 3
    assert counter.steps == list(range(saved + 1 if saved else 0, STEPS + 1))


def test_a_stopped_run_loses_nothing(make_job, tmp_path):
    resumed: list[tuple[int, int]] = []
    where, done = Resumable(folder=tmp_path, seconds=1e9, resumed=lambda *at: resumed.append(at)), []
    progress = {"progress": lambda step, total: done.append(step), "cancelled": lambda: len(done) >= 5}
    with pytest.raises(Cancelled):
        NativeTrainer().train(make_job(steps=STEPS, resumable=where, **progress))
    other = make_job(steps=STEPS, resumable=where)
    NativeTrainer().train(other)
    assert (done, resumed) == ([1, 2, 3, 4, 5], [(5, STEPS)])
    plain = make_job(steps=STEPS)
    NativeTrainer().train(plain)
    assert torch.equal(flat_model.flatten(other.model), flat_model.flatten(plain.model))


def test_a_run_that_has_ended_is_not_run_again(make_job, tmp_path):
    """A trial trains several times before it is stored; what ended before it was killed is not lost."""
    where = Resumable(folder=tmp_path, steps=6)
    first, seen = watched(make_job(steps=STEPS, resumable=where), Counter())
    NativeTrainer().train(first)
    counter = Counter()
    again, seen_again = watched(make_job(steps=STEPS, resumable=where), counter)
    NativeTrainer().train(again)
    assert counter.steps == []
    assert equal(outcome(again, seen_again), outcome(first, seen))


def test_short_runs_and_those_that_are_not_asked_save_nothing(make_job, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.Checkpoint, "save", lambda *given: pytest.fail("a memory was collected"))
    monkeypatch.setattr(native, "job_digest", lambda *job: pytest.fail("a job was digested"))
    for where in (None, Resumable(folder=tmp_path / "run")):
        NativeTrainer().train(make_job(resumable=where))
    assert not (tmp_path / "run").exists()


@pytest.mark.family
@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 12},
        {"noise_multiplier": 1.5},
        {"expected_batch_size": 11.0},
        {"options": FrozenMap({"learning_rate": 0.4, "reduction": "mean"})},
        {"y": np.zeros(40, dtype=np.int64)},
        {"x": np.zeros((40, 6), dtype=np.float32)},
        {"steps": STEPS + 1},
        {"observers": (NoiseLog(),)},
    ],
)
def test_the_state_of_another_job_is_ignored(make_job, make_model, tmp_path, changes):
    where, counter = Resumable(folder=tmp_path, steps=5), Counter()
    NativeTrainer().train(make_job(steps=STEPS, resumable=where, observers=(Counter(),)))
    changes = {"steps": STEPS, **changes}
    NativeTrainer().train(
        make_job(resumable=where, **{**changes, "observers": (*changes.get("observers", ()), counter)})
    )
    assert counter.steps == list(range(changes["steps"] + 1))
    other = Counter()
    NativeTrainer().train(make_job(steps=STEPS, resumable=where, observers=(other,), model=make_model("mlp", seed=9)))
    assert other.steps == list(range(STEPS + 1))


def spoil_by_flipping(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def rewritten(*, honest=False, **changes):
    """Replace arrays of the file; ``honest``: also the digest of its content."""

    def spoil(path):
        with np.load(path) as stored:
            kept = {name: stored[name] for name in stored.files} | changes
        if honest:
            del kept["digest"]
            kept["digest"] = np.array(checkpoint._content(kept))
        with path.open("wb") as out:
            np.savez(out, **kept)

    return spoil


def spoil_by_calling_it_packed(path):
    """An unknown way of compression, which the archive's reader does not answer with an error of archives."""
    data = path.read_bytes()
    at = data.rindex(b"PK\x01\x02") + 10
    path.write_bytes(data[:at] + b"\x63" + data[at + 1 :])


@pytest.mark.family
@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-200]),
        spoil_by_flipping,
        rewritten(state=np.array([{"not": "an array"}], dtype=object)),
        rewritten(identity=np.array("0" * 64), honest=True),
        rewritten(state=np.ones(63, dtype=np.float32)),
        spoil_by_calling_it_packed,
        lambda path: path.write_text(""),
    ],
)
def test_a_file_that_cannot_be_believed_counts_as_absent(make_job, tmp_path, spoil):
    where = Resumable(folder=tmp_path, steps=5)
    counters, finals = [Counter(), Counter()], []
    for counter in counters:
        job = make_job(steps=STEPS, resumable=where, observers=(counter,))
        NativeTrainer().train(job)
        finals.append(flat_model.flatten(job.model))
        (path,) = tmp_path.glob("*")
        spoil(path)
    assert counters[1].steps == list(range(STEPS + 1))
    assert torch.equal(*finals)


def test_an_observer_without_saved_state_restarts_the_run(make_job, tmp_path):
    where = Resumable(folder=tmp_path, steps=1)
    with pytest.raises(MemoryError):
        NativeTrainer().train(make_job(resumable=where, observers=(Counter(3), Forgetful())))
    assert list(tmp_path.iterdir()) == []
    counter = Counter()
    NativeTrainer().train(make_job(resumable=where, observers=(counter, Forgetful())))
    assert counter.steps == [0, 1, 2, 3, 4, 5]
    with pytest.raises(TypeError, match="Forgetful cannot be restored"):
        Forgetful().restore({})


def test_a_folder_that_cannot_be_written_to_stops_nothing(make_job, tmp_path):
    (tmp_path / "file").write_text("")
    job = make_job(resumable=Resumable(folder=tmp_path / "file" / "run", steps=1))
    NativeTrainer().train(job)
    plain = make_job()
    NativeTrainer().train(plain)
    assert torch.equal(flat_model.flatten(job.model), flat_model.flatten(plain.model))


def test_time_decides_where_no_steps_are_given(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    made = checkpoint.Checkpoint(Resumable(folder=tmp_path, seconds=6.0), lambda: "0" * 64)
    saved = []
    for step in range(1, STEPS + 1):
        now[0] = float(step)
        if made.due(step, STEPS):
            made.save(step, torch.ones(3), {})
            saved.append(step)
    assert saved == [6, 12, 18, 20]
