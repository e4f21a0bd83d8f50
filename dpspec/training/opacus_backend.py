"""The backend ``opacus``: Opacus's PrivacyEngine as a user calls it, with observers. Requires the extra.

The results of ``make_private`` are used unmodified. Canary gradients are written into the ``grad_sample`` rows of
inserted records before the optimizer's step. Batch sizes and rates follow from the number of records without canaries.
"""

import copy
import warnings
from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from dpspec.contract import ModelError
from dpspec.contract.frozen import FrozenMap
from dpspec.contract.phase import Phase
from dpspec.contract.providers import Cancelled, TrainingJob
from dpspec.contract.sampling import Sampling
from dpspec.errors import UsageError
from dpspec.sampling.fixed import FixedSize
from dpspec.text import shortened
from dpspec.training.device import generator, tensors
from dpspec.training.gradients import flat_model
from dpspec.training.losses import cross_entropy
from dpspec.training.providers import chosen_optimizer, rates_of

try:
    from opacus import PrivacyEngine
    from opacus.data_loader import DPDataLoader
    from opacus.validators.errors import UnsupportedModuleError
except ModuleNotFoundError as error:
    raise ImportError("the backend 'opacus' needs opacus: pip install 'dpspec[opacus]'") from error


class OpacusTrainer:
    def train(self, job: TrainingJob) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Secure RNG turned off")
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            try:
                _Run(job).run()
            except (NotImplementedError, UnsupportedModuleError) as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ModelError(
                    f"Opacus cannot train this model: {shortened(reason, 300)}; use training.backend: native, or "
                    "layers that Opacus knows"
                ) from error


class _Run:
    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        if len(job.phases) != 1:
            text = "supports one phase: make_private takes one noise_multiplier and clip_norm"
            raise UsageError(f"backend 'opacus' {text}")
        phase = Phase.of(job.phases[0])
        if phase.clipping_scheme != "flat" or phase.noise != "gaussian":
            declared = f"{phase.clipping_scheme} and {phase.noise}"
            raise UsageError(f"backend 'opacus' supports flat clipping and gaussian noise, not {declared}")
        self._phase = phase
        self._real = len(job.x)
        self._steps = phase.steps
        # Canaries are blank rows, whose gradients are replaced.
        planted = job.canaries.count if job.canaries is not None else 0
        x = np.concatenate([job.x, np.zeros((planted, *job.x.shape[1:]), dtype=job.x.dtype)])
        y = np.concatenate([job.y, np.zeros(planted, dtype=job.y.dtype)])
        rows = TensorDataset(*tensors(x, y, "cpu"), torch.arange(len(x)))
        sampler = str(job.options.get("sampler", "poisson"))
        loader, poisson = _loader(rows, job.public_records, phase.sampling, sampler, job.seed)
        self._trained = copy.deepcopy(job.model).to(job.device)
        reduction = str(job.options["reduction"])
        self._model, self._optimizer, self._loader = PrivacyEngine().make_private(
            module=self._trained,
            optimizer=_optimizer(self._trained, job.options),
            data_loader=loader,
            noise_multiplier=phase.noise_multiplier,
            max_grad_norm=phase.clip_norm,
            poisson_sampling=poisson,
            loss_reduction=reduction,
            noise_generator=generator(job.seed, "noise", job.device),
        )
        if job.options.get("divisor", "records") == "declared":
            self._optimizer.expected_batch_size = job.expected_batch_size
        self._divisor = float(self._optimizer.expected_batch_size) if reduction == "mean" else 1.0
        if self._divisor == 0.0:
            raise UsageError("Opacus would divide by an expected batch size of 0; use divisor: declared")
        # Opacus divides by floor(records / batches) including canaries. The learning rate compensates for it, so that
        # the run can be compared with the spec; ``opacus_constants`` reports what the divisor reveals.
        self._correction = self._divisor / job.expected_batch_size if reduction == "mean" else 1.0
        self._noise: Tensor | None = None
        self._accountant = self._optimizer.step_hook
        self._optimizer.attach_step_hook(self._measure_noise)

    def run(self) -> None:
        job, rates = self._job, rates_of(self._job.options, self._steps)
        reduction = str(job.options["reduction"])
        self._release(0)
        epochs = chain.from_iterable(repeat(self._loader))
        for step, (x, y, indices) in enumerate(islice(epochs, self._steps), start=1):
            if job.cancelled is not None and job.cancelled():
                raise Cancelled
            for group in self._optimizer.param_groups:
                group["lr"] = rates(step) * self._correction
            self._optimizer.zero_grad(set_to_none=True)
            losses = (job.loss or cross_entropy)(self._model(x.to(job.device)), y.to(job.device))
            torch.autograd.backward(losses.mean() if reduction == "mean" else losses.sum())
            self._require_gradients(len(x))
            self._plant(indices)
            self._optimizer.step()
            for observer in job.observers:
                observer.sampled(step, indices.sort().values)
                if self._noise is not None:
                    observer.noised(step, self._noise)
            self._release(step)
            if job.progress is not None:
                job.progress(step, self._steps)
        flat_model.load(job.model, flat_model.flatten(self._trained).cpu())

    def _release(self, step: int) -> None:
        state = flat_model.flatten(self._trained)
        for observer in self._job.observers:
            observer.released(step, state)

    def _require_gradients(self, records: int) -> None:
        for name, parameter in self._trained.named_parameters():
            grad_sample = getattr(parameter, "grad_sample", None)
            rows = grad_sample[-1] if isinstance(grad_sample, list) and grad_sample else grad_sample
            if parameter.requires_grad and records and (rows is None or len(rows) != records):
                computed = "none" if rows is None else str(len(rows))
                raise ModelError(
                    f"Opacus computes {computed} of the {records} per-example gradients of parameter {name!r}, for "
                    "example because a positional embedding is used once for the whole batch; use training.backend: "
                    "native, which supports such layers"
                )

    def _plant(self, indices: Tensor) -> None:
        canaries = self._job.canaries
        canary_rows = (indices >= self._real).nonzero().squeeze(1)
        if canaries is None or len(canary_rows) == 0:
            return
        rows = canaries.gradients(indices[canary_rows] - self._real)
        parameters = self._optimizer.params
        pieces = torch.split(rows, [p.numel() for p in parameters], dim=1)
        for parameter, piece in zip(parameters, pieces, strict=True):
            shaped = piece.reshape(len(canary_rows), *parameter.shape).to(parameter.grad_sample)
            parameter.grad_sample[canary_rows.to(shaped.device)] = shaped

    def _measure_noise(self, optimizer: Any) -> None:
        """Measure after clipping and noising, before the step. Opacus's own hook runs first."""
        self._accountant(optimizer)
        pieces = [(p.grad * self._divisor - p.summed_grad.view_as(p)).flatten() for p in optimizer.params]
        self._noise = torch.cat(pieces).detach()


class _FixedSizeBatches:
    def __init__(self, records: int, batch_size: int, source: torch.Generator) -> None:
        self._sampler = FixedSize(records, batch_size)
        self._source = source

    def __len__(self) -> int:
        return max(1, self._sampler.records // self._sampler.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield self._sampler.draw(self._source).tolist()


def _loader(
    rows: TensorDataset, public: int, sampling: Sampling, sampler: str, seed: int
) -> tuple[DataLoader[tuple[Tensor, ...]], bool]:
    """The loader of a user with ``public`` records, and whether ``make_private`` makes it Poisson."""
    count, source = len(rows), generator(seed, "sampling")
    size, rate = sampling.batch_size, sampling.inclusion(public)
    if sampling.is_full:
        return DataLoader(rows, batch_size=count, generator=source), False
    if size is not None and sampling.is_fixed:
        return DataLoader(rows, batch_sampler=_FixedSizeBatches(count, size, source), generator=source), False
    batch = max(1, round(public * rate)) if size is None else size  # as a user sets it for a sampling rate
    if not (sampling.is_poisson or sampling.is_shuffled):
        raise UsageError(f"backend 'opacus' does not support the sampling scheme {sampling.scheme!r}")
    if size is not None or sampler == "shuffled":
        return DataLoader(rows, batch_size=batch, shuffle=True, generator=source), False
    if sampler == "weighted":
        labels = rows.tensors[1]
        weights = 1.0 / torch.bincount(labels)[labels]
        chosen = WeightedRandomSampler(weights.tolist(), count, generator=source)
        return DataLoader(rows, batch_size=batch, sampler=chosen, generator=source), False
    if sampler == "declared-rate":
        return DPDataLoader(rows, sample_rate=rate, generator=source), False
    if sampler != "poisson":
        raise UsageError(f"sampler must be poisson, declared-rate, shuffled or weighted, got {sampler!r}")
    if count == public:
        return DataLoader(rows, batch_size=batch, generator=source), True
    # With canaries: the loader that make_private would build for the real records.
    return DPDataLoader(rows, sample_rate=1.0 / -(-public // batch), generator=source), False


def _optimizer(model: nn.Module, options: FrozenMap) -> torch.optim.Optimizer:
    chosen = chosen_optimizer(options)
    kind, rate = chosen.pop("kind", "sgd"), float(options["learning_rate"])
    if kind == "adam":
        betas = chosen.pop("beta1", 0.9), chosen.pop("beta2", 0.999)
        return torch.optim.Adam(model.parameters(), lr=rate, betas=betas, **chosen)
    momentum = {"momentum": 0.9} if kind == "momentum" else {}
    return torch.optim.SGD(model.parameters(), lr=rate, **{**momentum, **chosen})
