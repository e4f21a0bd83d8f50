"""Whether records that are optimised through the training show more than those that are chosen at once. Run by hand:

    python tests/benchmarks/metagradients.py [--seeds 5] [--rounds 150]

A linear model of the digits, 200 real records, 20 canaries, 20 full batches, clipped to 1, noise for mu 1: DP-SGD in
closed form, many runs at once. Canaries begin as mislabelled records and are moved by Adam along the gradient of what
runs with and without them differ by, taken back through all steps (after Boglioni et al. 2025), no longer than the
longest record. Judged on runs of their own: by how many standard deviations a score is larger where its canary was
planted, the mean over canaries, of scores centred canary by canary; mu 1 is the most that is possible.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

RECORDS, CANARIES, STEPS, CLASSES = 200, 20, 20, 10
RATE, SIGMA = 2.0, STEPS**0.5

#: Runs at once where canaries are optimised, and where they are judged.
TRIED, JUDGED = 48, 1000

Scores = tuple[Tensor, Tensor]


def with_one(x: Tensor) -> Tensor:
    """Rows with a coordinate for the bias."""
    return torch.cat([x, torch.ones(len(x), 1)], 1)


def clipped(weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Per run (R, D, C) and record, the error (R, n, C) scaled so that its outer product with x is clipped to 1; and
    the log-probability (R, n) of the label."""
    logs = torch.log_softmax(x @ weights, -1)
    errors = logs.exp() - torch.nn.functional.one_hot(y, CLASSES)
    norms = errors.norm(dim=-1) * x.norm(dim=-1)
    return errors / norms.clamp_min(1.0)[..., None], logs.gather(-1, y.expand(len(weights), -1)[..., None])[..., 0]


def runs(real: tuple[Tensor, Tensor], canaries: tuple[Tensor, Tensor], count: int, source: torch.Generator) -> Scores:
    """Scores (2, count, m) of so many runs, by the loss and along the first gradient, and their coins (count, m)."""
    (x, y), (cx, cy) = real, canaries
    coins = torch.randint(0, 2, (count, len(cx)), generator=source).float()
    weights = torch.zeros(count, x.shape[1], CLASSES)
    first, before = clipped(weights[:1], cx, cy)
    for _ in range(STEPS):
        noise = SIGMA * torch.randn(weights.shape, generator=source)
        own, _ = clipped(weights, cx, cy)
        total = x.T @ clipped(weights, x, y)[0] + cx.T @ (own * coins[..., None]) + noise
        weights = weights - RATE / RECORDS * total
    along = -torch.einsum("rdc,md,mc->rm", weights, cx, first[0])
    return torch.stack([clipped(weights, cx, cy)[1] - before, along]), coins


def separation(scores: Tensor, coins: Tensor) -> Tensor:
    """The mean over canaries of (mean planted - mean left out) / deviation, scores (R, m)."""
    planted, out = coins, 1.0 - coins
    one = (scores * planted).sum(0) / planted.sum(0).clamp_min(1.0)
    none = (scores * out).sum(0) / out.sum(0).clamp_min(1.0)
    rest = scores - planted * one - out * none
    return ((one - none) / (rest.square().sum(0) / (len(scores) - 2)).sqrt()).mean()


def mislabelled(x: Tensor, y: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Other records with a wrong label."""
    return x[:CANARIES], (y[:CANARIES] + torch.randint(1, CLASSES, (CANARIES,), generator=source)) % CLASSES


def least_variance(real: Tensor) -> tuple[Tensor, Tensor]:
    """As long as the longest record, in the directions in which records reach least, label after label."""
    _, vectors = torch.linalg.eigh(real[:, :-1].T @ real[:, :-1])
    longest = real[:, :-1].norm(dim=1).max()
    return with_one(longest * vectors.T[:CANARIES].contiguous()), torch.arange(CANARIES) % CLASSES


def optimised(
    real: tuple[Tensor, Tensor], begun: tuple[Tensor, Tensor], which: int, rounds: int, source: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Features moved so that score number ``which`` separates better, on runs that are drawn anew each round."""
    longest = real[0][:, :-1].norm(dim=1).max()
    features = begun[0][:, :-1].clone().requires_grad_(True)
    optimizer = torch.optim.Adam([features], lr=0.1)
    for _ in range(rounds):
        scores, coins = runs(real, (with_one(features), begun[1]), TRIED, source)
        optimizer.zero_grad()
        (-separation(scores[which], coins)).backward()
        optimizer.step()
        with torch.no_grad():
            features *= (longest / features.norm(dim=1, keepdim=True)).clamp_max(1.0)
    return with_one(features.detach()), begun[1]


def judged(real: tuple[Tensor, Tensor], make: Callable[[], tuple[Tensor, Tensor]], seed: int) -> list[float]:
    """The separation by either score, on runs of their own."""
    canaries = make()
    with torch.no_grad():
        scores, coins = runs(real, canaries, JUDGED, torch.Generator().manual_seed(10_000 + seed))
    return [float(separation(one, coins)) for one in scores]


def main() -> None:
    """One line for each kind of canary: the mean over seeds, and its standard error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=150)
    given = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    found: dict[str, list[list[float]]] = {}
    for seed in range(given.seeds):
        source = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(images), generator=source)
        x, y = with_one(torch.tensor(images, dtype=torch.float32)[order] / 16.0), torch.tensor(labels)[order]
        real, begun = (x[CANARIES:][:RECORDS], y[CANARIES:][:RECORDS]), mislabelled(x, y, source)
        kinds = {
            "mislabelled": lambda begun=begun: begun,
            "least-variance": lambda real=real: least_variance(real[0]),
            "mislabelled, optimised for the loss": lambda r=real, b=begun, s=source: optimised(
                r, b, 0, given.rounds, s
            ),
            "least-variance, optimised for the loss": lambda r=real, s=source: optimised(
                r, least_variance(r[0]), 0, given.rounds, s
            ),
            "mislabelled, optimised along": lambda r=real, b=begun, s=source: optimised(r, b, 1, given.rounds, s),
        }
        for name, make in kinds.items():
            found.setdefault(name, []).append(judged(real, make, seed))
            mean = np.mean(found[name], 0)
            error = np.std(found[name], 0, ddof=1) / len(found[name]) ** 0.5 if seed else np.zeros(2)
            both = ", ".join(f"{m:.3f} +- {e:.3f}" for m, e in zip(mean, error, strict=True))
            print(f"{seed + 1} seeds, {name}: by the loss, and along the first gradient: {both}", flush=True)


if __name__ == "__main__":
    main()
