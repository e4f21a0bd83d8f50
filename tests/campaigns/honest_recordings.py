"""Record and check correct trainings: none may deviate, and each must have the expected verdict.

    python tests/campaigns/honest_recordings.py [WORDS] [SEEDS]

One line per training whose name contains the words: the verdict of a claim of epsilon 100 and the conformance. Exits
with 1 if a training deviates, or if its verdict is not the expected one.
"""

import copy
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from campaigns.trainings import Hook, Run, by_loop, by_opacus, checked, small, table
from support.opacus_training import Training
from support.schedules import PRIVATE_SCHEDULES, SCHEDULES
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

#: Torch's optimizers that step without a closure, with common options.
OPTIMIZERS: dict[str, Hook] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd nesterov, weight decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.05, foreach=True),
    "sgd maximize": lambda p: torch.optim.SGD(p, lr=1e-4, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True, betas=(0.8, 0.95)),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-3),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
}


def scheduled(make: Hook, *, private: bool = False, every: int = 1) -> dict[str, Hook]:
    """Return hooks that step a scheduler of torch's optimizer, or if ``private`` of Opacus' optimizer."""

    def setup(t: Any) -> None:
        t.schedule = make(t.opt if private else t.inner)

    return {"setup": setup, "after": lambda t: t.steps % every == 0 and t.schedule.step()}


def pictures() -> TensorDataset:
    return TensorDataset(torch.randn(200, 1, 8, 8), torch.randint(0, 2, (200,)))


def words() -> TensorDataset:
    return TensorDataset(torch.randint(0, 30, (200, 7)), torch.randint(0, 2, (200,)))


class Flipped(Dataset):
    """A dataset with a random augmentation of each record."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return (-x if torch.rand(()) < 0.5 else x), y


class Counting(nn.Module):
    """A module with attributes that training does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()
        self.labels = ["no", "yes"]
        self.scale = torch.ones(2)
        self.register_buffer("mask", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.body(self.mask * x)


class LowRank(nn.Module):
    """A frozen layer and a trained update of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 16)
        self.base.requires_grad_(False)
        self.down, self.up, self.head = nn.Linear(6, 2, bias=False), nn.Linear(2, 16, bias=False), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.base(x) + self.up(self.down(x))))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 2)
    )


def recurrent() -> nn.Module:
    from opacus.layers import DPGRU

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.gru, self.head = nn.Embedding(30, 8), DPGRU(8, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.gru(self.embed(x))[0][:, -1])

    return Last()


def half(t: Any) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return t.model(t.batch[0]).float()


def recomputed(t: Any) -> Any:
    return checkpoint(t.model, t.batch[0].clone().requires_grad_(), use_reentrant=True)


def evaluated(t: Any) -> None:
    t.model.eval()
    with torch.no_grad():
        t.model(torch.zeros(1, 6))
    t.model.train()


def averaged(t: Any) -> None:
    if not hasattr(t, "average"):
        t.average = copy.deepcopy(t.net)
    with torch.no_grad():
        for kept, now in zip(t.average.parameters(), t.net.parameters(), strict=True):
            kept.lerp_(now, 0.1)


def two_groups(model: nn.Module) -> Any:
    parameters = list(model.parameters())
    return [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:], "weight_decay": 1e-3}]


def trained(model: nn.Module) -> Any:
    return [p for p in model.parameters() if p.requires_grad]


def frozen() -> nn.Module:
    model = small()
    next(model.parameters()).requires_grad_(False)
    return model


def of_training(**made: Any) -> Run:
    return lambda folder: Training(**made).run(folder)


def cases(seeds: int) -> dict[str, Run]:
    """Return every training by its name."""
    momentum, adamw = {"optimizer": OPTIMIZERS["sgd momentum"]}, {"optimizer": OPTIMIZERS["adamw"]}
    clippings = itertools.product(("flat", "per_layer", "adaptive", "ghost"), (None, 7), ("sgd", "adamw"))
    both = {
        **{name: {"optimizer": optimizer} for name, optimizer in OPTIMIZERS.items()},
        **{name: {**momentum, **scheduled(schedule)} for name, schedule in SCHEDULES.items()},
        **{f"seed {seed}": {"seed": seed} for seed in range(1, seeds + 1)},
    }
    on_opacus: dict[str, dict[str, Any]] = {
        **both,
        **{
            f"{name} around Opacus' optimizer, adamw": {**adamw, **scheduled(SCHEDULES[name], private=True, every=10)}
            for name in ("StepLR", "OneCycleLR", "CosineAnnealingLR")
        },
        **{name: scheduled(schedule, private=True) for name, schedule in PRIVATE_SCHEDULES.items()},
        "one step an epoch": {"batch": 300, "epochs": 3},
        "batches of one record": {"batch": 1, "epochs": 1},
        "200 steps": {"epochs": 20},
        "large noise": {"noise_multiplier": 20.0},
        "small clip norm": {"max_grad_norm": 1e-3},
        "large clip norm": {"max_grad_norm": 1e3},
        "convolutions, dropout, group norm": {"model": convolutional, "data": pictures},
        "embedding and recurrent layer": {"model": recurrent, "data": words},
        "embedding, physical batches": {"model": recurrent, "data": words, "physical": 6},
        "low-rank update": {"model": LowRank, "parameters": trained},
        "frozen layer": {"model": frozen, "parameters": trained},
        "two parameter groups": {"parameters": two_groups},
        "two groups, OneCycleLR": {"parameters": two_groups, **momentum, **scheduled(SCHEDULES["OneCycleLR"])},
        "attributes and buffers": {"model": Counting},
        "recomputed activations": {"forward": recomputed},
        "bfloat16 autocast": {"forward": half},
        "evaluation after each step": {"after": evaluated},
        "averaged copy": {"after": averaged},
        "augmentation": {"data": lambda: Flipped(table())},
        "subset": {"data": lambda: Subset(table(400), range(50, 350))},
        "concatenated": {"data": lambda: ConcatDataset([table(100), table(200)])},
        "functorch gradients": {"grad_sample_mode": "functorch"},
        "expanded weights": {"grad_sample_mode": "ew"},
    }
    on_loop: dict[str, dict[str, Any]] = {
        **both,
        "sum": {"divisor": 1.0},
        "100 steps": {"steps": 100, "rate": 0.03},
        "one step": {"steps": 1},
        "small clip norm": {"clip": 1e-3},
    }
    of_trainings: dict[str, dict[str, Any]] = {
        **{
            f"clipping {clip}, {kind}, batches of {most}": {"clipping": clip, "physical": most, "optimizer": kind}
            for clip, most, kind in clippings
        },
        **{f"accountant {accountant}": {"accountant": accountant} for accountant in ("rdp", "gdp", "prv")},
        "sum of losses": {"reduction": "sum"},
        "sum of losses, physical batches": {"reduction": "sum", "physical": 8},
        **{f"{workers} workers": {"workers": workers} for workers in (1, 2)},
        **{f"{workers} workers, memory": {"workers": workers, "physical": 9} for workers in (1, 2)},
        **{f"{canaries} canaries": {"canaries": canaries} for canaries in (20, 60)},
    }
    return {
        **{f"opacus, {name}": by_opacus(**made) for name, made in on_opacus.items()},
        **{f"opacus, {name}": of_training(**made) for name, made in of_trainings.items()},
        **{f"plain loop, {name}": by_loop(**made) for name, made in on_loop.items()},
    }


def main(words: str = "", seeds: int = 25) -> int:
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    wrong = []
    for name, train in cases(seeds).items():
        if words not in name:
            continue
        try:
            found = checked(train)
            got = found.verdict, found.conformance.status, [c.name for c in found.channels if c.status == "violated"]
            reason = found.reason
        except Exception as error:
            got, reason = ("error", "", []), f"{type(error).__name__}: {error}"
        counts[str(got[0])] += 1
        good = got == ("proved", "no-deviation-found", [])
        wrong += [] if good else [name]
        print(f"{'' if good else 'WRONG '}{name}: {got}, {reason[:200]}", flush=True)
    print(f"\n{counts.total()} trainings: {dict(counts)}; {len(wrong)} not as expected: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2], *map(int, sys.argv[2:3])))
