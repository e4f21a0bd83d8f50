"""A team's own DP-SGD in plain torch: microbatches of a Poisson sample, per-record gradients by ``torch.func``.

The four calls on ``run`` are what a recording asks of such a loop. ``fault`` breaks it as people break theirs.
"""

import contextlib

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import dpspec

RECORDS, RATE, CLIP, SIGMA, STEPS, MICRO = 800, 0.05, 1.0, 1.0, 60, 16


def train(model, optimizer, x, y, run=None, fault=""):
    def loss(p, xi, yi):
        return nn.functional.cross_entropy(functional_call(model, p, (xi[None],)), yi[None])

    per_record = vmap(grad(loss), in_dims=(None, 0, 0))
    parameters = dict(model.named_parameters())
    rate = 2 * RATE if fault == "told-another-rate" else RATE
    order = torch.randperm(RECORDS)
    for step in range(STEPS):
        drawn = (torch.rand(RECORDS) < rate).nonzero().squeeze(1)
        if fault == "shuffled":
            size = int(RATE * RECORDS)
            start = step * size % RECORDS
            drawn = order[start : start + size]
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        chunks = [chunk for chunk in drawn.split(MICRO) if len(chunk)]
        norms = [torch.zeros(0)]
        for chunk in chunks:
            rows = per_record({n: p.detach() for n, p in parameters.items()}, x[chunk], y[chunk])
            if fault == "clipping-after-averaging":
                rows = {name: g.mean(0, keepdim=True) * len(chunk) for name, g in rows.items()}
            lengths = torch.stack([g.flatten(1).norm(dim=1) for g in rows.values()]).norm(dim=0)
            factors = (CLIP / lengths.clamp_min(1e-12)).clamp_max(1.0)
            for name, g in rows.items():
                total[name] += torch.einsum("i,i...", factors, g)
            norms.append(lengths * factors)
        deviation = SIGMA * CLIP / (len(chunks) or 1) ** 0.5 if fault == "noise-forgotten" else SIGMA * CLIP
        noise = {name: deviation * torch.randn_like(p) for name, p in parameters.items()}
        for name, p in parameters.items():
            p.grad = (total[name] + noise[name]) / (RATE * RECORDS)
        optimizer.step()
        if fault == "wrong-optimizer":
            with torch.no_grad():
                for name, p in parameters.items():
                    p -= 0.01 * total[name] / (RATE * RECORDS)
        if run is not None:
            run.sampled(drawn)
            run.clipped(torch.cat(norms))
            run.summed(total.values())
            run.noised(noise.values())
            run.stepped()


def main(folder=None, fault="", seed=0):
    torch.manual_seed(seed)
    x = torch.randn(RECORDS, 16)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    meant = {"noise_multiplier": SIGMA, "clip_norm": CLIP, "rate": RATE, "records": RECORDS}
    recorder = dpspec.record(folder, model=model, optimizer=optimizer, **meant) if folder else contextlib.nullcontext()
    with recorder as run:
        train(model, optimizer, x, y, run, fault)
    return model, None
