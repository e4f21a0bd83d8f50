"""A plain loop without Opacus that reports its steps, correct or with a fault."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Raw
from torch import nn

import dpspec
from dpspec_recording.folder.events import encode
from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.folder.writer import RunWriter
from dpspec_recording.observers.all import OBSERVERS
from support.jobs import kill

RECORDS, RATE, SIZE = 500, 0.1, 50


def plain_loop(
    folder: Any,
    steps: int = 20,
    *,
    noises: Sequence[float] = (1.0,),
    scales: Sequence[float] = (1.0, 1.0),
    draw: str = "poisson",
    norm: float = 1.0,
    rate: float | None = RATE,
    seed: int = 1,
    start: Sequence[torch.Tensor] = (),
    saves: bool = False,
    killed: bool = False,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    before: Callable[[torch.optim.Optimizer], None] | None = None,
    eighth: Mapping[str, float] | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Record ``steps`` steps at each noise multiplier, and return the parameters.

    scales: of the added noise in the two tensors of the model. draw: ``poisson``, ``randperm`` or ``epochs``. norm: the
    reported norm of each contribution, in clip norms. rate: the declared one. start: the initial parameters. saves:
    whether ``state_dict()`` is called, before the report of each step and at the end. killed: within the block. make:
    the optimizer, of the parameters. before: acts before each of its steps. eighth: another clip norm or divisor of the
    eighth step.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 8, bias=False), nn.Linear(8, 5, bias=False))
    optimizer, sizes = make(model.parameters(), lr=0.1), [320, 40]
    meant: dict[str, Any] = {"noise_multiplier": 1.0, "clip_norm": 2.0, "rate": rate, "records": RECORDS}
    with torch.no_grad():
        for p, q in zip(model.parameters(), start, strict=False):
            p.copy_(q)
    recorder = dpspec.record(folder, model=model, optimizer=optimizer, **meant, **options)
    with contextlib.nullcontext(recorder.__enter__()) if killed else recorder as run:
        for sigma in noises:
            run.declare(noise_multiplier=sigma)
            for step in range(steps):
                place, given = SIZE * (step % 10), {"clip_norm": 2.0, "divisor": SIZE}
                given |= (eighth or {}) if step == 7 else {}
                clip = given["clip_norm"]
                run.declare(clip_norm=clip)
                order = torch.randperm(RECORDS) if draw != "epochs" or place == 0 else order  # noqa: F821
                drawn = order[place : place + SIZE] if draw == "epochs" else order[:SIZE]
                drawn = (torch.rand(RECORDS) < RATE).nonzero().squeeze(1) if draw == "poisson" else drawn
                total = torch.full((360,), 0.1)
                noise = clip * sigma * torch.randn(360) * torch.repeat_interleave(*map(torch.tensor, (scales, sizes)))
                for p, part in zip(model.parameters(), torch.split(total + noise, sizes), strict=True):
                    p.grad = part.view_as(p) / given["divisor"]
                if before is not None:
                    before(optimizer)
                optimizer.step()
                if saves:
                    model.state_dict()  # too early: the step is not reported
                run.sampled(drawn)
                run.clipped(torch.full((len(drawn),), clip * norm))
                run.summed(total)
                run.noised(noise)
                run.stepped()
        if saves:
            model.state_dict()
    if killed:
        kill(recorder)
    return [p.detach().clone() for p in model.parameters()]


def rebuilt(
    folder: Path,
    place: Path,
    change: Any = None,
    end: Any = None,
    scores: bytes | None = None,
    canaries: int = 400,
) -> Path:
    """Write a folder with changed content. change: of header and steps. end: other facts of probes."""
    read = RunFolder.open(folder, OBSERVERS)
    content = read.header, [one for one in read.steps() if hasattr(one, "drawn")], list(read.internal())
    header, public, internal = content if change is None else change(*content)
    facts = next(one.written() for one in read.steps() if isinstance(one, Facts))
    writer = RunWriter(place, header)
    writer.write(*zip(public, internal, strict=True))
    changed = {name: Raw(encode(fact)) for name, fact in (end or {}).items()}
    writer.end(msgspec.structs.replace(facts, observed={**facts.observed, **changed}))
    if scores is not None:
        writer.scored(scores, canaries=canaries, final=True)
    return place
