"""Device selection and full float32 precision."""

import pytest
import torch

from dpspec.contract import Observer
from dpspec.errors import UsageError
from dpspec.training.device import full_precision, resolve_device
from dpspec.training.loop.native import NativeTrainer, run_batched


def pretend(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("count", "name", "expected"),
    [(0, "cpu", "cpu"), (0, " CPU ", "cpu"), (0, "auto", "cpu"), (2, "auto", "cuda"), (2, "cuda:1", "cuda:1")],
)
def test_resolved(monkeypatch, count, name, expected):
    pretend(monkeypatch, count)
    assert resolve_device(name) == expected


@pytest.mark.parametrize(
    ("count", "name", "message"),
    [
        (0, "cuda", "finds no CUDA device"),
        (0, "cuda:0", "finds no CUDA device"),
        (2, "cuda:2", r"'cuda:2' does not exist here \(valid: cpu, cuda:0, cuda:1\)"),
        (0, "cud", "did you mean 'cuda'"),
        *((0, name, "is not a device") for name in ("metal", "", "cuda:", "cuda:x", "cuda:-1", "cpu:0:0")),
    ],
)
def test_no_such_device(monkeypatch, count, name, message):
    pretend(monkeypatch, count)
    with pytest.raises(UsageError, match=message):
        resolve_device(name)


CPU = torch.device("cpu")

#: Names in ``torch.backends`` with an ``fp32_precision``; the first covers all.
PLACES = ("", "cudnn", "mkldnn", "cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")

needs_new_settings = pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="this torch has the old settings alone"
)


def settings():
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.is_autocast_enabled("cpu"),
    )


def place_of(name):
    place = torch.backends
    for part in filter(None, name.split(".")):
        place = getattr(place, part)
    return place


def new_settings():
    return {name: place_of(name).fp32_precision for name in PLACES}


@pytest.fixture
def careless():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def setting():
    with full_precision(CPU):  # which restores all changes within it
        for name in reversed(PLACES):
            place_of(name).fp32_precision = "none"
        yield lambda name, value: setattr(place_of(name), "fp32_precision", value)


@pytest.mark.usefixtures("careless")
def test_nothing_is_rounded_inside_and_all_comes_back():
    before = settings()
    with full_precision(CPU):
        assert settings() == ("highest", False, True, False, False)
    assert settings() == before
    with pytest.raises(KeyError), full_precision(CPU):
        raise KeyError
    assert settings() == before


@needs_new_settings
@pytest.mark.parametrize("value", ["tf32", "ieee"])
@pytest.mark.parametrize("name", PLACES)
def test_the_newer_settings_allow_nothing_inside_and_come_back(setting, name, value):
    """An unset precision inherits from its parent: the unset state is restored, not the inherited value."""
    setting(name, value)
    before = new_settings()
    with full_precision(CPU), full_precision(CPU):
        assert set(new_settings().values()) == {"ieee"}
    assert new_settings() == before
    setting("", "none")
    below = {"cudnn": ("cudnn", "cuda."), "mkldnn": ()}.get(name, (name,))  # mkldnn sets the global precision
    assert new_settings() == {place: value if name and place.startswith(below) else "none" for place in PLACES}


@needs_new_settings
def test_the_old_settings_need_not_be_readable(setting):
    setting("", "tf32")
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    with full_precision(CPU):
        assert set(new_settings().values()) == {"ieee"}
    assert set(new_settings().values()) == {"tf32"}


class _Computes(Observer):
    def __init__(self):
        self.seen = []

    def released(self, step, state):
        self.seen += [state.clone(), state[None] @ state[:, None]]


@pytest.mark.parametrize("together", [True, False])
def test_a_run_is_the_same_whatever_the_process_allows(make_job, make_model, together):
    def seen():
        watchers = [_Computes() for _ in range(3)]
        jobs = [
            make_job(model=make_model("mlp", seed=seed), seed=seed, observers=(watcher,))
            for seed, watcher in enumerate(watchers)
        ]
        if together:
            run_batched(jobs)
        else:
            for job in jobs:
                NativeTrainer().train(job)
        return [tensor for watcher in watchers for tensor in watcher.seen]

    plain = seen()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = seen()
    assert all(torch.equal(one, other) for one, other in zip(plain, rounded, strict=True))
    assert {tensor.dtype for tensor in rounded} == {torch.float32}
