"""The cost of one observation of all records, by kind of model. Run by hand:

    python tests/benchmarks/per_instance.py [--rounds N] [--threads N ...]

An observation gives the norms of all records and the predictions. It is compared with one gradient after another, and
with torch's gradient of the sum over as many records at once, without norms: the minimum for a pass through the model
forwards and backwards. CPU seconds, in turns, minimum of several.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from math import prod

import torch

from dpspec.contract import Facts, FrozenMap
from dpspec.models.architectures import MODELS
from dpspec.training.gradients.persample import FlatModel

#: Kind, options, shape of a record, records of a look, records of a loop, classes.
KINDS: tuple[tuple[str, dict[str, object], tuple[int, ...], int, int, int], ...] = (
    ("logistic", {}, (64,), 50_000, 200, 2),
    ("linear", {}, (64,), 50_000, 200, 10),
    ("mlp", {"hidden": [32]}, (64,), 50_000, 200, 10),
    ("mlp", {"hidden": [256]}, (784,), 10_000, 200, 10),
    ("tabular-mlp", {}, (14,), 10_000, 200, 2),
    ("cnn-small", {}, (1, 28, 28), 1_024, 200, 10),
    ("lenet5", {}, (1, 28, 28), 2_048, 200, 10),
    ("transformer", {}, (64,), 512, 50, 2),
    ("resnet20", {}, (3, 32, 32), 64, 12, 10),
    ("wide-resnet-16-4", {}, (3, 32, 32), 16, 6, 10),
)

#: Of the columns of the table.
WIDTHS = (28, 9, 8, 11, 9, 12)

#: Records of a pass of torch alone.
TOGETHER = 1024


def kinds(rounds: int) -> None:
    """A table for the number of threads that torch has now."""
    print(f"{torch.get_num_threads()} thread(s); microseconds of CPU time for one record")
    titles = zip(("", "look", "loop", "loop/look", "plain", "loop/plain"), WIDTHS, strict=True)
    print("".join(f"{title:>{width}}" for title, width in titles))
    for kind, options, shape, records, few, classes in KINDS:
        facts = Facts(
            records=records, features=prod(shape), classes=classes, shape=shape,
            vocabulary=5_000 if kind == "transformer" else None,
        )  # fmt: skip
        place, name = next(model.factory for model in MODELS if model.kind == kind).split(":")
        module = getattr(import_module(place), name)(FrozenMap(options), facts).build(0)
        source = torch.Generator().manual_seed(0)
        x = torch.randn(records, *shape, generator=source)
        if kind == "transformer":
            x = torch.randint(1, 5_000, (records, *shape), generator=source).float()
        y = torch.randint(0, classes, (records,), generator=source)
        model = FlatModel(module)
        state = model.initial()
        contenders: dict[str, tuple[Callable[[], object], int]] = {
            "look": (lambda: model.look(state, x, y), records),  # noqa: B023
            "loop": (lambda: one_by_one(module, x[:few], y[:few]), few),  # noqa: B023
            "plain": (lambda: plain(module, x, y), records),  # noqa: B023
        }
        found = dict.fromkeys(contenders, float("inf"))
        for _ in range(rounds):
            for what, (work, count) in contenders.items():
                begun = time.process_time()
                work()
                found[what] = min(found[what], (time.process_time() - begun) / count * 1e6)
        look, loop, alone = found.values()
        shown = (
            *(" ".join([kind, "x".join(map(str, shape))]), f"{look:.1f}", f"{loop:.0f}"),
            *(f"{loop / look:.1f}", f"{alone:.1f}", f"{loop / alone:.1f}"),
        )
        print("".join(f"{text:>{width}}" for text, width in zip(shown, WIDTHS, strict=True)), flush=True)


def plain(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """The gradient of the summed loss, nothing by record: forward and backward, as torch has them."""
    for some_x, some_y in zip(torch.split(x, TOGETHER), torch.split(y, TOGETHER), strict=True):
        loss = torch.nn.functional.cross_entropy(module(some_x), some_y, reduction="sum")
        torch.autograd.grad(loss, list(module.parameters()))


def one_by_one(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Norms from a gradient per record."""
    found = []
    for place in range(len(x)):
        loss = torch.nn.functional.cross_entropy(model(x[place : place + 1]), y[place : place + 1])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        found.append(float(torch.sqrt(torch.stack([part.square().sum() for part in parts]).sum())))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    for count in given.threads:
        torch.set_num_threads(count)
        kinds(given.rounds)
