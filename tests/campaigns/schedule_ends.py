"""Record random honest trainings, and claim an epsilon just above and just below the true one of their options.

    python tests/campaigns/schedule_ends.py [COUNT] [SEED]

Layers have 10^2 to 10^7 values, in float32, float64 and under autocast. The truth is the interval of Poisson samples
with the options of the script, without any charge. One line per training. Exits with 1 if a claim above the truth is
refuted, or one below it is proved.
"""

import random
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from campaigns.honest_recordings import half
from campaigns.trainings import by_loop, by_opacus
from support.checked_runs import Question, check_run
from torch import nn
from torch.utils.data import TensorDataset

from dpspec.accounting import Mixture, PrivacyLoss

DELTA = 1e-5

#: Relative distance of the claims from the truth.
_APART = 1e-3


def layered(values: int, kind: torch.dtype) -> nn.Module:
    """A classifier of 6 features whose middle layer has about this many values."""
    width = max(2, round(values**0.5))
    return nn.Sequential(
        nn.Linear(6, width, dtype=kind), nn.Tanh(), nn.Linear(width, max(2, values // width), dtype=kind), nn.Tanh(),
        nn.Linear(max(2, values // width), 2, dtype=kind),
    )  # fmt: skip


def random_training(chance: random.Random) -> tuple[str, Any, Any]:
    """Return the name of a training, the training, and the pair of one step with its number of steps."""
    precision = chance.choice(["float32", "float32", "float64", "autocast", "loop"])
    noise = round(chance.uniform(0.5, 4.0), 3)
    if precision == "loop":
        steps, rate, clip = chance.randint(1, 30), round(chance.uniform(0.02, 0.5), 3), 10.0 ** chance.uniform(-3, 0)
        run = by_loop(steps=steps, rate=rate, clip=clip, seed=chance.randrange(2**40))
        return f"loop, clip norm {clip:.3g}, rate {rate}", run, (Mixture.poisson(1, rate, 1.3), steps)
    values = round(10.0 ** chance.uniform(2.0, 7.0))
    batch = chance.choice([1, 2, 3]) if values > 10**6 else chance.choice([3, 6, 10, 20])
    kind = torch.float64 if precision == "float64" else torch.float32
    records = batch * chance.randint(2, 12)

    def data() -> TensorDataset:
        x = torch.randn(records, 6, dtype=kind)
        return TensorDataset(x, (x[:, 0] > 0).long())

    made = {"model": lambda: layered(values, kind), "data": data, "batch": batch, "seed": chance.randrange(2**40)}
    made |= {"forward": half} if precision == "autocast" else {}
    clip = 10.0 ** chance.uniform(-2.0, 1.0)
    physical = chance.choice([None, max(1, batch // 2)])
    run = by_opacus(epochs=1, physical=physical, noise_multiplier=noise, max_grad_norm=clip, **made)
    steps = records // batch
    return f"{precision}, {values:,} values, rate 1/{steps}", run, (Mixture.poisson(1, 1.0 / steps, noise), steps)


def main(count: int = 300, seed: int = 1) -> int:
    torch.set_num_threads(1)
    chance, counts, wrong = random.Random(seed), Counter[tuple[str, str]](), 0
    for number in range(count):
        name, train, (pair, steps) = random_training(chance)
        truth = PrivacyLoss.of(pair).compose(steps).epsilon(DELTA)
        above, below = truth.upper * (1.0 + _APART), truth.lower * (1.0 - _APART)
        with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(Path(scratch) / "run")
            found = [check_run(Path(scratch) / "run", Question(delta=DELTA, epsilon=claim)) for claim in (above, below)]
        verdicts = str(found[0].verdict), str(found[1].verdict)
        (upper, *_) = (finding for finding in found[0].audit.findings if finding.bound == "upper")
        good = verdicts[0] != "refuted" and verdicts[1] != "proved" and found[0].conformance.status != "deviates"
        counts[verdicts] += 1
        wrong += not good
        ends = f"[{upper.lower or 0.0:.5g}, {upper.value:.5g}], truth [{truth.lower:.5g}, {truth.upper:.5g}]"
        why = "" if verdicts[0] == "proved" else found[0].reason[:150]
        name = f"{'' if good else 'WRONG '}{number} {name}, noise {pair.noise_multiplier}"
        print(f"{name}: {ends} {verdicts} {why}", flush=True)
    print(f"\n{count} trainings; (claim above, claim below): {dict(counts)}; {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
