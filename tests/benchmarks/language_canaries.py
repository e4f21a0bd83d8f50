"""Lower bounds of one run of a small language model, from canaries of random tokens and of new tokens.

    python tests/benchmarks/language_canaries.py RESULTS.json [--seeds 20] [--figure PICTURE.svg] [--further]

A transformer of one layer is trained by DP-SGD (Opacus, ghost clipping, 3 steps with batches of all records) on 500
sequences of a Markov chain and on canaries. Each run is recorded and checked: the upper bound is certified, and the
lower bound follows from losses of the final model (black box, delta 1e-5, 95 %): the loss of a sequence of random
tokens, or the loss of a new token relative to all new tokens. Results are written after each run, and a further call
makes only the missing ones. The last lines are the table of the documentation. With ``--further`` the models are
trained on without noise after the recorded block, and nothing is written.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from support.checked_runs import Question, check_run
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dpspec

KINDS, COUNTS = ("random-tokens", "new-tokens"), (500, 1000, 2000)

#: Noise multipliers of the steps, by epsilon at delta 1e-5.
NOISE = {4: 1.877, 8: 1.042}
RECORDS, WORDS, LENGTH, WIDTH, STEPS = 500, 32, 4, 32, 3

#: The learning rate moves parameters by this times the sum of clipped gradients, in units of the noise.
MOVE = 0.01


class Transformer(nn.Module):
    """One layer of causal attention. Rows of the output layer begin equal."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.before, self.attention = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.between, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.after, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(LENGTH).repeat(len(ids), 1))
        queries, keys, values = self.attention(self.before(x)).chunk(3, -1)
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        weights = (queries @ keys.transpose(1, 2) / math.sqrt(WIDTH)).masked_fill(~seen, -1e9).softmax(-1)
        x = x + self.out(weights @ values)
        logits: Tensor = self.head(self.after(x + self.down(self.up(self.between(x)).relu())))
        return logits


class EachMean(nn.Module):
    """The mean loss over the targets of each sequence."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        each = losses.sum(1) / (targets != -100).sum(1)
        return each if self.reduction == "none" else each.mean()


def of_each(model: Any, batch: Any) -> Tensor:
    found: Tensor = EachMean("none")(model(batch[0]), batch[1])
    return found


def relative_loss(model: Any, batch: Any) -> Tensor:
    """The loss of the canary token, minus the mean loss of all new tokens at the same place."""
    logits = model(batch[0])[:, -1]
    return logits[:, WORDS:].mean(1) - logits.gather(1, batch[1][:, -1:])[:, 0]


def sequences(seed: int) -> TensorDataset:
    """(RECORDS, LENGTH) ids of a Markov chain, and the ids that follow each."""
    chance = np.random.default_rng(seed)
    ends = chance.dirichlet(np.full(WORDS, 0.1), WORDS).cumsum(1)
    ids = np.zeros((RECORDS, LENGTH + 1), dtype=np.int64)
    ids[:, 0] = chance.integers(0, WORDS, RECORDS)
    for place in range(LENGTH):
        drawn = (chance.random(RECORDS)[:, None] > ends[ids[:, place]]).sum(1)
        ids[:, place + 1] = np.minimum(drawn, WORDS - 1)
    whole = torch.from_numpy(ids)
    return TensorDataset(whole[:, :-1].contiguous(), whole[:, 1:].contiguous())


def train_on(model: nn.Module, planted: Any) -> None:
    """Five steps without clipping and noise."""
    ids, targets = (torch.stack(part) for part in zip(*planted, strict=True))
    for _ in range(5):
        model.zero_grad()
        EachMean()(model(ids), targets).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 2.0 * parameter.grad


def one_run(kind: str, epsilon: int, count: int, seed: int, folder: Path, *, further: bool = False) -> dict[str, Any]:
    """further: whether the model is trained on after the recorded block, without noise."""
    start = time.monotonic()
    data = sequences(seed)
    options = {"vocabulary": WORDS + count} if kind == "new-tokens" else {}
    planted = dpspec.plant(data, kind=kind, count=count, seed=seed, **options)
    torch.manual_seed(seed)
    plain, sigma = Transformer(WORDS + count), NOISE[epsilon]
    engine = PrivacyEngine(accountant="prv")
    model, optimizer, criterion, loader = engine.make_private(
        module=plain,
        optimizer=torch.optim.SGD(plain.parameters(), lr=MOVE / sigma * len(planted)),
        data_loader=DataLoader(planted, batch_size=len(planted)),
        criterion=EachMean(),
        noise_multiplier=sigma,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )

    def loss_of_data() -> float:
        with torch.no_grad():
            return float(EachMean()(plain(data.tensors[0]), data.tensors[1]))

    before = loss_of_data()
    with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=engine) as run:
        for _ in range(STEPS):
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=256, optimizer=optimizer) as batches:
                for ids, targets in batches:
                    optimizer.zero_grad()
                    criterion(model(ids), targets).backward()
                    optimizer.step()
    if further:
        model.disable_hooks()
        train_on(plain, planted)
    run.score(model, relative_loss if kind == "new-tokens" else of_each)
    found = check_run(folder, Question(delta=1e-5, epsilon=float(epsilon) + 0.01))
    assert found.canaries is not None
    return {
        "kind": kind,
        "epsilon": epsilon,
        "canaries": count,
        "seed": seed,
        "verdict": found.verdict,
        "upper": found.costs[1].interval.upper,
        "lower": found.canaries.lower,
        "p_value": found.canaries.p_value,
        "loss": [before, loss_of_data()],
        "seconds": time.monotonic() - start,
    }


def groups(runs: list[dict[str, Any]]) -> dict[tuple[int, int, str], list[dict[str, Any]]]:
    keys = product(NOISE, COUNTS, KINDS)
    return {key: [r for r in runs if (r["epsilon"], r["canaries"], r["kind"]) == key] for key in keys}


def table(runs: list[dict[str, Any]]) -> str:
    head = "| certified | canaries | random tokens | new tokens | share of the certified bound |"
    lines = [head, "|---|---|---|---|---|"]
    made = groups(runs)
    for epsilon, count in product(NOISE, COUNTS):
        both = [[r["lower"] for r in made[epsilon, count, kind]] for kind in KINDS]
        cells = [f"{statistics.median(shown):.2f} ({min(shown):.2f} to {max(shown):.2f})" for shown in both]
        upper = max(r["upper"] for kind in KINDS for r in made[epsilon, count, kind])
        share = statistics.median(both[1]) / upper
        lines.append(f"| {upper:.2f} | {count:,} | {cells[0]} | {cells[1]} | {share:.2f} |")
    return "\n".join(lines)


def figure(runs: list[dict[str, Any]]) -> str:
    """An SVG of the bound of each run as a dot, over the number of canaries; the lines join medians."""
    made, width, height, left, low = groups(runs), 300, 240, 40, 210
    colors = {"random-tokens": "#888888", "new-tokens": "#1f6fb4"}
    drawn = []
    for panel, epsilon in enumerate(NOISE):
        upper = max(r["upper"] for key, same in made.items() if key[0] == epsilon for r in same)
        x0 = left + panel * width

        def x(count: int, x0: int = x0) -> float:
            return x0 + 20 + 105 * math.log2(count / COUNTS[0])

        def y(value: float, upper: float = upper) -> float:
            return low - 170 * value / upper

        drawn.append(f'<text x="{x0 + 110}" y="20" text-anchor="middle">certified epsilon {upper:.2f}</text>')
        drawn.append(f'<path d="M{x0} {y(upper)}H{x0 + 250}" stroke="#c0392b" stroke-dasharray="5 3"/>')
        drawn.append(f'<path d="M{x0} 35V{low}H{x0 + 250}" stroke="#666" fill="none"/>')
        ticks = range(0, epsilon + 1, epsilon // 4)
        drawn += [f'<text x="{x0 - 6}" y="{y(v) + 4:.0f}" text-anchor="end">{v}</text>' for v in ticks]
        drawn += [f'<text x="{x(c):.0f}" y="{low + 16}" text-anchor="middle">{c:,}</text>' for c in COUNTS]
        for kind, color in colors.items():
            middle = []
            for count in COUNTS:
                shown = [r["lower"] for r in made[epsilon, count, kind]]
                drawn += [
                    f'<circle cx="{x(count):.0f}" cy="{y(v):.1f}" r="2.5" fill="{color}" opacity=".5"/>' for v in shown
                ]
                middle += [f"{x(count):.0f} {y(statistics.median(shown)):.1f}"] if shown else []
            drawn.append(f'<path d="M{" L".join(middle)}" stroke="{color}" stroke-width="2" fill="none"/>')
    labels = (
        '<text x="60" y="60" fill="#1f6fb4">new tokens</text><text x="60" y="74" fill="#888888">random tokens</text>'
        '<text x="60" y="88">lower bound on epsilon by number of canaries</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width + left} {height}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="#fff"/>\n{labels}\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--further", action="store_true", help="count runs above the bound that are trained on")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.further:
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                made = [one_run(kind, 4, 1000, s, Path(folder) / f"{s}", further=True) for s in range(given.seeds)]
            above = sum(r["lower"] > r["upper"] for r in made)
            print(f"{kind}: {above} of {len(made)} above the certified bound")
        return
    runs = json.loads(given.results.read_text()) if given.results.exists() else []
    there = {(r["seed"], r["epsilon"], r["canaries"], r["kind"]) for r in runs}
    for count, seed, epsilon, kind in product(COUNTS, range(given.seeds), NOISE, KINDS):
        if (seed, epsilon, count, kind) in there:
            continue
        with tempfile.TemporaryDirectory() as folder:
            runs.append(one_run(kind, epsilon, count, seed, Path(folder) / "run"))
        given.results.write_text("[\n" + ",\n".join(json.dumps(r) for r in runs) + "\n]\n")
    if given.figure is not None:
        given.figure.write_text(figure(runs))
    above = sum(r["lower"] > r["upper"] for r in runs)
    proved = sum(r["verdict"] == "proved" for r in runs)
    print(f"{len(runs)} runs, {proved} proved, {above} with a lower bound above the certified one")
    before, after = (statistics.median(r["loss"][i] for r in runs) for i in (0, 1))
    print(f"{sum(r['seconds'] for r in runs):.0f} s; median loss of the data {before:.2f} before and {after:.2f} after")
    print(table(runs))


if __name__ == "__main__":
    main()
