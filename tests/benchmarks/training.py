"""Our DP-SGD beside Opacus, in all of its modes, on the same models and batches: throughput, peak memory. Run by hand:

    python tests/benchmarks/training.py [--quick] [--threads N] [--model KIND]

A whole step is forward, backward, clip, noise and update; "gradients" is what comes before noise: with us and in
Opacus' ghost mode clipped sums or norms, in its other modes a gradient per record. Every measurement has a process of
its own, so that peak memory is its own, and the sides take turns. On one CPU thread (the default) times are CPU
seconds, on more threads and on a GPU those of the clock. The table shows medians over the rounds; machines are noisy,
so read the ratios. Opacus 1.6 is not a dependency: pip install opacus.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from math import prod
from statistics import median
from typing import Any

#: kind of model, shape of its records, batch on a CPU, batch on a GPU.
SETTINGS: list[tuple[str, tuple[int, ...], int, int]] = [
    ("cnn-small", (1, 28, 28), 256, 2048),
    ("resnet20", (3, 32, 32), 64, 1024),
]
MODES = ("dpspec", "hooks", "functorch", "ew", "ghost")
CLASSES = 10

Work = Callable[[], Any]


def ours(module: Any, x: Any, y: Any) -> tuple[Work, Work]:
    """The native backend's own loop, one step at a time, and its clipped sum."""
    from dpspec.contract import FrozenMap, TrainingJob
    from dpspec.training.loop.native import parts_of, train_with

    phase = {"steps": 1, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "full"}}
    job = TrainingJob(
        x=x.cpu().numpy(),
        y=y.cpu().numpy(),
        model=module,
        phases=(FrozenMap(phase),),
        options=FrozenMap({"learning_rate": 0.1, "reduction": "mean"}),
        expected_batch_size=float(len(x)),
        device=str(x.device),
        seed=1,
    )
    parts = parts_of(job)
    everything = parts.schedule.phases[0].sampler.draw(None)

    def gradients() -> Any:
        return parts.contributions(parts.initial, everything, 1.0)

    return lambda: train_with(job, parts), gradients


def theirs(mode: str) -> Callable[[Any, Any, Any], tuple[Work, Work]]:
    """Opacus' engine in one mode; its loader plays no part."""

    def make(module: Any, x: Any, y: Any) -> tuple[Work, Work]:
        import torch
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        module = module.to(x.device)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        criterion = torch.nn.CrossEntropyLoss()
        made = PrivacyEngine().make_private(
            module=module,
            optimizer=optimizer,
            data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
            **({"criterion": criterion} if mode == "ghost" else {}),
        )
        module, optimizer = made[:2]
        criterion = made[2] if mode == "ghost" else criterion

        def gradients() -> None:
            optimizer.zero_grad()
            criterion(module(x), y).backward()

        def step() -> None:
            gradients()
            optimizer.step()

        return step, gradients

    return make


def one(mode: str, kind: str, shape: list[int], batch: int, device: str, threads: int, repeats: int) -> dict[str, Any]:
    """One measurement: seconds of a step and of its gradients, and peak memory in MiB."""
    import warnings

    warnings.simplefilter("ignore")
    import torch

    from dpspec.contract import Facts, FrozenMap
    from dpspec.models.architectures import MODELS

    if mode != "dpspec":
        import opacus  # noqa: F401  counted among the libraries, not among what a step needs
    torch.set_num_threads(threads)
    facts = Facts(records=batch, features=prod(shape), classes=CLASSES, shape=tuple(shape))
    module_name, name = next(model.factory for model in MODELS if model.kind == kind).split(":")
    module = getattr(__import__(module_name, fromlist=[name]), name)(FrozenMap({}), facts).build(0)
    source = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *shape, generator=source).to(device)
    y = torch.randint(0, CLASSES, (batch,), generator=source).to(device)
    before = _peak(device)
    step, gradients = (ours if mode == "dpspec" else theirs(mode))(module, x, y)
    step()
    found = {"step": _seconds(step, repeats, device, threads), "more": _peak(device) - before, "peak": _peak(device)}
    return {**found, "gradients": _seconds(gradients, repeats, device, threads)}


def _seconds(work: Work, repeats: int, device: str, threads: int) -> float:
    import torch

    clock = time.process_time if device == "cpu" and threads == 1 else time.perf_counter
    found = []
    for _ in range(repeats):
        if device != "cpu":
            torch.cuda.synchronize()
        started = clock()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        found.append(clock() - started)
    return median(found)


def _peak(device: str) -> float:
    if device == "cpu":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    import torch

    return float(torch.cuda.max_memory_allocated()) / 2**20


def table(kind: str, shape: tuple[int, ...], batch: int, device: str, options: argparse.Namespace) -> None:
    """Measure all modes in turns and print their medians."""
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for _ in range(options.rounds):
        for mode in MODES:
            arguments = (mode, kind, list(shape), batch, device, options.threads, options.repeats)
            command = [sys.executable, __file__, "--one", json.dumps(arguments)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                found[mode].append(json.loads(done.stdout.splitlines()[-1]))
            else:
                print(f"{mode} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", file=sys.stderr)
    print(f"\n{kind}, {batch} records of {'x'.join(map(str, shape))}, {device}, {options.threads} thread(s)")
    print(f"{'':<12}{'step':>11}{'time':>8}{'gradients':>12}{'time':>8}{'peak':>9}{'of a step':>11}")
    print(f"{'':<12}{'records/s':>11}{'/ ours':>8}{'records/s':>12}{'/ ours':>8}{'MiB':>9}{'MiB':>11}")
    middle = {m: {k: median(r[k] for r in rows) for k in rows[0]} for m, rows in found.items() if rows}
    for mode, row in middle.items():
        ratios = [f"{row[key] / middle['dpspec'][key]:.2f}" for key in ("step", "gradients")]
        speeds = [f"{batch / row[key]:.0f}" for key in ("step", "gradients")]
        print(f"{mode:<12}{speeds[0]:>11}{ratios[0]:>8}{speeds[1]:>12}{ratios[1]:>8}", end="")
        print(f"{row['peak']:>9.0f}{row['more']:>11.0f}", flush=True)
    others = [row["step"] for mode, row in middle.items() if mode != "dpspec"]
    if others:
        ratio = min(others) / middle["dpspec"]["step"]
        print(f"dpspec's steps are {ratio:.2f} times as fast as those of the fastest mode of Opacus")


def main() -> None:
    """Print one table per model and device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", choices=[setting[0] for setting in SETTINGS])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*json.loads(options.one))))
        return
    if find_spec("opacus") is None:
        sys.exit("Opacus is not installed; there is nothing to compare with: pip install opacus==1.6.*")
    options.rounds, options.repeats = (1, 3) if options.quick else (5, 5)
    import torch

    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for kind, shape, few, many in SETTINGS:
            if options.model in (None, kind):
                table(kind, shape, few if device == "cpu" else many, device, options)


if __name__ == "__main__":
    main()
