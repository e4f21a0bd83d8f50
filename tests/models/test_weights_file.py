"""Weights from safetensors files: what fits is loaded bit by bit, and nothing else is."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import nn

from dpspec.contract import DataError
from dpspec.models import weights_file
from dpspec.models.weights_file import FromFile


class Factory:
    def __init__(self, make):
        self._make = make

    def parameters(self) -> int:
        return sum(p.numel() for p in self.build(0).parameters() if p.requires_grad)

    def build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self._make()


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def buffered() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2))
    model.register_buffer("seen", torch.tensor([3, 4]))
    return model


def written(path: Path, header: Any, body: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return path


@pytest.mark.parametrize("make", [dense, tied, buffered])
def test_every_model_starts_from_the_file(make, tmp_path: Path) -> None:
    factory, path = Factory(make), tmp_path / "w.safetensors"
    other = factory.build(9)
    state = {name: t.clone() for name, t in other.state_dict().items()}
    if "seen" in state:
        state["seen"] += 7
    save_file(state, path)
    started = FromFile(factory, path)
    assert started.parameters() == factory.parameters()
    for seed in (0, 1):
        module = started.build(seed)
        assert all(torch.equal(t, state[name]) for name, t in module.state_dict().items())
    changed = started.build(0)
    with torch.no_grad():
        next(changed.parameters()).zero_()  # training writes into its own copy
    assert all(torch.equal(t, state[name]) for name, t in started.build(0).state_dict().items())


def test_one_name_of_a_tied_parameter_is_enough_and_two_must_agree(tmp_path: Path) -> None:
    state = {name: t.clone() for name, t in Factory(tied).build(1).state_dict().items()}
    alone = {name: t for name, t in state.items() if name != "0.weight"}
    save_file(alone, tmp_path / "one.safetensors")
    module = FromFile(Factory(tied), tmp_path / "one.safetensors").build(0)
    assert module[0].weight is module[2].weight
    assert torch.equal(module[0].weight, state["2.weight"])
    save_file(state | {"2.weight": state["2.weight"] + 1}, tmp_path / "two.safetensors")
    with pytest.raises(ValueError, match=r"'0\.weight' and '2\.weight' are tied in the model but differ"):
        FromFile(Factory(tied), tmp_path / "two.safetensors")


def test_equal_bytes_are_read_into_one_copy_and_later_changes_change_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    state = Factory(dense).build(1).state_dict()
    for path in (one, two):
        save_file(state, path)
    first, second = FromFile(Factory(dense), one), FromFile(Factory(dense), two)
    assert first.digest == second.digest
    assert first._weights is second._weights
    save_file(Factory(dense).build(2).state_dict(), one)
    assert torch.equal(first.build(0)[0].weight, state["0.weight"])
    assert FromFile(Factory(dense), one).digest != first.digest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("2.bias"), "it lacks '2.bias'"),
        (lambda s: s.update({"2.bais": s.pop("2.bias")}), "the model has no '2.bais'; did you mean '2.bias'?"),
        (lambda s: s.update({"more": torch.zeros(1)}), "the model has no 'more'"),
        (lambda s: s.update({"0.weight": torch.zeros(4, 4)}), "'0.weight' is F32 [4, 4] and must be F32 [4, 3]"),
        (lambda s: s.update({"0.bias": torch.zeros(4).double()}), "'0.bias' is F64 [4] and must be F32 [4]"),
        (lambda s: s.update({f"x{i}": torch.zeros(1) for i in range(9)}), "the model has no 'x2' and 6 more"),
        (
            lambda s: s.update({"0.bias": torch.zeros(4).to(torch.float8_e4m3fn)}),
            "'0.bias' is F8_E4M3FN [4] and must be",
        ),
        (lambda s: s.clear(), "it lacks '0.weight'"),
    ],
)
def test_another_models_weights_are_refused(change, said, tmp_path) -> None:
    state = dict(Factory(dense).build(1).state_dict())
    change(state)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=re.escape(said)):
        FromFile(Factory(dense), tmp_path / "w.safetensors")


def test_a_model_that_no_file_can_hold_is_not_built(tmp_path: Path) -> None:
    class Huge(Factory):
        def parameters(self) -> int:
            return 10**12

    save_file(Factory(dense).build(1).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="the model has 1000000000000 parameters; files support at most 268435456"):
        FromFile(Huge(lambda: pytest.fail("the model was built")), tmp_path / "w.safetensors")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(value: float, tmp_path: Path) -> None:
    state = {name: t.clone() for name, t in Factory(dense).build(1).state_dict().items()}
    state["2.bias"][1] = value
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(DataError, match=r"'2\.bias' contains values that are not finite"):
        FromFile(Factory(dense), tmp_path / "w.safetensors")


FITS = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"", b""),
        (b"\x80\x04pickle", b""),
        (b"[" * 10**5, b""),
        ([1], b""),
        ({"w": 3}, b""),
        ({"w": {**FITS, "shape": [-1]}}, b"0000"),
        ({"w": {**FITS, "shape": [10**30]}}, b"0000"),
        ({"w": {**FITS, "shape": [2**30] * 16}}, b"0000"),
        ({"w": {**FITS, "data_offsets": [0, 8]}}, b"0000"),
        ({"w": {**FITS, "data_offsets": [4, 0]}}, b"0000"),
        ({"w": {**FITS, "shape": [2]}}, b"0000"),
        ({"w": FITS}, b"00000000"),
        ({"a": FITS, "b": FITS}, b"0000"),
        *(({"w": FITS}, length) for length in (2**63, 2**64 - 1, 1000)),  # longer than the file
    ],
)
def test_hostile_headers(header: Any, body: bytes | int, tmp_path: Path) -> None:
    content = (body, None) if isinstance(body, bytes) else (b"0000", body)
    with pytest.raises(DataError, match="not a readable safetensors file") as caught:
        FromFile(Factory(dense), written(tmp_path / "w.safetensors", header, *content))
    assert caught.value.key == weights_file.PLACE


def test_files_that_are_none(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "absent", "no such file"), (tmp_path, "not a regular file but a folder")):
        with pytest.raises(DataError, match=said):
            FromFile(Factory(dense), path)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(weights_file.MOST_BYTES + 1)
    with pytest.raises(DataError, match="larger than 1024 MiB"):
        FromFile(Factory(dense), large)


WHOLE = save({name: t.detach() for name, t in dense().state_dict().items()})


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.data())
def test_damaged_files_are_refused_or_hold_a_model(tmp_path_factory, edits, data) -> None:
    """Whatever single bytes say: an error that is told, or weights of the right names, shapes and types."""
    content = bytearray(WHOLE)
    for place, value in edits:
        content[place] = value
    path = tmp_path_factory.mktemp("fuzzed") / "w.safetensors"
    path.write_bytes(content[: data.draw(st.sampled_from([len(WHOLE), len(WHOLE) - 1, len(WHOLE) // 2]))])
    try:
        module = FromFile(Factory(dense), path).build(0)
    except (DataError, ValueError):
        return
    assert {n: (t.shape, t.dtype) for n, t in module.state_dict().items()} == {
        n: (t.shape, t.dtype) for n, t in dense().state_dict().items()
    }
    assert all(bool(t.isfinite().all()) for t in module.parameters())
