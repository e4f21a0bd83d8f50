"""Sound trainings whose accountant or report is wrong."""

from pathlib import Path
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import dpspec
from support.public_mistakes.parts import DELTA, SECRET, OwnLoop, classifier, dataset, mistake


class PoppingAccountant(RDPAccountant):  # type: ignore[misc]
    """Removes the last entry of its history each time it is asked for epsilon."""

    def get_epsilon(self, delta: float, **options: Any) -> float:
        epsilon = float(super().get_epsilon(delta, **options))
        self.history.pop()
        return epsilon


@mistake("meta-pytorch/opacus/issues/535", "deviates", "counted by the accountant")
def epsilon_in_each_epoch(folder: Path, mistaken: bool) -> float:
    """The script prints epsilon after each epoch, and the accountant forgets steps when it does."""
    torch.manual_seed(SECRET)
    loader = DPDataLoader.from_data_loader(DataLoader(dataset(), batch_size=30))
    model = GradSampleModule(classifier())
    inner = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer = DPOptimizer(inner, noise_multiplier=1.1, max_grad_norm=0.5, expected_batch_size=30)
    accountant = PoppingAccountant() if mistaken else RDPAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=loader.sample_rate))
    epsilons = []
    with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=accountant):
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
            epsilons.append(float(accountant.get_epsilon(DELTA)))
    return epsilons[-1]


def _plain_training(folder: Path, steps: int) -> OwnLoop:
    loop = OwnLoop()
    for run, drawn in loop.recorded(folder, steps):
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop


@mistake("raptor7197/caamas/issues/36", "refuted", "above the claimed")
def summed_ratios(folder: Path, mistaken: bool) -> float:
    """The counter adds noise multiplier / rounds in each round, and the README prints the total."""
    loop = _plain_training(folder, 40)
    return sum(loop.sigma / (n + 1) for n in range(40)) if mistaken else loop.epsilon(40)


@mistake(
    "google/differential-privacy/issues/378",
    "refuted",
    "for groups of 2",
    claim={"group_sizes": (2,)},
    twin_claim={"group_sizes": (1,)},
)
def replaced_records(folder: Path, mistaken: bool) -> float:
    """A claim for replaced records, with the epsilon of added or removed ones."""
    return _plain_training(folder, 20).epsilon(20)
