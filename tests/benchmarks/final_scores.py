"""What scores of planted records show of a final model: all of them on the same runs. Run by hand, some minutes:

    python tests/benchmarks/final_scores.py [--seeds 10] [--kinds mislabelled least-variance]

Digits, as in ``specs/attacks/planted-records.yaml`` but with nothing but the final model: 1,000 records alone, or 500
groups of eight. For each score the median bound on epsilon at delta 1e-5, level 95%, and the share of seeds in which it
is above 0. ``regressed`` scores are what is left of the log-odds of a label once a normal law is fitted to it, in its
deviations (after Bertran et al. 2023): on the label and the first model's log-odds, among the canaries; and on features
by labels too, among 4,000 mislabelled records that are not planted.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from peer_bounds import Array
from support.attacks import spec_at

from dpspec import kit
from dpspec.contract.attacks import Observed, Records
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec.stats.attacks import guess_counts
from dpspec.training.device import tensors
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.measure import final_scores
from dpspec_group import scores
from dpspec_group.attack import plant
from dpspec_group.options import Attack

SPEC = Path(__file__).parents[2] / "specs" / "attacks" / "planted-records.yaml"


class Keeping:
    """What a spec chose, which keeps what was observed instead of scoring it."""

    def __init__(self, context: RunContext) -> None:
        self.records, self.score = context.attack.records, context.attack.score
        self.seen: Observed | None = None

    def scores(self, observed: Observed) -> Array:
        """Zeros."""
        self.seen = observed
        return np.zeros(len(observed.copies))


def observed(kind: str, size: int, count: int, seed: int) -> tuple[Observed, Array]:
    """What an adversary sees of one run, and the coins (m,)."""
    claim = "claims=[{id: one, kind: approx-dp, epsilon: 3.0, delta: 1e-5}]"
    canary = (f"audit.canary.kind={kind}", f"audit.canary.count={count}", f"audit.seed={seed}")
    spec = spec_at(SPEC, "threat_model.access=final-model", f"threat_model.group_size={size}", claim, *canary)
    prepared = prepare(spec, load_catalog())
    inputs = prepared.audit.trial_inputs(spec)
    context = RunContext(prepared, load_catalog(), inputs, device="cpu")
    attack, keeping = Attack.chosen(inputs, context), Keeping(context)
    context.__dict__["attack"] = keeping
    sizes = np.full(count, size)
    coins = np.random.default_rng(context.seed(0, "coins")).integers(0, 2, size=count, dtype=np.int64)
    job = kit.training_job(inputs, context, 0, "training", progress="training", resumable=False)
    planted = plant(attack, context, 0, job, sizes, coins)
    context.trainer.train(planted.job)
    planted.score()
    assert keeping.seen is not None
    return keeping.seen, coins


def margin(seen: Observed) -> Array:
    """The label's logit less the largest other one, by the last model."""
    x, y = tensors(seen.canaries.x, seen.canaries.y, "cpu")
    with torch.no_grad():
        logits = FlatModel(seen.job.model, device="cpu").logits(torch.tensor(seen.last), x).double()
    own = logits.gather(1, y.unsqueeze(1)).squeeze(1)
    found: Array = (own - logits.scatter(1, y.unsqueeze(1), -torch.inf).amax(1)).numpy()
    return found


def features(records: Records, before: Array, rich: bool) -> Array:
    """What a score is regressed on, (m, columns); the first thirteen are the label and the first log-odds."""
    labels = np.eye(10)[records.y]
    columns = np.column_stack([np.ones(len(before)), before, before**2, labels])
    x = records.x.reshape(len(before), -1).astype(np.float64)
    return np.column_stack([columns, x, *(labels[:, k : k + 1] * x for k in range(10))]) if rich else columns


def regressed(seen: Observed, rich: bool) -> Array:
    """The distance from a regression, in deviations that are regressed as well."""
    known, before, after = seen.canaries, seen.before, seen.after
    if rich:
        rng, (x, y) = np.random.default_rng(7), (seen.job.x, seen.job.y)
        chosen = rng.integers(0, len(x), 4000)
        known = Records(x[chosen], (y[chosen] + rng.integers(1, 10, 4000)) % 10)
        before, after = seen.ask(known)
    fitted, wanted = features(known, before, rich), features(seen.canaries, seen.before, rich)
    weights = ridge(fitted, after)
    spread = ridge(fitted[:, :13], np.log((after - fitted @ weights) ** 2 + 1e-6))
    return np.asarray((seen.after - wanted @ weights) / np.exp(0.5 * np.clip(wanted[:, :13] @ spread, -20.0, 20.0)))


def ridge(rows: Array, target: Array) -> Array:
    """The weights of a regression, all but free."""
    return np.asarray(np.linalg.solve(rows.T @ rows + np.eye(rows.shape[1]), rows.T @ target))


def epsilon(values: Array, coins: Array) -> float:
    """The bound where no law of the scores is known."""
    ordered = "".join(map(str, coins[np.argsort(values, kind="stable")]))
    rungs = guess_counts.blind(len(ordered), least=8)
    return guess_counts.epsilon_lower(len(ordered), *guess_counts.counts([ordered], rungs), 1e-5, 0.95)


def shown(kind: str, size: int, count: int, seed: int) -> dict[str, float]:
    """The bound by each score."""
    seen, coins = observed(kind, size, count, seed)
    guessed = scores.tested(count)
    taught = replace(seen, coins=np.where(guessed, -1, coins).astype(np.int8))
    values = {
        "loss": final_scores.loss(seen),
        "loss-difference": final_scores.loss_difference(seen),
        "path": final_scores.path(seen),
        "shadow": final_scores.shadow(seen),
        "log-odds, last less first": seen.after - seen.before,
        "margin": margin(seen),
        "regressed on the label": regressed(seen, rich=False),
        "regressed on features too": regressed(seen, rich=True),
    }
    found = {name: epsilon(of, coins) for name, of in values.items()}
    return {**found, "likelihood-ratio": epsilon(final_scores.likelihood_ratio(taught)[guessed], coins[guessed])}


def main() -> None:
    """Print a table for each kind and size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", default=["mislabelled", "least-variance"])
    asked = parser.parse_args()
    for kind in asked.kinds:
        for size, count in ((1, 1000), (8, 500)):
            runs = [shown(kind, size, count, seed) for seed in range(asked.seeds)]
            print(f"\n{kind}, {count} groups of {size}\n\n| score | epsilon, share of seeds above 0 |\n|---|---|")
            for name in runs[0]:
                of = np.array([run[name] for run in runs])
                print(f"| {name} | {np.median(of):.2f} ({(of > 0).mean():.1f}) |", flush=True)


if __name__ == "__main__":
    main()
