"""Buffers may move without reading records; buffers that read records deviate."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations
from torch.nn.utils import spectral_norm as hooked_spectral_norm

import dpspec
from dpspec_recording.watching.module_values import ModuleValues

#: A value of the last batch that a script keeps outside of the model.
LAST: dict[str, Tensor] = {"mean": torch.zeros(1)}


class Averaging(nn.Module):
    """A buffer with a function of the batch."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(1))
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.copy_(self.change(self.seen, x))
        return x


NORMS: dict[str, Callable[[], nn.Module]] = {
    "parametrization": lambda: parametrizations.spectral_norm(nn.Linear(6, 8)),
    "hook": lambda: hooked_spectral_norm(nn.Linear(6, 8)),
}

READERS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)),
    "mean": lambda: nn.Sequential(Averaging(lambda seen, x: 0.9 * seen + 0.1 * x.mean()), nn.Linear(6, 8)),
    "number of records": lambda: nn.Sequential(Averaging(lambda seen, x: seen + len(x)), nn.Linear(6, 8)),
    "kept by the script": lambda: nn.Sequential(Averaging(lambda seen, _: LAST["mean"] + 0.0), nn.Linear(6, 8)),
    "a number of the script": lambda: nn.Sequential(
        Averaging(lambda seen, _: torch.full_like(seen, float(LAST["mean"]))), nn.Linear(6, 8)
    ),
    "a count of the script": lambda: nn.Sequential(Averaging(lambda seen, _: seen + 5), nn.Linear(6, 8)),
    "sign": lambda: nn.Sequential(Averaging(lambda seen, x: seen + (x.sum() > 0.0)), nn.Linear(6, 8)),
}


def stepped(layer: nn.Module, passes: int = 1, steps: int = 12) -> dict[str, list[str]]:
    """The changes of a model whose weights move after each pass."""
    torch.manual_seed(1)
    model = nn.Sequential(layer, nn.Dropout(), nn.Linear(8, 2))
    watch = ModuleValues(model, [*model.parameters()])
    model.register_forward_pre_hook(watch.moving.hook, with_kwargs=True)
    for step in range(steps):
        for _ in range(passes):
            x = torch.randn(5, 6) + 0.1
            LAST["mean"] = x.mean()
            model(x)
        state = torch.get_rng_state()
        watch.compare(audited=step % 3 == 0)
        assert torch.equal(state, torch.get_rng_state())
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.01 * torch.randn_like(p))
    return watch.changed()


@pytest.mark.parametrize("kind", NORMS)
def test_buffers_of_spectral_normalization_read_no_record(kind: str) -> None:
    changed = stepped(NORMS[kind]())
    assert changed["buffers"] == []
    assert len(changed["unread"]) == 2


@pytest.mark.parametrize("kind", NORMS)
def test_several_passes_in_a_step_show_their_number(kind: str) -> None:
    """A loop with one pass for each record shows the number of records."""
    assert len(stepped(NORMS[kind](), passes=2)["buffers"]) == 2


@pytest.mark.parametrize("kind", READERS)
def test_buffers_that_read_records_changed(kind: str) -> None:
    changed = stepped(READERS[kind]())
    assert changed["buffers"]
    assert not {name for name in changed["unread"] if not name.endswith("num_batches_tracked")}


def test_a_buffer_that_is_written_after_the_last_step_changed() -> None:
    model = nn.Sequential(NORMS["parametrization"]())
    watch = ModuleValues(model, [*model.parameters()])
    model.register_forward_pre_hook(watch.moving.hook, with_kwargs=True)
    model(torch.randn(5, 6))
    watch.compare(audited=True)
    dict(model.named_buffers())["0.parametrizations.weight.0._u"].add_(1.0)
    assert watch.changed()["buffers"] == ["0.parametrizations.weight.0._u"]


def trained(folder: Path, layer: nn.Module, reads: bool) -> CheckedRun:
    """Record a plain loop whose gradients of all records come from one pass under vmap."""
    torch.manual_seed(2)
    x, y = torch.randn(300, 6), torch.randint(0, 2, (300,))
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = [name for name, _ in model.named_parameters()]

    def loss(parameters: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, parameters, (features[None],)), label[None])

    given: dict[str, Any] = {"noise_multiplier": 1.2, "clip_norm": 1.0, "rate": 0.1, "records": 300}
    with dpspec.record(folder, model=model, optimizer=optimizer, **given) as run:
        for _ in range(25):
            drawn = (torch.rand(300) < 0.1).nonzero().squeeze(1)
            if reads:
                layer.get_buffer("parametrizations.weight.0._v").add_(0.01 * x[drawn].mean())
            parameters = {name: p.detach() for name, p in model.named_parameters()}
            gradients = vmap(grad(loss), (None, 0, 0))(parameters, x[drawn], y[drawn])
            rows = torch.cat([gradients[name].flatten(1) for name in names], dim=1)
            norms = rows.norm(dim=1)
            factors = (1.0 / norms.clamp_min(1e-9)).clamp_max(1.0)
            total = (factors[:, None] * rows).sum(0)
            noise = 1.2 * torch.randn_like(total)
            for p, part in zip(
                model.parameters(), (total + noise).split([p.numel() for p in model.parameters()]), strict=True
            ):
                p.grad = part.view_as(p) / 30.0
            optimizer.step()
            run.sampled(drawn)
            run.clipped(norms * factors)
            run.summed(total)
            run.noised(noise)
            run.stepped()
    return check_run(folder, Question(delta=1e-5, epsilon=100.0))


@pytest.mark.ci
@pytest.mark.parametrize("reads", [False, True])
def test_a_loop_with_spectral_normalization(reads: bool, tmp_path: Path) -> None:
    found = trained(tmp_path / "run", NORMS["parametrization"](), reads)
    assert found.status == (("open", "deviates") if reads else ("proved", "no-deviation-found"))
