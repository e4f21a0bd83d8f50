"""What scores of planted records show of a final model: all of them on the same runs. Run by hand, some minutes:

    python tests/benchmarks/final_scores.py [--seeds 10] [--kinds mislabelled least-variance]

Digits, as in ``specs/attacks/planted-records.yaml`` but with the final model only: 1,000 records alone, or 500 groups
of eight. For each score the median bound on epsilon at delta 1e-5, level 95%, and the share of seeds in which it is
above 0.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from peer_bounds import Array
from support.attacks import spec_at

from dpspec import kit
from dpspec.contract.attacks import Observed
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec.stats.attacks import guess_counts
from dpspec.training.measure import scores as final_scores
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
    attack, keeping = replace(Attack.of(inputs), scoring=context.attack.score), Keeping(context)
    context.__dict__["attack"] = keeping
    sizes = np.full(count, size)
    coins = np.random.default_rng(context.seed(0, "coins")).integers(0, 2, size=count, dtype=np.int64)
    job = kit.training_job(inputs, context, 0, "training", progress="training", resumable=False)
    planted = plant(attack, context, 0, job, sizes, coins)
    context.trainer.train(planted.job)
    planted.score()
    assert keeping.seen is not None
    return keeping.seen, coins


def epsilon(values: Array, coins: Array) -> float:
    """The bound where no law of the scores is known."""
    ordered = "".join(map(str, coins[np.argsort(values, kind="stable")]))
    rungs = guess_counts.blind(len(ordered), least=8)
    return guess_counts.epsilon_lower(len(ordered), *guess_counts.counts([ordered], rungs), 1e-5, 0.95)


def shown(kind: str, size: int, count: int, seed: int) -> dict[str, float]:
    seen, coins = observed(kind, size, count, seed)
    guessed = scores.tested(count)
    taught = replace(seen, coins=np.where(guessed, -1, coins).astype(np.int8))
    values = {
        "loss": final_scores.loss(seen),
        "loss-difference": final_scores.loss_difference(seen),
        "path": final_scores.path(seen),
        "shadow": final_scores.shadow(seen),
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
