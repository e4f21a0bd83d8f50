"""A simulated server of DP-FedAvg in one process, correct or with a fault."""

from pathlib import Path

import torch
from torch import Tensor, nn

from dpspec.integrations.federated import record_rounds

CLIENTS, RATE, CLIP, NOISE = 200, 0.1, 0.5, 1.0


def local_update(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The difference of the global and the client's parameters after two local steps."""
    parameters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    for _ in range(2):
        gradients = torch.autograd.grad(
            nn.functional.cross_entropy(nn.functional.linear(x, *parameters), y), parameters
        )
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p -= 0.5 * g
    return [(old - new).detach() for old, new in zip(model.parameters(), parameters, strict=True)]


def scaled(update: list[Tensor], limit: float) -> list[Tensor]:
    norm = torch.stack([part.norm() for part in update]).norm()
    return [part * min(1.0, limit / float(norm)) for part in update]


def serve(folder: Path, rounds: int = 40, *, fault: str = "") -> None:
    torch.manual_seed(3)
    model = nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = [(torch.randn(8, 20), torch.randint(0, 2, (8,))) for _ in range(CLIENTS)]
    sizes = torch.randint(1, 9, (CLIENTS,)) / 4.0
    declared = {"clients": CLIENTS, "rate": RATE, "clip_norm": CLIP, "noise_multiplier": NOISE}
    with record_rounds(folder, model, optimizer, **declared) as recorded:
        for _ in range(rounds):
            drawn = (torch.rand(CLIENTS) < RATE).nonzero().squeeze(1).tolist()
            if fault == "fixed clients":
                drawn = list(range(20))
            updates = [local_update(model, *data[client]) for client in drawn]
            if fault not in ("no clipping", "clipping after averaging"):
                updates = [scaled(update, CLIP) for update in updates]
            summands = updates
            if fault == "weights by size":
                summands = [[float(sizes[c]) * part for part in u] for c, u in zip(drawn, updates, strict=True)]
            if fault == "same seed":
                torch.manual_seed(7)
            std = CLIP * NOISE * (0.5 if fault == "half the noise" else 1.0)
            noise = [std * torch.randn_like(p) for p in model.parameters()]
            total = [sum(parts, torch.zeros(())) for parts in zip(*summands, strict=True)]
            if fault == "clipping after averaging":
                total = [CLIENTS * RATE * part for part in scaled([part / len(drawn) for part in total], CLIP)]
            for p, part, added in zip(model.parameters(), total, noise, strict=True):
                p.grad = (part + added) / (RATE * CLIENTS)
            optimizer.step()
            recorded.aggregated(drawn, summands, noise)
