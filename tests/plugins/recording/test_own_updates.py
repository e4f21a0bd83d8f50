"""Classes of optimizers that a script makes itself: what their steps read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import Question, check_run, run_page
from support.opacus_training import Training
from torch.nn.functional import cross_entropy

from dpspec_recording.observers.update_rule.updates import WITH_RECORDS, Updates

#: What a step may read: of the batch, as the script left it.
seen: dict[str, Any] = {}


class Own(torch.optim.Optimizer):
    """Calls ``update`` for each parameter."""

    def __init__(self, params: Any, update: Callable[..., None]) -> None:
        super().__init__(params, {"lr": 0.05, "betas": (0.9, 0.99)})
        self._update, self.memory, self.steps = update, dict[int, list[torch.Tensor]](), 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                self._update(self, p, group, self.state[p])


def lion(own: Own, p: Any, group: Any, state: Any) -> None:
    average = state.setdefault("average", torch.zeros_like(p))
    p.add_(average.lerp(p.grad, 1.0 - group["betas"][0]).sign_(), alpha=-0.1 * group["lr"])
    average.lerp_(p.grad, 1.0 - group["betas"][1])


def lamb(own: Own, p: Any, group: Any, state: Any) -> None:
    trust = p.norm().item() / max(p.grad.norm().item(), 1e-6)  # numbers of what is released
    p.add_(p.grad, alpha=-group["lr"] * min(trust, 10.0))


def bias_corrected(own: Own, p: Any, group: Any, state: Any) -> None:
    average = state.setdefault("average", torch.zeros_like(p))
    average.lerp_(p.grad, 0.1)
    p.sub_(group["lr"] * average / (1.0 - 0.9**own.steps))


def remembered(own: Own, p: Any, group: Any, state: Any) -> None:
    kept = own.memory.setdefault(id(p), [])  # outside of the state
    kept.append(p.grad.clone())
    p.sub_(group["lr"] * torch.stack(kept[-3:]).mean(0))


def random(own: Own, p: Any, group: Any, state: Any) -> None:
    p.sub_(group["lr"] * p.grad * torch.bernoulli(torch.full_like(p, 0.5)))


def masked(own: Own, p: Any, group: Any, state: Any) -> None:
    p.sub_(group["lr"] * p.grad * (seen["x"].mean() > 0.0))


def by_loss(own: Own, p: Any, group: Any, state: Any) -> None:
    p.add_(p.grad, alpha=-group["lr"] * seen["loss"].item())


def by_earlier_loss(own: Own, p: Any, group: Any, state: Any) -> None:
    p.add_(p.grad, alpha=-group["lr"] / seen["number"])


def summed(own: Own, p: Any, group: Any, state: Any) -> None:
    square = state.setdefault("square", torch.zeros_like(p))
    square.lerp_((p.summed_grad / 30) ** 2, 0.01)
    p.addcdiv_(p.grad, square.sqrt() + 1e-3, value=-0.01 * group["lr"])


def searched(own: Own, p: Any, group: Any, state: Any) -> None:
    before, start = p.clone(), seen["closure"]()
    p.sub_(group["lr"] * p.grad)
    if seen["closure"]() > start:
        p.copy_(before)


def assigned(own: Own, p: Any, group: Any, state: Any) -> None:
    p.data = p.data - group["lr"] * p.grad


class OwnTraining(Training):
    """Trains with an own class of optimizer."""

    update: Callable[..., None]

    def make_private(self, model: Any, optimizer: Any, loader: Any, *given: Any, **named: Any) -> None:
        super().make_private(model, Own(model.parameters(), self.update), loader, *given, **named)

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        inner = self.model._module
        seen.update(x=x, loss=loss, number=loss.item(), closure=lambda: cross_entropy(inner(x), y))
        self.private.step()


def checked(folder: Path, update: Callable[..., None], **options: Any) -> Any:
    training = OwnTraining(**{"epochs": 1, **options})
    training.update = update
    training.run(folder)
    return check_run(folder, Question(delta=1e-5, epsilon=100.0, accept=("not-replayed",)))


CI = pytest.mark.ci


@pytest.mark.parametrize(
    ("update", "options"),
    [
        (lion, {}),
        *(pytest.param(update, {}, marks=CI) for update in (lamb, bias_corrected, remembered, random)),
        pytest.param(lamb, {"clipping": "ghost"}, marks=CI),
        pytest.param(lamb, {"physical": 8}, marks=CI),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_an_own_class_that_reads_no_record_is_proved_and_asked_about(update, options, tmp_path: Path) -> None:
    found = checked(tmp_path / "run", update, **options)
    assert found.status == ("proved", "no-deviation-found")
    facts = found.run.fact(Updates)
    assert (facts.moved, facts.recomputed) == (0, 0)
    assert facts.replayed >= 3
    assert "Own reads the noisy gradients and its own state only" in " ".join(run_page(found, 300).split())


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_an_update_outside_of_the_trace_is_not_counted(tmp_path: Path) -> None:
    found = checked(tmp_path / "run", assigned)
    assert found.run.fact(Updates).replayed == 0
    assert "(no update was replayed)" in " ".join(run_page(found, 300).split())


@pytest.mark.parametrize(
    ("update", "options"),
    [
        (by_loss, {}),
        *(pytest.param(update, {}, marks=CI) for update in (masked, by_earlier_loss, summed, searched)),
        pytest.param(summed, {"physical": 8}, marks=CI),
        pytest.param(masked, {"clipping": "ghost"}, marks=CI),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_an_own_class_that_reads_records_deviates(update, options, tmp_path: Path) -> None:
    found = checked(tmp_path / "run", update, **options)
    assert found.status == ("open", "deviates")
    assert [check.test for check in found.tests if check.p_value == 0.0] == [WITH_RECORDS.title]
