"""State of a model outside its parameters, which must not change without noise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import opacus
import pytest
import torch
from support import opacus_training
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training
from torch import nn

from dpspec_recording.watching.module_values import OF_OPACUS, ModuleValues

Script = Callable[[Training, Any], None]


class Extra(nn.Module):
    """A layer of the script with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Any = 0.0
        self.is_active = False
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("memory", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def recorded(folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch, **made: Any) -> CheckedRun:
    """A model with an ``Extra`` layer, trained by ``script``."""
    sequential = nn.Sequential
    monkeypatch.setattr("support.opacus_training.nn.Sequential", lambda *layers: sequential(*layers, Extra()))
    return opacus_training.recorded(folder, lambda training: script(training, training.model._module[-1]), **made)


def records(training: Training) -> torch.Tensor:
    return training.loader.dataset[0:3][0].clone()


def for_a_while(training: Training, layer: Any) -> None:
    """A buffer depends on the batch, and is restored at the end."""
    for x, y in training.loader:
        layer.scale.copy_(1.0 + 0.01 * x.mean())
        training.step(x, y)
    layer.scale.fill_(1.0)


@pytest.mark.family
@pytest.mark.parametrize(
    ("leak", "name", "level"),
    [
        (lambda t, layer: layer.scale.data.copy_(records(t)[0, :1]), "scale", "violated"),
        (for_a_while, "scale", "violated"),
        (lambda t, layer: layer.register_buffer("rows", records(t)), "rows", "violated"),
        (lambda t, layer: layer.memory.add_(records(t)[0, :1]), "memory", "open"),
        (lambda t, layer: setattr(layer, "mean", records(t).mean(0)), "mean", "open"),
        (lambda t, layer: setattr(layer, "mean", float(records(t)[0, 0])), "mean", "open"),
        (lambda t, layer: setattr(layer, "state", (records(t).mean(0), None)), "state", "open"),
        (lambda t, layer: setattr(layer, "notes", {"deep": [records(t).tolist()]}), "notes", "open"),
    ],
)
def test_state_that_depends_on_records_is_found(leak, name, level, tmp_path, monkeypatch):
    """In ``state_dict()`` they are a violation, in an attribute the claim is open unless the user assumes it."""

    def script(training: Training, layer: Any) -> None:
        training.train()
        leak(training, layer)

    found = recorded(tmp_path / "run", script, monkeypatch)
    assert (found.verdict, found.exit_code, found.channel("model-state").status) == ("open", 1, level)
    assert (found.conformance.status == "deviates") is (level == "violated")
    assert name in found.channel("model-state").text
    assumed = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=1e3, assume=("model-state",)))
    assert (assumed.verdict == "proved") is (level == "open")


def sound(training: Training, layer: Any) -> None:
    training.train()


def evaluated(training: Training, layer: Any) -> None:
    training.train()
    training.model.eval()
    for x, _ in training.loader:
        training.model(x)
    training.model.train()


def hooked(training: Training, layer: Any) -> None:
    layer.register_forward_hook(lambda *_: None)
    training.train()
    training.model.requires_grad_(True)
    training.model.state_dict()


def switched(training: Training, layer: Any) -> None:
    layer.is_active = False
    for x, y in training.loader:
        training.step(x, y)
    layer.is_active = True


@pytest.mark.family
@pytest.mark.parametrize(
    ("script", "clipping"),
    [(sound, "per_layer"), (evaluated, "flat"), (hooked, "flat"), (switched, "flat"), (sound, "ghost")],
)
def test_an_honest_training_changes_nothing_else(script, clipping, tmp_path, monkeypatch):
    found = recorded(tmp_path / "run", script, monkeypatch, clipping=clipping)
    assert (found.verdict, found.channel("model-state").status) == ("proved", "verified"), found.reason


def test_a_number_of_a_layer_that_changes_for_a_while_is_noted() -> None:
    """A loss may decide the rate of a dropout. The training mode and other switches do not count."""
    dropout = nn.Dropout(0.2)
    model = nn.Sequential(nn.Linear(4, 4), dropout, nn.LayerNorm(4))
    watch = ModuleValues(model, list(model.parameters()))
    model.eval()
    watch.compare(audited=True)
    assert watch.changed()["options"] == []
    dropout.p = 0.5
    watch.compare(audited=True)
    dropout.p = 0.2
    assert watch.changed()["options"] == ["1.p"]


@pytest.mark.family
def test_a_changed_number_of_a_layer_is_asked_about(tmp_path, monkeypatch):
    def script(training: Training, layer: Any) -> None:
        for step, (x, y) in enumerate(training.loader):
            training.model._module[0].scale_grad = step % 2
            training.step(x, y)

    found = recorded(tmp_path / "run", script, monkeypatch)
    assert found.verdict == "proved"
    assert "no record and no loss changed 0.scale_grad, which changed during" in " ".join(found.audit.recording.confirm)


UNCHANGED: dict[str, list[str]] = {
    "buffers": [],
    "state": [],
    "attributes": [],
    "rounded": [],
    "coarse": [],
    "unread": [],
    "options": [],
}


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 2)),
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda: nn.LSTM(8, 4, batch_first=True),
        lambda: nn.Sequential(nn.Embedding(10, 8), nn.MultiheadAttention(8, 2)),
    ],
)
def test_layers_of_torch_keep_no_batch(model: Callable[[], nn.Module]) -> None:
    made = model()
    watch = ModuleValues(made, list(made.parameters()))
    with torch.no_grad():
        for p in made.parameters():
            p.add_(1.0)
        if isinstance(made, nn.Sequential) and isinstance(made[0], nn.Embedding):
            x = made[0](torch.randint(0, 10, (3, 5)))
            made[1](x, x, x)
        else:
            made(torch.randn(3, 1, 8, 8) if isinstance(made, nn.Sequential) else torch.randn(3, 5, 8))
    watch.compare(audited=True)
    assert watch.changed() == UNCHANGED


def exchanged_layers(made: Any) -> None:
    made[0], made[2] = made[2], made[0]


@pytest.mark.parametrize(
    ("exchange", "names"),
    [
        (exchanged_layers, ["0.bias", "0.weight", "2.bias", "2.weight"]),
        (lambda made: made.__setitem__(2, nn.Linear(3, 3)), ["2.bias", "2.weight"]),
        (lambda made: made.append(nn.Linear(3, 1)), ["3.bias", "3.weight"]),
        (lambda made: made.__setitem__(1, nn.Tanh()), []),
    ],
)
def test_other_parameters_are_named(exchange: Callable[[Any], None], names: list[str]) -> None:
    made = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    watch = ModuleValues(made, list(made.parameters()))
    exchange(made)
    assert set(names) <= set(watch.changed()["state"] + watch.changed()["buffers"])
    assert bool(names) is bool(watch.changed()["state"])


def test_opacus_keeps_batches_under_these_names() -> None:
    sources = "".join(path.read_text() for path in Path(opacus.__file__).parent.rglob("*.py"))
    assert all(f".{name} = " in sources for name in OF_OPACUS)


def test_running_averages_are_named() -> None:
    made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    watch = ModuleValues(made, list(made.parameters()))
    made(torch.randn(5, 4))
    watch.compare(audited=False)
    assert watch.changed()["buffers"] == ["1.num_batches_tracked", "1.running_mean", "1.running_var"]


def test_values_that_torch_does_not_count_as_written_are_compared_at_audited_steps() -> None:
    """The buffer has its first value again at the end."""
    for audited in (True, False):
        made = nn.BatchNorm1d(3)
        watch = ModuleValues(made, list(made.parameters()))
        made.running_mean.data.add_(1.0)  # type: ignore[union-attr]
        watch.compare(audited=False)  # the first comparison reads each buffer
        watch = ModuleValues(made, list(made.parameters()))
        watch.compare(audited=False)
        made.running_mean.data.add_(1.0)  # type: ignore[union-attr]
        watch.compare(audited=audited)
        made.running_mean.data.sub_(1.0)  # type: ignore[union-attr]
        assert watch.changed()["buffers"] == (["running_mean"] if audited else [])
