"""Losses of pairs, triplets and in-batch negatives: what a recording of each says (arXiv 2310.03104)."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checked_runs import CheckedRun, checked
from support.public_mistakes.parts import FEATURES, OpacusTraining, dataset
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from dpspec.accounting import PrivacyLoss
from dpspec.contract.results import open_cautions

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore")]


def margin(a: Tensor, b: Tensor, same: Tensor) -> Tensor:
    distances = (a - b).norm(dim=1)
    return (same * distances**2 + (1.0 - same) * (1.0 - distances).clamp_min(0.0) ** 2).mean()


def of_rows(z: Tensor, same: Tensor) -> Tensor:
    """The loss of pairs that are rows of the dataset."""
    return margin(z[:, 0], z[:, 1], same.float())


def of_halves(z: Tensor, y: Tensor) -> Tensor:
    """Each record of the first half of the batch with one of the second: a further record shifts all pairs."""
    n = len(z) // 2
    return margin(z[:n], z[n : 2 * n], (y[:n] == y[n : 2 * n]).float())


def of_triplets(z: Tensor, y: Tensor) -> Tensor:
    """The hardest positive and negative in the batch."""
    distances, same = torch.cdist(z, z), (y[:, None] == y[None]).float()
    return ((distances * same).amax(1) - (distances + 1e9 * same).amin(1) + 1.0).clamp_min(0.0).mean()


def of_negatives(z: Tensor, y: Tensor) -> Tensor:
    """InfoNCE: all other records of the batch are negatives."""
    z = functional.normalize(z, dim=1)
    return functional.cross_entropy(z @ (z + 0.01).T / 0.1, torch.arange(len(z)))


def train(folder: Path, data: Dataset, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 8))
    training = OpacusTraining(model, data, inner=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3))
    for x, y in training.recorded(folder, 3):
        training.step(loss(training.model(x), y))


def paired(first: Tensor, second: Tensor) -> TensorDataset:
    x, y = dataset().tensors
    return TensorDataset(torch.stack([x[first], x[second]], 1), (y[first] == y[second]).float())


def cautions(run: CheckedRun) -> list[str]:
    return [rule.name for rule in open_cautions(run.audit)]


def test_disjoint_pairs_are_proved(tmp_path: Path) -> None:
    train(tmp_path / "run", paired(torch.arange(150), torch.arange(150, 300)), of_rows)
    run = checked(tmp_path / "run", epsilon=20.0)
    assert run.fine
    assert "paired-records" not in cautions(run)


def test_pairs_with_common_records_are_a_caution_and_a_claim_about_groups(tmp_path: Path) -> None:
    """Each record is in two pairs of a circle."""
    train(tmp_path / "run", paired(torch.arange(300), (torch.arange(300) + 1) % 300), of_rows)
    run = checked(tmp_path / "run", epsilon=20.0)
    assert "paired-records" in cautions(run)
    assert run.exit_code == 1
    groups = checked(tmp_path / "run", epsilon=20.0, group_sizes=(2,))
    assert "paired-records" not in cautions(groups)
    assert groups.fine


@pytest.mark.parametrize("loss", [of_halves, of_triplets, of_negatives])
def test_a_loss_over_records_of_the_batch_deviates(loss: Callable[[Tensor, Tensor], Tensor], tmp_path: Path) -> None:
    train(tmp_path / "run", dataset(), loss)
    run = checked(tmp_path / "run", epsilon=100.0)
    assert run.conformance.status == "deviates"
    assert run.verdict != "proved"


def test_one_record_moves_all_pairs_of_a_batch() -> None:
    """Each pair of a batch of 16 is clipped to 1: a record moves the sum by 15, and noise 1 costs 175.59, not 4.377."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 5, generator=generator)

    def pairs(rows: Tensor) -> Tensor:
        differences = torch.stack([rows[j] - rows[i] for i in range(len(rows)) for j in range(i + 1, len(rows))])
        return (differences / differences.norm(dim=1, keepdim=True).clamp_min(1.0)).sum(0)

    x[-1] = 1e6  # far from all others
    moved = float((pairs(x) - pairs(x[:-1])).norm())
    assert moved == pytest.approx(15.0, rel=1e-4)
    as_claimed = PrivacyLoss.of_steps([(1.0, 1.0, 1)]).epsilon(1e-5)
    executed = PrivacyLoss.of_steps([(1.0 / 15.0, 1.0, 1)]).epsilon(1e-5)
    assert [round(as_claimed.upper, 3), round(executed.upper, 2)] == [4.377, 175.59]
