"""This version beside an older one and beside other programs, on the same questions. Run by hand:

    python tests/benchmarks/peers.py [--before CHECKOUT] [--rounds N] [--limit SECONDS] [--only WORD]

Every measurement is a process of its own on one thread and counts CPU seconds without imports. The sides take turns,
and the least of all rounds counts; machines are noisy, so read the ratios. The seed is 0 for models and data, 1 for
trainings and audits; accounting knows no chance.

Beside ours stands what somebody would use instead: dp-accounting at its default grid and at the coarsest one of equal
accuracy (one-sided and not certified; see ``accounting.py``), Opacus in its modes, torch without privacy, one gradient
after the other, and for an audit the training that it audits. ``--before`` names a checkout of an older version, back
to 0.1.0 (commit 9979295); what it cannot do is left out, and why goes to standard error. What whole commands cost is
in the table of ``commands.py``, which runs at the end; ``matrix.py`` measures what a second core is worth.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from importlib import import_module
from math import prod
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import accounting
import training

ROOT = Path(__file__).parents[2]

#: The audit of a training of images.
AUDIT = """\
dpspec: 1
name: price
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {{scheme: poisson, rate: 0.04}}
  steps: {steps}
data: {{kind: synthetic, pattern: images, records: 3000, features: 784, classes: 10}}
model: {model}
training: {{learning_rate: 0.1}}
threat_model: {{access: {access}}}
claims: [{{id: one, kind: approx-dp, epsilon: 100.0, delta: 1e-5}}]
audit: {{method: one-run, canary: {{space: gradient, count: 1000}}, seed: 1{more}}}
"""


def numerics(kind: str, arguments: list[Any], width: float) -> float:
    """One epsilon in both directions, of groups of k or of fifty noises one after the other."""
    from scipy.stats import binom

    loss = _first("dpspec.accounting:PrivacyLoss", "dpspec.accounting.pld:PrivacyLoss")
    if kind == "sigmas":
        rate, least, more, steps, delta = arguments
        parts = [loss.gaussian(least + more * i, rate=rate).compose(steps) for i in range(50)]
    else:
        size, rate, sigma, steps, delta = arguments
        members = list(range(size + 1))
        parts = [loss.mixture(members, binom.pmf(members, size, rate), sigma).compose(steps)]
    return _least(lambda: reduce(add, parts).epsilon(delta, width=width))


def dp_accounting(kind: str, arguments: list[Any], grid: float) -> float:
    """dp-accounting's epsilon on a grid."""
    return float(accounting.theirs(kind, arguments, grid)["seconds"])


def baselines(width: float) -> float:
    """Fifty baselines for the training on ImageNet in Kaissis et al. 2023."""
    privacy_loss = _first("dpspec.accounting:PrivacyLoss", "dpspec.accounting.pld:PrivacyLoss")
    loss = privacy_loss.gaussian(2.5, rate=16_384 / 1_281_167).compose(71_589)
    return _least(lambda: loss.reros([10.0 ** (-7.0 * i / 49) for i in range(50)], width=width))


def step(kind: str, options: dict[str, Any], shape: list[int], batch: int) -> float:
    """A step of DP-SGD by the native backend, of a whole batch."""
    module, x, y = _built(kind, options, shape, batch)
    run, parts = _training(module, x, y, {"steps": 1, "sampling": {"scheme": "full"}}, batch)
    return _least(lambda: run(parts, 1), 5)


def opacus(mode: str, kind: str, options: dict[str, Any], shape: list[int], batch: int) -> float:
    """The same step by Opacus."""
    return _least(training.theirs(mode)(*_built(kind, options, shape, batch))[0], 5)


def plain_torch(kind: str, options: dict[str, Any], shape: list[int], batch: int) -> float:
    """The same step without privacy."""
    import torch

    module, x, y = _built(kind, options, shape, batch)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def work() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    return _least(work, 5)


def look(kind: str, shape: list[int], records: int) -> float:
    """Norms of all records, and the classes that the model predicts."""
    import torch

    module, x, y = _built(kind, {}, shape, records)
    model = _first("dpspec.training.gradients.persample:FlatModel", "dpspec.training.persample:FlatModel")(module)
    state = model.initial()

    def apart() -> None:  # before there was a look, in the chunks of then
        model.look(state, x, y)
        with torch.no_grad():
            for some in torch.split(x, 4096):
                module(some).argmax(1)

    return _least((lambda: model.look(state, x, y)) if hasattr(model, "look") else apart, 3)


def loop(kind: str, shape: list[int], records: int) -> float:
    """One gradient after the other: of a tenth of the records, times ten."""
    import torch

    module, x, y = _built(kind, {}, shape, records)

    def work() -> None:
        for i in range(records // 10):
            loss = torch.nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
            torch.autograd.grad(loss, list(module.parameters()))

    return 10.0 * _least(work, 3)


def trained(kind: str, options: dict[str, Any]) -> float:
    """The training of ``AUDIT`` with nobody looking on."""
    module, x, y = _built(kind, options, [1, 28, 28], 3000)
    run, parts = _training(module, x, y, {"steps": 60, "sampling": {"scheme": "poisson", "rate": 0.04}}, 120)
    return _least(lambda: run(parts, 60), 2)


def audit(model: str, access: str, more: str) -> float:
    """What 60 steps of an audit with 1,000 canaries take: the whole command with 64 of them, less that with 4."""
    taken = []
    for steps in (4, 64):
        with tempfile.TemporaryDirectory() as folder:
            text = AUDIT.format(model=model, access=access, more=more, steps=steps)
            (Path(folder) / "price.yaml").write_text(text, "utf-8")
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "dpspec", "run", "price.yaml", "--store", "store"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"dpspec run ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return taken[1] - taken[0]


MEASURES: dict[str, Callable[..., float]] = {
    one.__name__: one
    for one in (numerics, dp_accounting, baselines, step, opacus, plain_torch, look, loop, trained, audit)
}


def _first(*places: str) -> Any:
    """What stands at the first of these places (module:name) that there is: modules have moved since 0.1.0."""
    for place in places:
        module, name = place.split(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"there is none of {', '.join(places)}")


def _built(kind: str, options: dict[str, Any], shape: list[int], records: int) -> tuple[Any, Any, Any]:
    """A model with its first weights, random records and classes."""
    import torch

    from dpspec.contract import Facts, FrozenMap
    from dpspec.models.providers import MODELS

    facts = Facts(records=records, features=prod(shape), classes=10, shape=tuple(shape))
    module, name = next(model.factory for model in MODELS if model.kind == kind).split(":")
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(records, *shape, generator=source), torch.randint(0, 10, (records,), generator=source)
    return getattr(import_module(module), name)(FrozenMap(options), facts).build(0), x, y


def _training(module: Any, x: Any, y: Any, phase: dict[str, Any], batch: float) -> tuple[Any, Any]:
    """The native backend's loop, and what it takes."""
    from dpspec.contract import FrozenMap, TrainingJob

    run = _first("dpspec.training.loop.dpsgd:run", "dpspec.training.dpsgd:run")
    parts_of = _first("dpspec.training.loop.native:parts_of", "dpspec.training.native:parts_of")
    phases = (FrozenMap({"noise_multiplier": 1.0, "clip_norm": 1.0, **phase}),)
    options = FrozenMap({"learning_rate": 0.1, "reduction": "mean"})
    job = TrainingJob(
        x=x.numpy(),
        y=y.numpy(),
        model=module,
        phases=phases,
        options=options,
        expected_batch_size=batch,
        device="cpu",
        seed=1,
    )
    return run, parts_of(job)


def _least(work: Callable[[], object], times: int = 1) -> float:
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


class Row(NamedTuple):
    """A line: what is measured of each checkout, and, found when the line is made, of others in this one."""

    name: str
    measure: str
    arguments: list[Any]
    others: Callable[[], Mapping[str, tuple[str, list[Any]]]]


MODES = ("hooks", "functorch", "ew", "ghost")


def _grids(kind: str, arguments: list[Any], width: float, limit: float) -> dict[str, tuple[str, list[Any]]]:
    """dp-accounting at its default grid, and at the coarsest that is as accurate as we are, if it is found in time."""
    most = accounting.measure("ours", [kind, arguments, width])["upper"]
    fair = accounting.search(sys.executable, "fair", [kind, arguments, most], limit)
    grids = {"default": accounting.DEFAULT, **({"equal accuracy": fair["grid"]} if fair and fair["enough"] else {})}
    return {f"dp-accounting, {name}": ("dp_accounting", [kind, arguments, grid]) for name, grid in grids.items()}


def rows(limit: float) -> Iterator[Row]:
    """All lines, in their order."""
    for name, kind, arguments, width, compared, _ in accounting.SETTINGS:
        if name in ("k=1", "k=4", "k=16", "50 sigmas"):
            others = partial(_grids, kind, arguments, width, limit) if compared else dict
            yield Row(f"epsilon, {name}, to {width:g}", "numerics", [kind, arguments, width], others)
    for width in (1e-3, 1e-5):
        yield Row(f"50 baselines, ImageNet, to {width:g}", "baselines", [width], dict)
    steps: tuple[tuple[str, dict[str, Any], list[int], int], ...] = (
        ("mlp", {"hidden": [1024, 1024, 1024, 1024]}, [784], 256),
        ("cnn-small", {}, [1, 28, 28], 256),
        ("lenet5", {}, [1, 28, 28], 256),
        ("resnet20", {}, [3, 32, 32], 64),
        ("wide-resnet-16-4", {}, [3, 32, 32], 16),
    )
    for kind, options, shape, batch in steps:
        setting = [kind, options, shape, batch]
        beside = {"plain torch": ("plain_torch", setting)}
        beside |= {f"Opacus {mode}": ("opacus", [mode, *setting]) for mode in MODES}
        yield Row(f"step of DP-SGD, {kind}, {batch}", "step", setting, partial(dict, beside))
    for kind, shape, records in (
        ("mlp", [784], 10_000),
        ("cnn-small", [1, 28, 28], 2_000),
        ("lenet5", [1, 28, 28], 4_000),
        ("resnet20", [3, 32, 32], 100),
        ("wide-resnet-16-4", [3, 32, 32], 20),
    ):
        setting = [kind, shape, records]
        yield Row(f"look at {records} records, {kind}", "look", setting, partial(dict, loop=("loop", setting)))
    for kind, options in (("mlp", {"hidden": [64]}), ("cnn-small", {})):
        model = json.dumps({"kind": kind, **options})
        for way, access, more in (
            ("all iterates", "all-iterates", ""),
            ("estimated", "all-iterates", ", expected_from: 120"),
            ("transcript", "transcript", ""),
        ):
            training_alone = {"its training": ("trained", [kind, options])}
            yield Row(f"audit of {kind}, {way}", "audit", [model, access, more], partial(dict, training_alone))


def measured(checkout: Path, what: str, arguments: list[Any]) -> float | None:
    """One measurement in a process that imports this checkout; None where it cannot be done, which is said."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'plugins'}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--one", json.dumps([what, arguments])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return float(done.stdout.splitlines()[-1])
    print(f"{checkout.name}, {what}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", file=sys.stderr)
    return None


def line(row: Row, checkouts: list[Path], rounds: int) -> str:
    """A row, measured in turns."""
    contenders = {str(place): (place, row.measure, row.arguments) for place in checkouts}
    others = row.others()
    contenders |= {name: (ROOT, *other) for name, other in others.items()}
    least: dict[str, float] = {}
    for _ in range(rounds):
        for name, (place, what, arguments) in contenders.items():
            found = measured(place, what, arguments)
            if found is not None:
                least[name] = min(found, least.get(name, found))
    now, was = least.get(str(ROOT)), least.get(str(checkouts[0]))
    if now is None:
        return f"{row.name:<36}  could not be measured"
    before = f"{was:9.3f}{was / now:7.1f}x" if was is not None and len(checkouts) > 1 else f"{'':17}"
    ratios = {name: least[name] / now for name in others if name in least}
    beside = ", ".join(f"{name} {f'{r:.2f}' if r > 0.5 else f'1/{1 / r:.1f}'}" for name, r in ratios.items())
    return f"{row.name:<36}{now:9.3f}{before}   {beside}"


def main() -> None:
    """Print the table, and then that of whole commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of an older version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds for finding a grid of equal accuracy")
    parser.add_argument("--only", default="", metavar="WORD", help="rows whose name has this word alone")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, arguments = json.loads(options.one)
        print(MEASURES[what](*arguments))
        return
    checkouts = [*([options.before.resolve()] if options.before else []), ROOT]
    print(f"{'CPU seconds':<36}{'now':>9}{'before':>9}{'/ now':>8}   others / now")
    for row in rows(options.limit):
        if options.only in row.name:
            print(line(row, checkouts, options.rounds), flush=True)
    if not options.only:
        against = ["--against", str(options.before)] if options.before else []
        command = [sys.executable, str(Path(__file__).with_name("commands.py")), "--rounds", str(options.rounds)]
        subprocess.run([*command, *against], check=True)


if __name__ == "__main__":
    main()
