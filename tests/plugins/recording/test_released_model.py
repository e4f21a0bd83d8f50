"""The model to be released, compared with the recording's end."""

import shutil
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.edited_logs import edit
from support.opacus_training import Training
from support.ranks import Ranked

import dpspec
from dpspec.cli.app import main
from dpspec.errors import RecordingError, UsageError
from dpspec_recording.folder.audit_facts import AuditFacts
from dpspec_recording.folder.events import Header
from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.folder.weights import TensorDigest
from dpspec_recording.folder.writer import INTERNAL, PUBLIC, RunWriter
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.released_model import digests_of_state, released_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a recording, and its ``state_dict()`` with the prefix of Opacus."""
    folder, training = tmp_path_factory.mktemp("released") / "run", Training(epochs=1)
    training.run(folder)
    return folder, training.model.state_dict()


def channel_of(checked: Any) -> Any:
    return next(one for one in checked.result.audits[0].recording.channels if one.name == "released-model")


def test_the_recorded_end_is_verified_in_every_form(trained: Any, tmp_path: Path) -> None:
    folder, state = trained
    save_file(state, tmp_path / "wrapped.safetensors")
    inner = {name.removeprefix("_module."): tensor for name, tensor in state.items()}
    torch.save(inner, tmp_path / "inner.pt")
    torch.save(inner, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    part = {f"module.{name}": inner[name] for name in list(inner)[:2]} | {"tied": inner["0.weight"]}
    for model in (tmp_path / "wrapped.safetensors", tmp_path / "inner.pt", tmp_path / "legacy.pth", state, part):
        checked = dpspec.check(folder, epsilon=50, model=model)
        assert checked.passed
        assert channel_of(checked).assumes == ("model-choice",)
        assert "at the recording's end" in checked.result.audits[0].recording.ran
    assert "released-model" in channel_of(dpspec.check(folder, epsilon=50)).assumes


def test_other_tensors_are_located(trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, state = trained
    names = list(state)
    other = dict(state)
    other[names[0]] = 0.5 * (state[names[0]] + state[names[0]].roll(1))
    other[names[1]] = state[names[1]].bfloat16()
    other["new"] = torch.ones(3)
    save_file(other, tmp_path / "other.safetensors")
    assert main(["check", str(folder), "--epsilon", "50", "--model", str(tmp_path / "other.safetensors")]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 of 5 tensors of other.safetensors differ" in printed
    for words in (f"{names[0]} (other values)", "BF16 [16] instead of F32 [16]", "new (no recorded tensor"):
        assert words in printed


def test_a_spec_names_safetensors_only(trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, state = trained
    save_file(state, folder.parent / "end.safetensors")
    torch.save(state, folder.parent / "end.pt")
    for name, code in (("end.safetensors", 0), ("end.pt", 3), ("missing.safetensors", 3)):
        (folder.parent / "spec.yaml").write_text(
            "dpspec: 1\nname: released\nmechanism: {kind: recorded}\n"
            "data: {kind: declared, records: 300, features: 6, classes: 2}\n"
            f"training: {{backend: recorded, run: {folder.name}, model: {name}}}\n"
            "threat_model: {adjacency: zero-out}\n"
            "claims:\n  - {id: one, kind: approx-dp, epsilon: 50.0, delta: 1e-5}\n"
        )
        assert main(["run", str(folder.parent / "spec.yaml"), "--report", f"json={tmp_path / 'result.json'}"]) == code
    errors = capsys.readouterr().err
    assert "dpspec check --model reads other files too" in errors
    assert "missing.safetensors: no such file" in errors


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"epoch": 3}, "the entry 'epoch' is int and must be a dense tensor"),
        ({}, "must have tensors by name"),
        (torch.ones(2), "must have tensors by name, got Tensor"),
        ({"a": torch.ones(2).to_sparse()}, "must be a dense tensor"),
        (Path("x"), "refuses it"),  # not in the list of classes that torch unpickles
    ],
)
def test_other_contents_of_torch_are_refused(content: Any, words: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "file.pt")
    with pytest.raises(UsageError, match=words):
        released_model(tmp_path / "file.pt")


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x02" + bytes(7) + b"{}", b"\x80\x04" + bytes(20)])
def test_other_files_than_safetensors_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="safetensors refuses it"):
        released_model(tmp_path / "file.safetensors")


def test_a_module_is_no_state_dict(trained: Any) -> None:
    with pytest.raises(UsageError, match=r"model must be a path or a state_dict\(\), got Linear"):
        dpspec.check(trained[0], model=torch.nn.Linear(2, 2))


def test_digests_of_files_are_those_of_torch(tmp_path: Path) -> None:
    kinds = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool)
    tensors = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.0), "empty": torch.zeros(0, 3), "turned": torch.arange(6.0).reshape(2, 3).t()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "file.safetensors")
    assert released_model(tmp_path / "file.safetensors").tensors == released_model(tensors).tensors


def test_the_recorded_tensors_are_those_of_state_dict() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model.tied = model[0]
    model.register_buffer("cache", torch.ones(1), persistent=False)
    assert digests_of_state(model) == released_model(model.state_dict()).tensors


def test_a_recording_without_digests_leaves_the_claim_open(trained: Any, tmp_path: Path) -> None:
    folder, state = trained
    copy = shutil.copytree(folder, tmp_path / "copy")
    edit(copy / PUBLIC, lambda event: event.pop("weights", None) and False)
    checked = dpspec.check(copy, epsilon=50, model=state)
    assert not checked.proved
    assert "cannot be compared: the recording has no digests of the model" in channel_of(checked).text
    assert dpspec.check(copy, epsilon=50).proved
    edit(copy / PUBLIC, lambda event: event.update(weights={"a": [1, 2, 3]}) if event["event"] == "end" else None)
    with pytest.raises(RecordingError, match=r"public\.log: event \d+ at byte \d+: Expected"):
        dpspec.check(copy, epsilon=50)


def test_a_model_of_very_many_tensors_has_no_digests(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", Header())
    facts = Facts(audits=AuditFacts(steps=0, audited=0, share=1.0), seconds=1.0).written()
    writer.end(facts, dict.fromkeys(map(str, range(100_001)), TensorDigest("F32", (1,), "00")))
    assert RunFolder.open(tmp_path / "run", ()).weights == "the model has more than 100000 tensors"


@pytest.mark.ci
def test_the_first_rank_has_the_digests(tmp_path: Path) -> None:
    def saved(training: Any, rank: int) -> None:
        training.train()
        torch.save(training.model.state_dict(), tmp_path / f"{rank}.pt")

    assert Ranked(tmp_path / "run", batch=100, epochs=1, within=saved).run() == [0, 0]
    assert isinstance(RunFolder.open(tmp_path / "run" / "rank-1", OBSERVERS).weights, str)
    assert dpspec.check(tmp_path / "run", epsilon=50, model=tmp_path / "1.pt").proved


def test_a_file_with_values_behind_a_tensor_is_refused(tmp_path: Path) -> None:
    records = torch.randn(50)
    torch.save({"bias": records[:2]}, tmp_path / "view.pt")
    with pytest.raises(UsageError, match="bias is saved with 200 bytes, and the tensors show 8: save clones"):
        released_model(tmp_path / "view.pt")
    torch.save({"bias": records[:2].clone(), "tied": records, "same": records}, tmp_path / "clones.pt")
    assert len(released_model(tmp_path / "clones.pt").tensors) == 3


def test_a_file_with_gradients_in_attributes_of_parameters_is_refused(tmp_path: Path) -> None:
    """Opacus keeps gradients of records there, and pickle writes all attributes of parameters."""
    parameter = torch.nn.Parameter(torch.randn(3))
    parameter.initialized, parameter.passes, parameter.grad_sample = True, 0, None  # type: ignore[attr-defined]
    torch.save({"bias": parameter}, tmp_path / "flags.pt")
    assert len(released_model(tmp_path / "flags.pt").tensors) == 1
    parameter.grad_sample = [torch.randn(50, 3)]  # type: ignore[attr-defined]
    torch.save({"bias": parameter}, tmp_path / "gradients.pt")
    with pytest.raises(UsageError, match="bias is saved with its attributes grad_sample, which may hold gradients"):
        released_model(tmp_path / "gradients.pt")


@pytest.mark.parametrize("name", [PUBLIC, INTERNAL])
def test_damage_of_any_byte_range_is_found(name: str, trained: Any, tmp_path: Path) -> None:
    """Each half of 32 ranges of a log is flipped."""
    folder, _ = trained
    states = len(RunFolder.open(folder, OBSERVERS).states())
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = (folder / name).read_bytes()
    ends = np.linspace(0, len(content), 33).astype(int).tolist()
    for start, end in pairwise(ends):
        middle = (start + end) // 2
        flipped = bytes(byte ^ 0x55 for byte in content[middle:end])
        (copy / name).write_bytes(content[:middle] + flipped + content[end:])
        try:
            read = RunFolder.open(copy, OBSERVERS)
            complete = any(isinstance(entry, Facts) for entry in read.steps())
            complete &= len([*read.internal()]) > 0 and len(read.states()) == states
        except (RecordingError, UsageError):
            continue
        assert not complete, f"{name}: an edit from byte {middle} to {end} is not found"


@pytest.mark.ci
@pytest.mark.parametrize("fault", ["removed", "renamed"])
def test_a_lost_folder_is_a_warning_and_a_renamed_one_is_whole(fault: str, tmp_path: Path) -> None:
    folder, training = tmp_path / "run", Training(epochs=1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with training.build().recorder(folder):
            training.train()
            shutil.rmtree(folder) if fault == "removed" else folder.rename(tmp_path / "moved")
    messages = [str(warning.message) for warning in warned if warning.category is RuntimeWarning]
    assert any("public.log" in message and "removed or renamed" in message for message in messages)
    if fault == "renamed":
        checked = dpspec.check(tmp_path / "moved", epsilon=50, model=training.model.state_dict())
        assert checked.proved


@pytest.mark.ci
def test_a_relative_folder_is_kept_when_the_directory_changes(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    training = Training(epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with training.build().recorder(Path("run")):
            monkeypatch.chdir(tmp_path / "elsewhere")
            training.train()
    assert dpspec.check(tmp_path / "run", epsilon=50, model=training.model.state_dict()).proved
