"""Seeds of the generators that draw noise and batches.

The mistakes: an adversary tries small seeds, and subtracts the noise of the right one::

    torch.manual_seed(42)
    model, optimizer, loader = engine.make_private(...)

or noise and batches get one seed, so that the noise determines the batches::

    loader = DataLoader(data, generator=torch.Generator().manual_seed(seed))
    make_private(..., data_loader=loader, noise_generator=torch.Generator().manual_seed(seed))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.json_records import Count

#: Seeds below this, or as close below 2**64, count as guessable. A seed of the system is there with probability 2**-20.
_GUESSABLE = 2**32

#: The seed of a new ``torch.Generator``.
_DEFAULT = 67280421310721

#: The largest number of seeds that are kept.
_MOST_SEEDS = 100

#: The number of draws that Opacus adds for one value with ``secure_mode``.
_SECURE_DRAWS = 4

RULE = Rule(
    name="guessable-seed",
    summary="a generator of torch from which noise or batches follow was seeded with a small integer, or never; or "
    "noise and batches come from two generators with one seed",
    why="Noise and batches follow from the seed: an adversary who guesses it subtracts the noise.",
    fix="Remove the seed, or call torch.seed() before make_private; seed a generator of torch by its method seed().",
    source="https://github.com/fedbiomed/fedbiomed/pull/794",
    code="dpspec_recording.observers.noise.guessable_seed:GuessableSeed",
)


@dataclass(frozen=True, kw_only=True)
class GuessableSeeds:
    """Seeds of generators of torch.

    Attributes:
        noise, batches: Guessable ones, from which noise or batches follow, of torch's own or Opacus' generators.
        loop_noise, loop_batches: Guessable ones of a custom loop's own generators.
        used: Guessable ones of torch's default generator if a custom loop uses it; whether for noise is not known.
        shared: The number of steps whose noise and batch come from two generators with one seed.
        noise_device: The device of the noise's generator of Opacus; empty if it is unknown.
        seed_bits: The smallest number of bits of its seed; 64 if it is unknown.
        draws: The smallest number of draws whose sum is one value: Opacus adds four with ``secure_mode``.
    """

    noise: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    loop_noise: tuple[int, ...] = ()
    loop_batches: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    shared: Count = 0
    noise_device: str = ""
    seed_bits: Count = 64
    draws: Count = 1


class GuessableSeed(TrainingRule[GuessableSeeds]):
    kind, early = GuessableSeeds, True

    def __init__(self) -> None:
        self._private: Any = None
        self._sampler: Any = None
        self._drawing: Any = None
        self._state: Any = None
        self._noise, self._batches, self._used = list[int](), list[int](), list[int]()
        self._loop_noise, self._loop_batches = list[int](), list[int]()
        self._has_traced_noise = False
        self._shared, self._seed_bits, self._draws = 0, 64, _SECURE_DRAWS

    def start(self, setup: RuleSetup) -> None:
        import torch

        from dpspec_recording.watching import generators

        self._drawing = generators  # an import at each step takes longer than its seeds
        self._private, self._sampler = setup.private_optimizer, generators.drawing_sampler(setup.loader)
        self._state = torch.get_rng_state()

    def after_step(self, step: RuleStep) -> None:
        import torch

        default, noise = torch.default_generator, None
        batches = None if self._sampler is None else self._drawing.generator_of_batches(self._sampler)
        if self._private is not None:
            noise = self._drawing.generator_of_noise(self._private)
            self._seed_bits = min(self._seed_bits, noise.initial_seed().bit_length())
            self._draws = min(self._draws, _SECURE_DRAWS if getattr(self._private, "secure_mode", False) else 1)
            self._shared += batches is not noise and self._have_one_seed(noise, batches)
        else:
            if step.number == 1 and not torch.equal(self._state, torch.get_rng_state()):
                _add_guessable(self._used, [default])
            self._has_traced_noise |= bool(step.noise_generators)
            noise = default if default in step.noise_generators and _are_guessable(step.noise_generators) else None
            of_batches = default in step.batch_generators and _are_guessable(step.batch_generators)
            batches = default if batches is None and of_batches else batches
            for seeds, drawing in (
                (self._loop_noise, step.noise_generators),
                (self._loop_batches, step.batch_generators),
            ):
                if _are_guessable(drawing):
                    _add_guessable(seeds, [generator for generator in drawing if generator is not default])
        _add_guessable(self._noise, [noise])
        _add_guessable(self._batches, [None if batches is noise else batches])

    def _have_one_seed(self, noise: Any, batches: Any) -> bool:
        """Of other devices, one seed gives other numbers; a sampler that is not Opacus' draws in another way."""
        if batches is None or not hasattr(self._sampler, "sample_rate") or noise.device.type != batches.device.type:
            return False
        return bool(noise.initial_seed() == batches.initial_seed())

    def facts(self) -> GuessableSeeds:
        return GuessableSeeds(
            noise=tuple(self._noise),
            batches=tuple(self._batches),
            loop_noise=tuple(self._loop_noise),
            loop_batches=tuple(self._loop_batches),
            used=() if self._has_traced_noise else tuple(self._used),
            shared=self._shared,
            noise_device="" if self._private is None else self._private.params[0].device.type,
            seed_bits=self._seed_bits,
            draws=1 if self._private is None else self._draws,
        )

    @staticmethod
    def caution(facts: GuessableSeeds, run: RuleRun) -> str:
        seeds = _calls(facts.noise, facts.loop_noise)
        consequence = "An adversary who knows the script can recompute the noise."
        if not seeds:
            seeds = _calls(facts.batches, facts.loop_batches)
            consequence = "An adversary who knows the script can recompute the batches: sampling amplifies nothing."
        if not seeds:
            seeds = _calls(facts.used, ())
            consequence = "If noise or batches come from it, an adversary who knows the script can recompute them."
        if not seeds:
            return (
                "Noise and batches come from two generators with one seed, which draw the same numbers: the noise "
                "shows the batches."
                if facts.shared
                else ""
            )
        named = ", ".join(seeds[:3]) + (f" and {len(seeds) - 3} more" if len(seeds) > 3 else "")
        state = "is the state" if len(seeds) == 1 else "are states"
        return f"{named} {state} of a generator of the training. {consequence}"


def _calls(seeds: Sequence[int], of_loop: Sequence[int]) -> list[str]:
    """The code that seeds torch's default generator, and a custom loop's own one."""
    return [
        *(f"torch.manual_seed({seed})" for seed in seeds),
        *(f"torch.Generator().manual_seed({seed})" for seed in of_loop[:1]),
    ]


def _add_guessable(seeds: list[int], generators: Sequence[Any]) -> None:
    """Append the seeds of generators that are guessable and new."""
    for generator in generators:
        seed = None if generator is None else generator.initial_seed()
        if seed is not None and _is_guessable(seed) and seed not in seeds[-1:] and len(seeds) < _MOST_SEEDS:
            seeds.append(seed)


def _is_guessable(seed: int) -> bool:
    """Whether a seed is small, or public."""
    return seed < _GUESSABLE or seed > 2**64 - _GUESSABLE or seed == _DEFAULT


def _are_guessable(generators: Sequence[Any]) -> bool:
    """Whether all seeds are guessable: one secret seed makes the numbers of all generators secret."""
    return all(_is_guessable(generator.initial_seed()) for generator in generators)
