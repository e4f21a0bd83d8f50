"""Sound trainings whose accountant or report is wrong."""

from pathlib import Path
from typing import Any

from opacus.accountants import RDPAccountant
from torch import Tensor

from support.public_mistakes.parts import DELTA, OwnLoop, accounted_training, mistake, own_loop


class PoppingAccountant(RDPAccountant):  # type: ignore[misc]
    """Removes the last entry of its history each time it is asked for epsilon."""

    def get_epsilon(self, delta: float, **options: Any) -> float:
        epsilon = float(super().get_epsilon(delta, **options))
        self.history.pop()
        return epsilon


@mistake("meta-pytorch/opacus/issues/535", "deviates", "counted by the accountant")
def epsilon_in_each_epoch(folder: Path, mistaken: bool) -> float:
    """The script prints epsilon after each epoch, and the accountant forgets steps when it does."""
    accountant = PoppingAccountant() if mistaken else RDPAccountant()
    epochs = accounted_training(folder, accountant, epochs=2, batch=30, sigma=1.1)
    return [float(accountant.get_epsilon(DELTA)) for _ in epochs][-1]


@mistake("raptor7197/caamas/issues/36", "refuted", "above the claimed")
def summed_ratios(folder: Path, mistaken: bool) -> float:
    """The counter adds noise multiplier / rounds in each round, and the README prints the total."""
    loop = OwnLoop()
    for run, drawn in loop.recorded(folder, 40):
        loop.honest(run, drawn)
    return sum(loop.sigma / (n + 1) for n in range(40)) if mistaken else loop.epsilon(40)


@own_loop(
    "google/differential-privacy/issues/378",
    "refuted",
    "for groups of 2",
    claim={"group_sizes": (2,)},
    twin_claim={"group_sizes": (1,)},
)
def replaced_records(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """A claim for replaced records, with the epsilon of added or removed ones."""
    loop.honest(run, drawn)
