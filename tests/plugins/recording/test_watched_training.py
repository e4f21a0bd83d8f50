"""A recording never ends the training: what it cannot observe is a warning, and a reason in its folder."""

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from support.checked_runs import CheckedRun, Question, check_run, run_page
from support.opacus_training import SECRET, Training, physical_batches
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

import dpspec
from dpspec.errors import NothingToRunError, UsageError
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.noise.noise import Noise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

X = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def checked(folder: Path) -> CheckedRun:
    return check_run(folder, Question(delta=1e-5, epsilon=100.0))


def private(loader: DataLoader[Any], seed: int | None = SECRET, **given: Any) -> tuple[Any, ...]:
    if seed is not None:
        torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    engine = given.pop("engine", None) or PrivacyEngine(accountant="rdp")
    results = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.1,
        max_grad_norm=1.0,
        **given,
    )
    return model, engine, *results


def train(model: Any, optimizer: Any, loader: Any, criterion: Any = None) -> list[torch.Tensor]:
    criterion = criterion or nn.CrossEntropyLoss()
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


class Unsized(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(list(zip(X, Y, strict=True)))


class Stream(Unsized):
    def __len__(self) -> int:  # Opacus needs it
        return 300


class Names(Sampler[str]):
    """A sampler of keys that are no integers."""

    def __len__(self) -> int:
        return 300

    def __iter__(self) -> Iterator[str]:
        return iter([f"record {number}" for number in range(300)])


class Named(TensorDataset):
    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(int(name.split()[1]))


def streamed() -> DataLoader[Any]:
    return DataLoader(Stream(), batch_size=30)


def named() -> DataLoader[Any]:
    return DataLoader(Named(X, Y), batch_size=30, sampler=Names())


@pytest.mark.ci
@pytest.mark.parametrize("loader_of", [streamed, named])
def test_datasets_and_samplers_without_indices_train_as_without_the_recorder(loader_of, tmp_path):
    ends = []
    for recorded in (False, True):
        _, engine, model, optimizer, loader = private(loader_of(), poisson_sampling=False)
        if not recorded:
            ends.append(train(model, optimizer, loader))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with dpspec.record(tmp_path / "run", model=model, optimizer=optimizer, loader=loader, engine=engine):
                ends.append(train(model, optimizer, loader))
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    if loader_of is named:
        with pytest.raises(NothingToRunError, match="the batches of the sampler are not lists of integers"):
            checked(tmp_path / "run")
    else:
        assert any("IterableDataset" in note for note in RunFolder.open(tmp_path / "run", OBSERVERS).header.notes)
        assert checked(tmp_path / "run").verdict == "open"


@pytest.mark.ci
def test_unsized_datasets_are_recorded(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Unsized(), batch_size=30)
    with dpspec.record(tmp_path / "run", model=model, optimizer=optimizer, loader=loader) as run:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            run.stepped()
    assert RunFolder.open(tmp_path / "run", OBSERVERS).header.records is None
    assert checked(tmp_path / "run").verdict == "open"


@pytest.mark.ci
def test_layers_that_the_script_freezes_end_the_recording_with_the_reason(tmp_path: Path) -> None:
    training = Training(epochs=1).build()
    with training.recorder(tmp_path / "run"):
        training.train()
        for p in training.model._module[0].parameters():
            p.requires_grad_(False)
        with pytest.warns(RuntimeWarning, match=r"trains other parameters .* \(2 tensors frozen, 0 added\)"):
            training.train()
    found = checked(tmp_path / "run")
    assert found.verdict == "open"
    page = " ".join(run_page(found, 200).split())
    assert "the recorder stopped after step 10: the optimizer trains other" in page
    assert "killed" not in page


def test_a_fault_while_the_observers_are_attached_ends_the_recording_alone(tmp_path, monkeypatch):
    without = Training().run()

    def broken(*_: Any) -> None:
        raise KeyError("a value of the script")

    monkeypatch.setattr(Noise, "start", broken)
    training = Training().build()
    recorder = training.recorder(tmp_path / "run")
    with pytest.warns(RuntimeWarning, match="ends at step 0, the training continues: KeyError"):
        recorder.__enter__()
    with contextlib.ExitStack() as block:
        block.push(recorder)
        training.train()
    assert recorder.summary()["steps"] == 0
    assert all(torch.equal(one, other) for one, other in zip(without, training.model.parameters(), strict=True))
    with pytest.raises(NothingToRunError, match=r"the recorder stopped: an error of the recorder, KeyError$"):
        checked(tmp_path / "run")


@pytest.mark.ci
def test_an_exception_of_the_training_is_no_error_of_the_recorder(tmp_path: Path) -> None:
    """The recorder reads the clip norm before Opacus does, and fails first."""
    training = Training(epochs=1).build()

    def script(training: Training) -> None:
        if len(training.engine.accountant.history) and training.engine.accountant.history[-1][2] == 4:
            training.private.max_grad_norm = None

    with pytest.warns(RuntimeWarning, match="ends at step 4"), pytest.raises(TypeError), training.recorder(tmp_path):
        training.train(each=script)
    page = " ".join(run_page(checked(tmp_path), 200).split())
    assert "TypeError ended the block in step 5, and the recorder met its cause first" in page
    assert "error of the recorder" not in page


@pytest.mark.ci
def test_a_later_exception_does_not_excuse_an_error_of_the_recorder(tmp_path: Path) -> None:
    training = Training(epochs=1).build()

    def script(training: Training) -> None:
        if (counted := training.engine.accountant.history[-1][2]) == 4:
            training.recording.guarded(lambda: {}["key"])
        if counted == 6:
            raise ValueError("of the script")

    recorder = training.recorder(tmp_path)

    def train() -> None:
        with recorder:
            training.recording = recorder._training
            training.train(each=script)

    with pytest.warns(RuntimeWarning, match="ends at step 4"), pytest.raises(ValueError, match="of the script"):
        train()
    assert "an error of the recorder, KeyError" in " ".join(run_page(checked(tmp_path), 200).split())


def test_an_exception_before_the_first_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the script"), Training().build().recorder(tmp_path):
        raise ValueError("of the script")
    with pytest.raises(NothingToRunError, match="ValueError ended the block before the first step"):
        checked(tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("physical", [None, 8])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_models_that_opacus_does_not_wrap_are_proved(mode: str, physical: int | None, tmp_path: Path) -> None:
    ends = []
    for recorded in (False, True):
        inner, engine, hooks, optimizer, *criterion, loader = private(
            DataLoader(TensorDataset(X, Y), batch_size=30),
            wrap_model=False,
            grad_sample_mode=mode,
            criterion=nn.CrossEntropyLoss(),
        )
        parts = {"optimizer": optimizer, "loader": loader, "engine": engine}
        with contextlib.ExitStack() as block:
            if recorded:
                block.enter_context(dpspec.record(tmp_path / "run", model=hooks, **parts))
            batches = block.enter_context(physical_batches(loader, optimizer, physical))
            ends.append(train(inner, optimizer, batches, *criterion))
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    assert checked(tmp_path / "run").status == ("proved", "no-deviation-found")
    if mode == "ghost":
        with pytest.raises(UsageError, match="give its first result, the GradSampleHooks"):
            dpspec.record(tmp_path / "other", model=inner, **parts)


@pytest.mark.ci
def test_the_mark_of_accelerate_on_a_prepared_model_is_no_change_of_state(tmp_path: Path) -> None:
    training = Training().build()
    with training.recorder(tmp_path / "run"):
        training.model._is_accelerate_prepared = True
        training.train()
    assert checked(tmp_path / "run").status == ("proved", "no-deviation-found")


@pytest.mark.ci
@pytest.mark.parametrize("seed", [None, SECRET])
def test_rounds_in_one_process_run_on_unless_the_script_seeds_each(seed: int | None, tmp_path: Path) -> None:
    torch.manual_seed(SECRET + 1)
    engine = PrivacyEngine(accountant="rdp")
    state = None
    for _ in range(3):
        loader = DataLoader(TensorDataset(X, Y), batch_size=30)
        inner, _, model, optimizer, loader = private(loader, seed, engine=engine)
        if state is not None:
            inner.load_state_dict(state)
        parts = {"model": model, "optimizer": optimizer, "loader": loader, "engine": engine}
        with dpspec.record(tmp_path / "run", resume=True, **parts):
            train(model, optimizer, loader)
        state = {name: value.clone() for name, value in inner.state_dict().items()}
    found = checked(tmp_path / "run")
    doubts = "".join(found.doubts)
    if seed is None:
        assert (found.verdict, doubts) == ("proved", "")
    else:
        assert found.verdict == "open"
        assert "part 2 draws its noise as earlier steps did" in doubts


def test_several_rows_of_a_record_are_counted_as_such(tmp_path: Path) -> None:
    _, engine, model, optimizer, loader = private(DataLoader(TensorDataset(X, Y), batch_size=30))
    with dpspec.record(tmp_path / "run", model=model, optimizer=optimizer, loader=loader, engine=engine):
        train(model, optimizer, ((x.repeat(5, 1), y.repeat(5)) for x, y in loader))
    (excess,) = (one for one in checked(tmp_path / "run").tests if one.test.startswith("clipped norms in excess"))
    assert excess.measured is not None
    assert excess.measured > 0


@pytest.mark.ci
def test_a_killed_training_is_open_for_one_reason(tmp_path: Path) -> None:
    training = Training(epochs=1).build()
    with training.recorder(tmp_path / "run"):
        training.train()
        shutil.copytree(tmp_path / "run", tmp_path / "killed")
    found = checked(tmp_path / "killed")
    assert found.verdict == "open"
    page = " ".join(run_page(found, 200).split())
    assert "the process was killed, failed or still runs. Continue it from a checkpoint" in page
    assert "attributes of modules" not in page
