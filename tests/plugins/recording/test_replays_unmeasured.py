"""Steps that no replay measured leave the sensitivity open, with the reason; a person may accept it by name."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import CheckedRun, checked, run_page
from support.opacus_training import Training
from support.public_mistakes.parts import OwnLoop
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, one_hot

import dpspec
from dpspec.errors import SpecError
from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.outcomes.conditions import NOT_REPLAYED

pytestmark = pytest.mark.filterwarnings("ignore")


def words(found: CheckedRun) -> str:
    return " ".join(run_page(found, 80).split())


class OwnGradients(Training):
    """The script computes gradients of records itself, right or as the mean of the batch for each record."""

    is_mixed = False

    def make_private(self, model: Any, optimizer: Any, loader: Any, mode: str = "no_op", **given: Any) -> None:
        super().make_private(model, optimizer, loader, "no_op", **given)

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        inner = self.model._module
        values = {name: p.detach() for name, p in inner.named_parameters()}
        if not len(x):
            rows = {name: torch.zeros(0, *p.shape) for name, p in values.items()}
        else:

            def loss(p: Any, a: Any, b: Any) -> Any:
                return cross_entropy(functional_call(inner, p, (a[None],)), b[None])

            rows = vmap(grad(loss), in_dims=(None, 0, 0))(values, x, y)
        for name, p in inner.named_parameters():
            row = rows[name].mean(0, keepdim=True).expand_as(rows[name]) if self.is_mixed else rows[name]
            p.grad_sample = row.clone()
        self.private.step()


@pytest.fixture(scope="module", params=[False, True], ids=["right", "mixed"])
def own_gradients(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, training = tmp_path_factory.mktemp("own") / "run", OwnGradients(epochs=1)
    training.is_mixed = request.param
    training.build()
    with training.recorder(folder):
        training.train()
    return folder


def test_gradients_without_a_pass_of_the_private_model_leave_the_claim_open(own_gradients: Path) -> None:
    found = checked(own_gradients, epsilon=100.0)
    assert found.verdict == "open"
    assert found.exit_code == 1
    assert found.channel("sensitivity").status == "open"
    assert "without a forward pass of the private model" in found.channel("sensitivity").reason
    assert f"--accept {NOT_REPLAYED}" in words(found)
    assert "0 replayed" in words(found)


def test_a_person_may_accept_it_and_the_headline_names_it(own_gradients: Path) -> None:
    found = checked(own_gradients, epsilon=100.0, accept=(NOT_REPLAYED,))
    assert found.verdict == "proved"
    assert found.exit_code == 0
    assert words(found).startswith(f"PROVED, accepting {NOT_REPLAYED} ")
    assert f"accepted caution {NOT_REPLAYED}: No step was replayed" in words(found)
    assert NOT_REPLAYED in found.channel("sensitivity").assumes
    assert words(checked(own_gradients, epsilon=100.0, assume=(NOT_REPLAYED,))).startswith(
        f"PROVED, assuming {NOT_REPLAYED} "
    )
    for option in ("select", "ignore"):
        with pytest.raises(SpecError, match=NOT_REPLAYED):
            checked(own_gradients, epsilon=100.0, **{option: (NOT_REPLAYED,)})


def test_an_acceptance_that_no_step_needs_is_not_named(tmp_path: Path) -> None:
    folder, training = tmp_path / "run", Training(epochs=1).build()
    with training.recorder(folder):
        training.train()
    found = checked(folder, epsilon=100.0, accept=(NOT_REPLAYED,))
    assert found.verdict == "proved"
    assert NOT_REPLAYED not in words(found)
    assert "replayed with other float32 (B, 6) and int64 (B,)" in words(found)


def one_factor(loop: OwnLoop, run: Any) -> None:
    """One factor of all records, which the loop reads in Python, and computes by a function that no replay knows."""
    drawn = loop.poisson()
    rows = loop.rows(drawn)
    norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
    factor = math.tanh(loop.clip / (norms.norm().item() + 1e-6))
    loop.step(run, drawn, norms * factor, [factor * row.sum(0) for row in rows], loop.noise())


def plain(loop: OwnLoop, run: Any) -> None:
    drawn = loop.poisson()
    loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())


def trained(folder: Path, steps: list[Callable[[OwnLoop, Any], None]]) -> CheckedRun:
    loop = OwnLoop()
    with loop.recorder(folder) as run:
        for step in steps:
            step(loop, run)
    return checked(folder, epsilon=1000.0)


def test_a_number_read_between_norms_and_factor_leaves_the_claim_open(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", [one_factor] * 4)
    assert found.verdict == "open"
    assert "no step was replayed" in found.assumption(NOT_REPLAYED).text
    assert "test_replays_unmeasured.py:" in found.assumption(NOT_REPLAYED).text
    assert "read numbers for logs after the step" in found.assumption(NOT_REPLAYED).text


@pytest.mark.ci
def test_a_kind_of_step_that_begins_late_is_named_by_its_calls(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", [plain] * 4 + [one_factor] * 8)
    assert found.run.fact(Replays).replayed >= 2.0
    assert found.verdict == "open"
    assert "no step of some kinds was replayed" in found.assumption(NOT_REPLAYED).text
    assert "item" in found.assumption(NOT_REPLAYED).text


def picked(pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[OwnLoop, Any], None]:
    """Features of each record are picked by its number, and centered by the batch."""

    def step(loop: OwnLoop, run: Any) -> None:
        drawn = loop.poisson()
        x = pick(loop.x, drawn)
        values = {name: p.detach() for name, p in loop.model.named_parameters()}
        rows = list(loop._rows(values, x - x.mean(0), loop.y[drawn]).values())
        loop.step(run, drawn, *loop.clipped(rows), loop.noise())

    return step


def test_rows_of_an_embedding_table_by_record_number_are_replaced(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", [picked(lambda x, drawn: nn.functional.embedding(drawn, x))] * 3)
    assert found.conformance.status == "deviates"
    assert "float32" in " ".join(found.run.fact(Replays).replaced)


def test_rows_that_another_operation_picks_leave_the_claim_open(tmp_path: Path) -> None:
    def gather(x: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        return x.gather(0, drawn[:, None].expand(-1, x.shape[1]))

    found = trained(tmp_path / "run", [picked(gather)] * 3)
    assert found.verdict == "open"
    assert "a row for each drawn record that no replay replaces" in found.channel("sensitivity").reason


def tied(product: bool, weight: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Clipped norms and sum of a model with tied embeddings. product: whether norms have the product of both uses."""
    length = x.shape[1]
    hidden = weight[x].mean(1)
    errors = (hidden @ weight.T).softmax(1) - one_hot(y, len(weight))
    outer = torch.einsum("ij,ik->ijk", errors, hidden)
    inner = torch.einsum("ij,ik->ijk", one_hot(x, len(weight)).sum(1) / length, errors @ weight)
    squares = outer.square().sum((1, 2)) + inner.square().sum((1, 2))
    if product:
        squares = (outer + inner).square().sum((1, 2))
    factors = (1.0 / squares.clamp_min(1e-12).sqrt()).clamp_max(1.0)
    return squares.sqrt() * factors, torch.einsum("i,ijk->jk", factors, outer + inner)


@pytest.mark.parametrize("product", [True, False])
def test_tokens_that_pick_rows_of_the_model_are_replaced(product: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    x = torch.stack([torch.randperm(60)[:5] for _ in range(300)])
    y = torch.randint(60, (300,))
    model, rate = nn.Embedding(60, 16), 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    meant = {"noise_multiplier": 1.0, "clip_norm": 1.0, "rate": rate, "records": 300}
    with dpspec.record(tmp_path / "run", model=model, optimizer=optimizer, **meant) as run:
        for _ in range(3):
            drawn = (torch.rand(300) < rate).nonzero().squeeze(1)
            norms, total = tied(product, model.weight.detach(), x[drawn], y[drawn])
            noise = torch.randn_like(total)
            model.weight.grad = (total + noise) / (rate * 300)
            optimizer.step()
            run.sampled(drawn)
            run.clipped(norms)
            run.summed([total])
            run.noised([noise])
            run.stepped()
    found = checked(tmp_path / "run", epsilon=1000.0)
    facts = found.run.fact(Replays)
    assert facts.replaced == ("int64 (B, 5)", "int64 (B,)")
    assert (facts.longest > 1.02) is not product
    assert facts.longest > 0.9
    assert (found.verdict == "proved") is product


@pytest.mark.ci
def test_draws_of_a_loader_with_workers_are_no_kind_of_step(tmp_path: Path) -> None:
    folder, training = tmp_path / "run", Training(epochs=2, workers=1, physical=9).build()
    with training.recorder(folder):
        training.train()
    found = checked(folder, epsilon=100.0)
    assert found.run.fact(Replays).unreplayed == ()
    assert found.verdict == "proved"
