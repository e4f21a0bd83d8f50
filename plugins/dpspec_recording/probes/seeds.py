"""Seeds of the generators that draw noise and batches.

The mistake: both get one seed, draw the same numbers, and the noise determines the batches::

    loader = DataLoader(data, generator=torch.Generator().manual_seed(1))
    make_private(..., data_loader=loader, noise_generator=torch.Generator().manual_seed(1))

or a generator is never seeded, so that it has the seed of every new ``torch.Generator()``, which all readers of torch's
source know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpspec_recording.folder.merging import Count, join_by, word
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.outcome import Outcome
from dpspec_recording.probes.probe import Probe, Training

if TYPE_CHECKING:
    from dpspec_recording.probes.judged_run import JudgedRun


@dataclass(frozen=True, kw_only=True)
class SeedFacts:
    """Steps with two generators of one seed, and with the public seed of an unseeded ``torch.Generator()``.

    Attributes:
        noise_device: The device of the noise's generator; empty if it is unknown.
        seed_bits: The smallest number of bits of its seed; 64 if it is unknown.
        draws: The smallest number of draws whose sum is one value: Opacus adds four with ``secure_mode``.
    """

    shared: Count = field(metadata=join_by(sum))
    public: Count = field(metadata=join_by(sum))
    noise_device: str = field(default="", metadata=join_by(word))
    seed_bits: Count = field(default=64, metadata=join_by(min))
    draws: Count = field(default=1, metadata=join_by(min))


#: The number of draws that Opacus adds for one value with ``secure_mode``.
_SECURE_DRAWS = 4

SHARED_SEED = Fault(
    name="shared-seed",
    assumption="independent-noise",
    title="steps whose noise and batch come from two generators with one seed",
    observed="measured",
    advice="Both draw the same numbers: give noise_generator another seed than the loader's, or neither.",
)
PUBLIC_SEED = Fault(
    name="public-seed",
    assumption="secret-randomness",
    title="steps with the seed of an unseeded torch.Generator(), which is public",
    observed="measured",
    advice="Call seed() of the generator, or manual_seed() with a secret number.",
)


class Seeds(Probe[SeedFacts]):
    """Compares the generator of Opacus' optimizer with the one of its sampler at each update.

    One generator for both does not repeat its numbers, so only two with one seed count. A sampler that is not Opacus'
    draws in another way: its generator is not compared.
    """

    name, kind, needs = "seeds", SeedFacts | None, "before_noise"

    def __init__(self) -> None:
        self._optimizer: Any = None
        self._sampler: Any = None
        self._shared = self._with_public = 0
        self._noise_device, self._seed_bits, self._draws = "", 64, _SECURE_DRAWS

    def start(self, training: Training) -> None:
        """Look up both generators."""
        import torch

        self._optimizer = training.private_optimizer
        sampler = training.script_parts.sampler
        self._sampler = sampler.batches if sampler is not None and sampler.rate is not None else None
        self._public, self._default = _seed(torch.Generator()), torch.default_generator
        self._on_host = self._optimizer.params[0].device.type == "cpu"

    def after_update(self) -> None:
        """Compare the seeds, which a script may change between steps."""
        noise: Any = self._optimizer.generator or (self._default if self._on_host else None)
        batches: Any = None if self._sampler is None else self._sampler.generator or self._default
        seeds = _seed(noise), _seed(batches)
        self._draws = min(self._draws, _SECURE_DRAWS if getattr(self._optimizer, "secure_mode", False) else 1)
        self._noise_device = self._optimizer.params[0].device.type
        if seeds[0] is not None:
            self._seed_bits = min(self._seed_bits, seeds[0].bit_length())
        if noise is not batches and seeds[0] is not None and seeds[0] == seeds[1]:
            # of other devices, one seed gives other numbers
            self._shared += noise.device.type == batches.device.type
        if self._public in seeds:
            self._with_public += any(
                generator.device.type == "cpu" for generator in (noise, batches) if _seed(generator) == self._public
            )

    def facts(self) -> SeedFacts:
        """The steps until now. The generators of a custom loop are not known."""
        return SeedFacts(
            shared=self._shared,
            public=self._with_public,
            noise_device=self._noise_device,
            seed_bits=self._seed_bits,
            draws=self._draws if self._noise_device else 1,
        )

    @staticmethod
    def judge(facts: SeedFacts | None, run: JudgedRun) -> Iterator[Outcome]:
        """No step may have one seed for both, or a public one."""
        if facts is not None:
            yield SHARED_SEED.none_found(facts.shared, f"of {run.steps} steps", None)
            yield PUBLIC_SEED.none_found(facts.public, f"of {run.steps} steps", None)


def _seed(generator: Any) -> int | None:
    try:
        return int(generator.initial_seed())
    except (AttributeError, RuntimeError, TypeError):
        return None
