"""Run all conformance tests on correct pipelines of all kinds: none may deviate.

    python tests/campaigns/right_runs.py [first seed] [number of seeds]

Each seed draws a model, an optimizer with learning rate, schedule and weight decay (sometimes so large that the
parameters diverge), samplings, noise, clip norms and phases, trains with the native loop, and compares the observed run
with the declaration as an audit does. All checks of a seed form one family at level 1e-6, so that of n seeds n * 1e-6
are expected to deviate. The output also has the share of p-values below each level, by kind of check: a share above
the level shows that the p-values are too small.
"""

import re
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from dpspec.contract import Check, FrozenMap, TrainingJob
from dpspec.results.conformance_status import rejected
from dpspec.stats.conformance import table
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.run_evidence import RunLogs, WatchedRun
from dpspec.training.measure.scores import ProjectionObserver

#: Levels at which p-values are counted, and the key of the checks that were not tested.
LEVELS = (0.05, 0.01, 0.001)
UNTESTED = -1.0


def drawn(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    optimizer = {"kind": str(rng.choice(["sgd", "sgd", "momentum", "momentum", "adam"]))}
    if optimizer["kind"] == "momentum":
        optimizer |= {"momentum": float(rng.choice([0.0, 0.5, 0.9, 0.99]))}
    if rng.random() < 0.6:
        optimizer["weight_decay"] = float(10.0 ** rng.uniform(-4, 1.5))
    rate = float(10.0 ** rng.uniform(-6, 1)) if rng.random() < 0.7 else float(rng.uniform(0.1, 3.0))
    options: dict[str, Any] = {
        "learning_rate": rate,
        "reduction": str(rng.choice(["sum", "mean"])),
        "optimizer": optimizer,
    }
    if rng.random() < 0.5:
        kind = str(rng.choice(["linear", "cosine", "constant"]))
        options["schedule"] = {"kind": kind, "warmup": int(rng.integers(0, 4))}
    samplings: list[dict[str, Any]] = [
        {"scheme": "poisson", "rate": float(rng.choice([0.02, 0.2, 0.7]))},
        {"scheme": "fixed", "batch_size": int(rng.choice([1, 20, 100]))},
        {"scheme": "full"},
    ]
    phases = [
        {
            "steps": int(rng.choice([1, 3, 13, 40])),
            "noise_multiplier": float(10.0 ** rng.uniform(-1, 1)),
            "clip_norm": float(10.0 ** rng.uniform(-2, 1)),
            "sampling": samplings[int(rng.choice(3, p=[0.6, 0.25, 0.15]))],
        }
        for _ in range(int(rng.integers(1, 4)))
    ]
    return {
        "options": options,
        "phases": phases,
        "hidden": int(rng.choice([0, 2, 30, 200])),
        "records": int(rng.choice([150, 400])),
        "canaries": bool(rng.random() < 0.6),
        "looks": 16 if rng.random() < 0.3 else None,
        "trials": int(rng.integers(1, 4)),
        "scale": float(10.0 ** rng.uniform(-1, 1)),
    }


def checks_of(seed: int) -> list[Check]:
    case, evidence = drawn(seed), []
    for trial in range(case["trials"]):
        job = _job(case, 1000 * seed + 2 * trial)
        evidence.append(_evidence(case, job, replace(job, seed=job.seed + 1)))
    phases = [FrozenMap(phase) for phase in case["phases"]]
    return list(table.checks(phases, evidence))


def _job(case: dict[str, Any], seed: int) -> TrainingJob:
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hidden = case["hidden"]
        layers = [nn.Linear(20, hidden), nn.Tanh(), nn.Linear(hidden, 3)] if hidden else [nn.Linear(20, 3)]
        model = nn.Sequential(*layers)
    y = rng.integers(0, 3, case["records"])
    x = case["scale"] * (rng.standard_normal((3, 20))[y] + rng.standard_normal((len(y), 20)))
    return TrainingJob(
        x=x.astype(np.float32),
        y=y,
        model=model,
        phases=tuple(FrozenMap(phase) for phase in case["phases"]),
        options=FrozenMap(case["options"]),
        expected_batch_size=20.0,
        device="cpu",
        seed=seed,
    )


def _evidence(case: dict[str, Any], plain: TrainingJob, other: TrainingJob) -> FrozenMap:
    parameters, coins = sum(p.numel() for p in plain.model.parameters()), np.arange(0)
    job, directions = plain, None
    if case["canaries"]:
        coins = np.random.default_rng(plain.seed).integers(0, 2, min(60, parameters // 3))
        directions = SignBlocks(parameters, len(coins), seed=plain.seed)
        longest = max(float(phase["clip_norm"]) for phase in case["phases"])
        groups = CanaryGroups.planted(directions, torch.from_numpy(coins == 1), 1, 10.0 * longest)
        job = replace(plain, canaries=groups)
    twin, watcher = RunLogs(other), None
    if case["options"]["optimizer"]["kind"] != "adam":
        watcher = (
            Residuals(job, looks=case["looks"])
            if directions is None
            else ProjectionObserver(job, directions, looks=case["looks"])
        )
    watched = WatchedRun(job, watcher)
    NativeTrainer().train(replace(job, observers=watched.observers))
    NativeTrainer().train(replace(other, model=_job(case, other.seed).model, observers=twin.observers))
    return FrozenMap(watched.evidence(twin, np.ones(len(coins), dtype=np.int64), coins))


def deviations(seeds: range) -> tuple[list[str], dict[str, Counter[float]]]:
    found: list[str] = []
    below: dict[str, Counter[float]] = defaultdict(Counter)
    for seed in seeds:
        checks = checks_of(seed)
        for check in checks:
            kind = f"{check.assumption}, {check.observed}: {re.sub('[0-9]+', 'n', check.test.partition(', ')[0])}"
            below[kind][1.0] += 1
            for level in LEVELS:
                below[kind][level] += check.p_value <= level
            below[kind][UNTESTED] += "not tested" in check.remark
            if rejected(check, len(checks)):
                found.append(f"seed {seed}: {check}")
    return found, below


def main(first: int = 0, count: int = 300) -> int:
    found, below = deviations(range(first, first + count))
    for kind, counts in sorted(below.items()):
        tested = counts[1.0] - counts[UNTESTED]
        shares = ", ".join(f"{counts[level] / max(1, tested):.4f} <= {level}" for level in LEVELS)
        print(f"{kind:95} {tested:6} checks: {shares}; {counts[UNTESTED]} not tested")
    print(f"{count} seeds, {len(found)} deviations; {count * 1e-6:.1g} are expected")
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
