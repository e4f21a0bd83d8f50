"""The suite for backends: observers see every step in order, with batches, clipping and noise as declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import Cancelled, FrozenMap, Json, Observer, TrainingJob
from dpspec.contract.sampling import SCHEMES, Sampling, poisson_sampling
from dpspec.language.blocks import training_block
from dpspec.testing.provider import ProviderSuite, filled, require, seeded

if TYPE_CHECKING:
    import torch

RECORDS = 20
FEATURES = 5
CLASSES = 3


def small_job(
    *,
    options: FrozenMap,
    steps: int,
    noise: float = 1.0,
    clip_norm: float = 1.0,
    sampling: Mapping[str, Json] | None = None,
    seed: int = 1,
    **fields: Any,
) -> TrainingJob:
    """A job of one phase on 20 seeded records; ``fields`` are more fields of :class:`~dpspec.contract.TrainingJob`."""
    import numpy as np
    import torch

    source = np.random.default_rng(5)
    y = np.arange(RECORDS, dtype=np.int64) % CLASSES
    centres = source.normal(size=(CLASSES, FEATURES)) * 2
    x = (centres[y] + source.normal(size=(RECORDS, FEATURES))).astype(np.float32)
    model = torch.nn.Linear(FEATURES, CLASSES)
    weights = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=weights) * 0.1)
    phase = {"steps": steps, "noise_multiplier": noise, "clip_norm": clip_norm}
    return TrainingJob(
        x=x,
        y=y,
        model=model,
        phases=(FrozenMap({**phase, "sampling": sampling or poisson_sampling(0.5)}),),
        options=options,
        expected_batch_size=RECORDS / 2,
        device="cpu",
        seed=seed,
        **fields,
    )


def parameters(model: torch.nn.Module) -> torch.Tensor:
    """Copy all trainable parameters into a vector (P,), in ``parameters()`` order."""
    import torch

    return torch.cat([p.detach().clone().flatten() for p in model.parameters() if p.requires_grad])


def canary(size: int) -> SimpleNamespace:
    """One canary whose gradient is 1000 along the third of ``size`` coordinates, for any model."""
    import torch

    row = 1000.0 * torch.eye(size)[2]
    return SimpleNamespace(count=1, gradients=lambda indices: row.to(indices.device).repeat(len(indices), 1))


class _Log(Observer):
    """Keeps a copy of every observation as (method, step, tensor)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, torch.Tensor]] = []
        for method in ("released", "sampled", "noised", "clipped"):
            setattr(self, method, partial(self._keep, method))

    def all(self, method: str) -> list[torch.Tensor]:
        """All observations of one method, in order."""
        return [value for name, _, value in self.calls if name == method]

    def _keep(self, method: str, step: int, value: torch.Tensor) -> None:
        self.calls.append((method, step, value.detach().cpu().clone()))


_STEPS = 6


class BackendSuite(ProviderSuite):
    """Subclass it and set ``kind``; ``options`` are training options to try in addition to the defaults.

    schemes: The sampling schemes of the backend, including ``poisson``; the suite tries it, and ``fixed`` and ``full``.
    """

    family: ClassVar[str] = "backend"
    options: ClassVar[Mapping[str, Json]] = {}
    schemes: ClassVar[frozenset[str]] = frozenset(SCHEMES)

    @classmethod
    def everybody(cls) -> Mapping[str, Json]:
        """A sampling that draws every record at each step."""
        full = poisson_sampling(1.0)
        return full if full["scheme"] in cls.schemes else {**poisson_sampling(0.5), "rate": 1.0}

    @classmethod
    def job(cls, *, training: Mapping[str, Json] | None = None, **changes: Any) -> TrainingJob:
        """A job of six Poisson steps of a linear model on 20 records, unless changed.

        training: More training options.
        """
        block = filled(training_block(cls.provider()), {**cls.options, **(training or {})})
        options = FrozenMap({key: value for key, value in block.items() if key != "backend"})
        return small_job(**{"options": options, "steps": _STEPS, **changes})

    @classmethod
    def trained(cls, **changes: Any) -> tuple[torch.Tensor, _Log]:
        """The final parameters (P,) of a job, and its observations."""
        log = _Log()
        job = cls.job(observers=(log,), **changes)
        cls.code()().train(job)
        return parameters(job.model), log

    def can(self, capability: str) -> bool:
        """Whether the descriptor declares a capability."""
        return capability in self.provider().capabilities

    def test_same_seed_gives_the_same_bytes(self) -> None:
        """Two runs of one seed are equal to the last bit; another seed gives another run."""
        import torch

        first, _ = self.trained(seed=1)
        torch.rand(1)
        again, _ = self.trained(seed=1)
        of_other_seed, _ = self.trained(seed=2)
        require(torch.equal(first, again), "two runs of one seed differ")
        require(not torch.equal(first, of_other_seed), "the seed does not decide the run")

    def test_global_generators_are_left_alone(self) -> None:
        """Training uses its own random generators, not the global ones."""
        job, trainer = self.job(), self.code()()
        seeded(lambda: trainer.train(job))

    def test_declared_capabilities_are_delivered_in_order(self) -> None:
        """Each declared log is shown once per step, steps counting from 1; iterates begin with the initial model.

        The logs are also complete with a canary and with each optimizer that the backend supports.
        """
        planted = {"canaries": canary(len(parameters(self.job().model)))} if self.can("gradient-canaries") else {}
        logs = [("", self.trained()[1])]
        for kind in ("sgd", "momentum", "adam"):
            training = {"optimizer": {"kind": kind}}
            try:
                logs.append((f" with optimizer {kind}", self.trained(training=training, **planted)[1]))
            except Exception:
                require(kind != "sgd", "plain descent is refused")
        steps = list(range(1, _STEPS + 1))
        methods = {"sampling-log": "sampled", "noise-log": "noised", "norm-log": "clipped"}
        expected_calls = {"iterates": ("released", [0, *steps])}
        expected_calls |= {capability: (method, steps) for capability, method in methods.items()}
        for where, log in logs:
            for capability, (method, expected) in expected_calls.items():
                called_steps = [step for name, step, _ in log.calls if name == method]
                fits = called_steps == expected or not self.can(capability)
                require(fits, f"{method} (capability {capability}) was called at steps {called_steps}{where}")
            order = [step for _, step, _ in log.calls]
            require(order == sorted(order), f"observers are called out of order{where}: {order}")

    def test_what_observers_see_has_the_right_shape(self) -> None:
        """States and noise have one entry per parameter; norms, float64, one per drawn record."""
        size = len(parameters(self.job().model))
        _, log = self.trained()
        for name, step, value in log.calls:
            length = size if name in ("released", "noised") else len(value)
            shape = tuple(value.shape)
            require(shape == (length,), f"{name}({step}) shows shape {shape}, not ({length},)")
        if self.can("norm-log"):
            kinds = {str(norms.dtype) for norms in log.all("clipped")}
            require(kinds == {"torch.float64"}, f"norms are {sorted(kinds)}, not float64")
        if self.can("norm-log") and self.can("sampling-log"):
            drawn, norms = ([len(v) for v in log.all(method)] for method in ("sampled", "clipped"))
            require(drawn == norms, f"batches of {drawn} records, but {norms} norms")

    def test_the_last_state_is_the_trained_model(self) -> None:
        """The last released state equals the module at the end."""
        import torch

        final, log = self.trained()
        if self.can("iterates"):
            last = log.all("released")[-1:]
            require(last and torch.equal(final, last[0]), "the last released state is not the trained model")
        require(not torch.equal(final, parameters(self.job().model)), "training leaves the model as it was")

    def test_batches_are_drawn_as_declared(self) -> None:
        """Poisson batches vary around rate * records, fixed ones have their size, full ones hold every record."""
        if not self.can("sampling-log"):
            return
        for scheme, options in SCHEMES.items():
            block: dict[str, Json] = {"scheme": scheme, **dict.fromkeys(options.takes, 7)}
            sampling = Sampling.of(block)
            if scheme in self.schemes and (sampling.is_fixed or sampling.is_full):
                size = sampling.batch_size or RECORDS
                for drawn in self.trained(sampling=block)[1].all("sampled"):
                    require(len(drawn) == size, f"{scheme} sampling drew {len(drawn)} records, not {size}")
                    require(len(set(drawn.tolist())) == size, f"{scheme} sampling drew a record twice")
        steps, rate = 200, 0.3
        batches = self.trained(sampling=poisson_sampling(rate), steps=steps)[1].all("sampled")
        require(all(len(set(b.tolist())) == len(b) for b in batches), "Poisson sampling drew a record twice")
        require(all(0 <= i < RECORDS for b in batches for i in b.tolist()), "a record was drawn that does not exist")
        sizes = [len(b) for b in batches]
        deviation = (steps * RECORDS * rate * (1 - rate)) ** 0.5
        off = abs(sum(sizes) - steps * RECORDS * rate) / deviation
        require(off < 6, f"Poisson batches have {sum(sizes) / steps:.2f} records on average, not {RECORDS * rate}")
        require(len(set(sizes)) > 2, f"Poisson batches always have {set(sizes)} records: that is another scheme")

    def test_empty_batches_survive(self) -> None:
        """A step with an empty batch adds its noise, and nothing becomes NaN."""
        import torch

        final, log = self.trained(sampling=poisson_sampling(1e-12))
        require(bool(torch.isfinite(final).all()), "empty batches make the model infinite or NaN")
        require(not torch.equal(final, parameters(self.job().model)), "a step with an empty batch must add its noise")
        for drawn in log.all("sampled"):
            require(len(drawn) == 0, f"{len(drawn)} records were drawn at rate 1e-12")

    def test_contributions_are_clipped(self) -> None:
        """No contribution has a norm above the clip norm, and larger gradients have exactly that norm."""
        if not self.can("norm-log"):
            return
        clip = 1e-3
        norms = [n for step in self.trained(clip_norm=clip)[1].all("clipped") for n in step.tolist()]
        require(norms, "no norms were shown")
        require(max(norms) <= clip * (1 + 1e-5), f"a contribution weighs {max(norms)}, above the clip norm {clip}")
        require(max(norms) >= clip * (1 - 1e-3), f"contributions above the clip norm {clip} weigh {max(norms)}")

    def test_noise_is_fresh_and_of_the_declared_size(self) -> None:
        """The noise on the sum has standard deviation noise_multiplier * clip_norm, drawn again at every step."""
        if not self.can("noise-log"):
            return
        import torch

        _, log = self.trained(steps=50, noise=3.0, clip_norm=0.5)
        noise = torch.stack(log.all("noised")).double()
        scaled = noise / 1.5
        count = scaled.numel()
        off = abs(float((scaled**2).sum()) - count) / (2 * count) ** 0.5
        require(off < 6, f"noise deviates {float(noise.std()):.4f}, declared 1.5")
        require(len(torch.unique(noise, dim=0)) == len(noise), "the same noise was added at two steps")

    def test_noise_of_the_declared_size_reaches_the_model(self) -> None:
        """Models of two seeds after one step on all records differ by noise of the declared size."""
        import torch

        ends = [self.trained(steps=1, noise=3.0, sampling=self.everybody(), seed=seed)[0] for seed in range(40)]
        job = self.job()
        divisor = job.expected_batch_size if job.options["reduction"] == "mean" else 1.0
        scale = float(job.options["learning_rate"]) / divisor
        noise = torch.stack([a - b for a, b in zip(ends[::2], ends[1::2], strict=True)]).double() / scale
        count, square = noise.numel(), float((noise**2).sum()) / (2 * 3.0**2)
        deviation = f"{3.0 * (square / count) ** 0.5:.4f} on the sum, declared 3"
        require(abs(square - count) / (2 * count) ** 0.5 < 6, f"the noise in the model deviates {deviation}")

    def test_it_says_where_its_constants_come_from(self) -> None:
        """If the descriptor says that divisor, rate and clip norm do not depend on the records, they do not."""
        provider = self.provider()
        require(
            provider.constants,
            "write constants=dps.Assumption(name='data-independent-hyperparameters', status='by-construction', "
            "text=...); status='false' if divisor, rate or clip norm depends on the records",
        )
        if isinstance(provider.constants, str) or provider.constants.status == "false":
            return
        import numpy as np
        import torch

        moved = []
        for copies in (1, 2):
            job = self.job(noise=0.0, sampling=self.everybody(), steps=1, records=RECORDS)
            before = parameters(job.model)
            x, y = (np.concatenate([rows] * copies) for rows in (job.x, job.y))
            self.code()().train(dataclasses.replace(job, x=x, y=y))
            moved.append(parameters(job.model) - before)
        twice = torch.allclose(2 * moved[0], moved[1], rtol=1e-4, atol=1e-6)
        require(twice, "twice the records do not move the model twice as far: some divisor counts the records")

    def test_parts_are_those_of_the_native_loop(self) -> None:
        """A backend with ``parts`` equals the native loop bit by bit: mechanisms replace parts of that loop."""
        if not self.can("parts"):
            return
        import torch

        from dpspec.training.loop.native import NativeTrainer

        final, _ = self.trained()
        job = self.job()
        NativeTrainer().train(job)
        require(torch.equal(final, parameters(job.model)), "the native loop trains another model on the same job")

    def test_without_noise_nothing_is_random_but_the_batches(self) -> None:
        """With noise_multiplier 0 and full batches, two seeds give the same run."""
        import torch

        first, second = (self.trained(noise=0.0, sampling=self.everybody(), seed=seed)[0] for seed in (1, 2))
        require(torch.allclose(first, second, rtol=1e-5, atol=1e-7), "the run adds noise without a declared noise")

    def test_gradient_canaries_appear_in_the_update(self) -> None:
        """A canary with the gradient 1000 * e_j moves coordinate j only, by one clipped gradient."""
        if not self.can("gradient-canaries"):
            return
        import torch

        plain, _ = self.trained(noise=0.0, sampling=self.everybody(), steps=1)
        planted, log = self.trained(noise=0.0, sampling=self.everybody(), steps=1, canaries=canary(len(plain)))
        moved = (planted - plain).abs()
        require(float(moved[2]) > 0, "the canary's gradient is not in the update")
        alone = float(torch.cat([moved[:2], moved[3:]]).max()) <= 1e-5 * float(moved[2])
        require(alone, "the canary moves coordinates that are not its own")
        for drawn in log.all("sampled"):
            fits = sorted(drawn.tolist()) == list(range(RECORDS + 1))
            require(fits, f"full sampling with one canary drew {sorted(drawn.tolist())}")
        for norms in log.all("clipped"):
            require(float(norms.max()) <= 1 + 1e-5, "the canary is not clipped")

    def test_declared_losses_are_trained(self) -> None:
        """A backend with ``losses`` descends on ``job.loss``: one unclipped full step without noise is its gradient."""
        if not self.provider().losses:
            return
        import torch

        def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (outputs - targets.unsqueeze(1)).square().sum(1)

        job = self.job(noise=0.0, sampling=self.everybody(), steps=1, clip_norm=1e4, loss=squares)
        loss = squares(job.model(torch.tensor(job.x)), torch.tensor(job.y)).sum()
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(job.model.parameters()))])
        before = parameters(job.model)
        self.code()().train(job)
        divisor = job.expected_batch_size if job.options["reduction"] == "mean" else 1.0
        expected = before - gradient * (float(job.options["learning_rate"]) / divisor)
        fits = torch.allclose(parameters(job.model), expected, rtol=1e-3, atol=1e-4)
        require(fits, "a step on another loss does not move the model along the gradient of job.loss")

    def test_a_cancelled_job_stops(self) -> None:
        """Once ``cancelled()`` is true, the next step raises ``Cancelled``."""
        log = _Log()
        try:
            self.code()().train(self.job(observers=(log,), cancelled=lambda: True, steps=1000))
        except Cancelled:
            require(len(log.all("released")) <= 3, "a cancelled job made more than two further steps")
            return
        raise AssertionError("a cancelled job ran to its end")

    def test_training_lowers_the_loss(self) -> None:
        """Without noise, full batches lower the loss of the small job."""
        import torch

        job = self.job(noise=0.0, sampling=self.everybody(), steps=30)

        def loss() -> float:
            with torch.no_grad():
                return float(torch.nn.functional.cross_entropy(job.model(torch.tensor(job.x)), torch.tensor(job.y)))

        before = loss()
        self.code()().train(job)
        after = loss()
        require(after < before, f"thirty steps moved the loss from {before} to {after}")
