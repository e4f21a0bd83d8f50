"""Whether noise and batches follow from a seed that an adversary can guess.

The mistake: an adversary tries small seeds, and subtracts the noise of the right one::

    torch.manual_seed(42)
    model, optimizer, loader = engine.make_private(...)
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule

#: Seeds below this, or as close below 2**64, count as guessable. A seed of the system is there with probability 2**-20.
_GUESSABLE = 2**32

#: Seeds with which the states of the global generators of NumPy and Python are compared, because these do not tell
#: their seed: small ones, years, and usual ones.
_COMPARED: tuple[int, ...] = (*range(1024), *range(1990, 2036), 1234, 1337, 3407, 12345, 31337, 123456)

#: The code that seeds global generators, and the own ones of a custom loop.
_SEEDED = {
    "torch": "torch.manual_seed({})",
    "numpy.random": "numpy.random.seed({})",
    "random": "random.seed({})",
}
_OWN = {"torch": "torch.Generator().manual_seed({})"}

#: By the number of units of a clock in a second, the seconds around the present in which a seed is a time. A seed of 64
#: bits is one with probability 1e-8.
_CLOCKS = {1: 86_400, 10**3: 86_400, 10**6: 3600, 10**9: 60}

#: The seed of a new ``torch.Generator``.
_DEFAULT = 67280421310721

RULE = Rule(
    name="guessable-seed",
    summary="torch, or the global generator of NumPy or Python, was seeded with a small integer, or torch with the "
    "time, and noise or batches follow",
    why="Noise and batches follow from the seed: an adversary who guesses it subtracts the noise.",
    fix="Remove the seed, or call torch.seed() before make_private; seed a generator of torch by its method seed().",
    code="dpspec_recording.rules.guessable_seed:GuessableSeed",
)


@dataclass(frozen=True, kw_only=True)
class GuessableSeeds:
    """Guessable seeds from which noise or batches follow.

    Attributes:
        noise, batches: Of generators of torch.
        loop_noise, loop_batches: By the kind of generator, of a custom loop's own ones.
        used: By library, of global generators that a custom loop uses; whether for noise or batches is not known.
    """

    noise: tuple[int, ...]
    batches: tuple[int, ...]
    loop_noise: Mapping[str, int]
    loop_batches: Mapping[str, int]
    used: Mapping[str, int] = field(default_factory=dict)


class GuessableSeed(TrainingRule[GuessableSeeds]):
    kind, early = GuessableSeeds, True

    def __init__(self) -> None:
        self._private: Any = None
        self._sampler: Any = None
        self._generators: Any = None
        self._state: Any = None
        self._host_states: dict[str, bytes] = {}
        self._used: dict[str, int] = {}
        self._has_traced_noise = False
        self._noise: list[int] = []
        self._batches: list[int] = []
        self._loop_noise: dict[str, int] = {}
        self._loop_batches: dict[str, int] = {}

    def start(self, setup: RuleSetup) -> None:
        import torch

        from dpspec_recording.watching import generators

        self._generators = generators  # an import at each step takes longer than its seeds
        self._private, self._sampler = setup.private_optimizer, generators.drawing_sampler(setup.loader)
        if self._private is None:
            self._state, self._host_states = torch.get_rng_state(), _states()

    def after_step(self, step: RuleStep) -> None:
        batches = None if self._sampler is None else self._generators.generator_of_batches(self._sampler)
        noise: Any = None
        if self._private is not None:
            noise = self._generators.generator_of_noise(self._private)
        else:
            import torch

            self._note_loop(step)
            noise = torch.default_generator if _follow_from_default(step.noise_generators) else None
            if batches is None and _follow_from_default(step.batch_generators):
                batches = torch.default_generator
        _add_guessable(self._noise, noise)
        _add_guessable(self._batches, None if batches is noise else batches)

    def _note_loop(self, step: RuleStep) -> None:
        import torch

        if step.number == 1:
            now = _states()
            used = [name for name, state in self._host_states.items() if state != now[name]]
            self._used = {name: seed for name in used if (seed := _seed_of(name, self._host_states[name])) is not None}
            seed = torch.default_generator.initial_seed()
            if _is_guessable(seed) and not torch.equal(self._state, torch.get_rng_state()):
                self._used["torch"] = seed
        self._has_traced_noise |= bool(step.noise_generators)
        self._loop_noise = {**_seed_of_all(step.noise_generators), **self._loop_noise}
        self._loop_batches = {**_seed_of_all(step.batch_generators), **self._loop_batches}

    def facts(self) -> GuessableSeeds:
        return GuessableSeeds(
            noise=tuple(self._noise),
            batches=tuple(self._batches),
            loop_noise=dict(self._loop_noise),
            loop_batches=dict(self._loop_batches),
            used={name: seed for name, seed in self._used.items() if name != "torch" or not self._has_traced_noise},
        )

    @staticmethod
    def caution(facts: GuessableSeeds, run: RuleRun) -> str:
        seeds = [*map(_SEEDED["torch"].format, facts.noise), *_code(facts.loop_noise, _OWN)]
        consequence = "An adversary who knows the script can recompute the noise."
        if not seeds:
            seeds = [*map(_SEEDED["torch"].format, facts.batches), *_code(facts.loop_batches, _OWN)]
            consequence = "An adversary who knows the script can recompute the batches: sampling amplifies nothing."
        if not seeds:
            seeds = _code(facts.used, _SEEDED)
            consequence = "If noise or batches come from it, an adversary who knows the script can recompute them."
        if not seeds:
            return ""
        named = ", ".join(seeds[:3]) + (f" and {len(seeds) - 3} more" if len(seeds) > 3 else "")
        state = "is the state" if len(seeds) == 1 else "are states"
        return f"{named} {state} of a generator of the training. {consequence}"


def _code(seeds: Mapping[str, int], calls: Mapping[str, str]) -> list[str]:
    return [calls[name].format(seed) for name, seed in sorted(seeds.items()) if name in calls]


def _add_guessable(seeds: list[int], generator: Any) -> None:
    """Append the seed of a generator if it is guessable and new."""
    seed = None if generator is None else generator.initial_seed()
    if seed is not None and _is_guessable(seed) and seed not in seeds[-1:] and len(seeds) < 100:
        seeds.append(seed)


def _is_guessable(seed: int) -> bool:
    """Whether a seed is small, public, or a time near to the present."""
    if seed < _GUESSABLE or seed > 2**64 - _GUESSABLE or seed == _DEFAULT:
        return True
    now = time.time()
    return any(abs(seed / units - now) <= seconds for units, seconds in _CLOCKS.items())


def _are_guessable(generators: Sequence[Any]) -> bool:
    """Whether all seeds are guessable: one secret seed makes the numbers of all generators secret."""
    return all(_is_guessable(generator.initial_seed()) for generator in generators)


def _follow_from_default(generators: Sequence[Any]) -> bool:
    """Whether numbers that these generators drew follow from the guessable seed of torch's default one."""
    import torch

    return torch.default_generator in generators and _are_guessable(generators)


def _seed_of_all(generators: Sequence[Any]) -> dict[str, int]:
    """The seed of a generator of the loop if all seeds are guessable."""
    import torch

    if not _are_guessable(generators):
        return {}
    seeds = [generator.initial_seed() for generator in generators if generator is not torch.default_generator]
    return {"torch": seeds[0]} if seeds else {}


def _states() -> dict[str, bytes]:
    """The states of the global generators of NumPy and Python: 624 words of the Mersenne Twister, and the position."""
    import numpy as np

    _, numpy_words, numpy_position, *_ = np.random.get_state(legacy=True)
    _, (*python_words, python_position), _ = random.getstate()
    return {
        "numpy.random": np.asarray([*numpy_words, numpy_position], dtype=np.uint32).tobytes(),
        "random": np.asarray([*python_words, python_position], dtype=np.uint32).tobytes(),
    }


def _seed_of(name: str, state: bytes) -> int | None:
    """The compared seed that gives this state at once, or after at most 624 words; None if none does."""
    state_words = state[: 624 * 4]
    for seed in _COMPARED:
        for key in _keys(name, seed):
            if key == state_words:
                return seed
    return None


def _keys(name: str, seed: int) -> Iterator[bytes]:
    import numpy as np

    if name == "random":
        generator = random.Random(seed)
        yield np.asarray(generator.getstate()[1][:-1], dtype=np.uint32).tobytes()
        generator.getrandbits(32)
        yield np.asarray(generator.getstate()[1][:-1], dtype=np.uint32).tobytes()
        return
    source = np.random.RandomState(seed)
    yield _words(source)
    source.bytes(4)
    yield _words(source)


def _words(source: Any) -> bytes:
    import numpy as np

    state = source.get_state(legacy=True)
    return np.asarray(state[1], dtype=np.uint32).tobytes()
