"""Our own DP-SGD, with observers looking on."""

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpspec.contract import Cancelled


class OwnLoop:
    def train(self, job):
        model, x, y = job.model.to(job.device), torch.tensor(job.x).to(job.device), torch.tensor(job.y).to(job.device)
        source = torch.Generator(job.device).manual_seed(job.seed)
        per_record = vmap(
            grad(lambda p, x, y: cross_entropy(functional_call(model, p, (x[None],)), y[None])), in_dims=(None, 0, 0)
        )
        planted = job.canaries.count if job.canaries is not None else 0
        theta, (phase,) = parameters_to_vector(model.parameters()).detach(), job.phases
        rate, clip, sigma = phase["sampling"]["rate"], phase["clip_norm"], phase["noise_multiplier"]
        scale = job.options["learning_rate"] / (job.expected_batch_size if job.options["reduction"] == "mean" else 1)
        for observer in job.observers:
            observer.released(0, theta)
        for step in range(1, phase["steps"] + 1):
            if job.cancelled is not None and job.cancelled():
                raise Cancelled
            drawn = (torch.rand(len(x) + planted, generator=source, device=job.device) < rate).nonzero().squeeze(1)
            real, canaries = drawn[drawn < len(x)], drawn[drawn >= len(x)] - len(x)
            rows = torch.zeros(0, len(theta), device=job.device)
            if len(real):
                gradients = per_record(dict(model.named_parameters()), x[real], y[real])
                rows = torch.cat([g.flatten(1) for g in gradients.values()], dim=1).detach()
            if len(canaries):
                rows = torch.cat([rows, job.canaries.gradients(canaries)])
            rows = rows * (clip / rows.norm(dim=1, keepdim=True).clamp_min(clip))
            noise = sigma * clip * torch.randn(len(theta), generator=source, device=job.device)
            theta = theta - scale * (rows.sum(0) + noise)
            vector_to_parameters(theta, model.parameters())
            for observer in job.observers:
                observer.sampled(step, drawn)
                observer.clipped(step, rows.double().norm(dim=1))
                observer.noised(step, noise)
                observer.released(step, theta)
