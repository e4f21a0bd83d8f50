"""Whether noise and batches follow from a seed that an adversary can guess.

The mistake: an adversary tries small seeds, and subtracts the noise of the right one::

    torch.manual_seed(42)
    model, optimizer, loader = engine.make_private(...)
"""

import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule

#: Seeds below this, or as close below 2**64, count as guessable. A seed of the system is there with probability 2**-20.
_GUESSABLE = 2**32

#: Seeds with which the states of NumPy and Python are compared, and usual ones for the first numbers of a loop.
_COMPARED, _USUAL = 1024, (*range(128), *range(2018, 2030), 314, 420, 666, 777, 999, 1234, 1337, 3407, 12345)

#: The number of compared records of a batch, the bits that they must have, and the minimum number of values of noise.
_RECORDS, _BITS, _VALUES = 4096, 40.0, 4

#: The code that seeds each kind of generator of a custom loop.
_OWN = {
    "torch": "torch.Generator().manual_seed({})",
    "RandomState": "numpy.random.RandomState({})",
    "default_rng": "numpy.random.default_rng({})",
    "jax": "jax.random.key({})",
}

#: The numbers of keys of JAX that are split off a key, first and again, and that are folded into one.
_SPLIT, _SPLIT_AGAIN, _FOLDED = 8, 4, 2

#: The number of values of JAX that are compared: they depend on the key and their places alone. The number of tensors
#: whose first values are compared, because loops draw each by its own key.
_JAX_VALUES, _JAX_TENSORS = 8, 8

#: The seconds before the first step in which a seed of JAX is a time. A secret seed of 32 bits is one with
#: probability 1e-6.
_JAX_SECONDS = 3600

#: By the number of units of a clock in a second, the seconds around the present in which a seed is a time. A seed of 64
#: bits is one with probability 1e-8.
_CLOCKS = {1: 86_400, 10**3: 86_400, 10**6: 3600, 10**9: 60}

#: The seed of a new ``torch.Generator``.
_DEFAULT = 67280421310721

RULE = Rule(
    name="guessable-seed",
    summary="torch, NumPy, Python's random or a key of JAX was seeded with a small integer or the time, and noise or "
    "batches follow",
    why="Noise and batches follow from the seed: an adversary who guesses it subtracts the noise.",
    fix="Remove the seed, or call torch.seed() before make_private; seed a generator of torch by its method seed(); "
    "make a key of JAX of secret bits, by jax.random.wrap_key_data.",
    code="dpspec_recording.rules.guessable_seed:GuessableSeed",
)


@dataclass(frozen=True, kw_only=True)
class GuessableSeeds:
    """Guessable seeds from which noise or batches follow.

    Attributes:
        noise, batches: Of generators of torch.
        loop_noise, loop_batches: By the kind of generator, of other generators of a custom loop.
    """

    noise: tuple[int, ...]
    batches: tuple[int, ...]
    loop_noise: Mapping[str, int]
    loop_batches: Mapping[str, int]


class GuessableSeed(TrainingRule[GuessableSeeds]):
    kind, early = GuessableSeeds, True

    def __init__(self) -> None:
        self._private: Any = None
        self._state: Any = None
        self._host_states: dict[str, bytes] = {}
        self._host: dict[str, int] = {}
        self._torch: list[int] = []
        self._sampler: Any = None
        self._batches: list[int] = []
        self._observed = False
        self._sizes: list[int] = []
        self._members: dict[str, int] = {}

    def start(self, setup: RuleSetup) -> None:
        import torch

        from dpspec_recording.watching.generators import drawing_sampler

        self._private, self._sampler = setup.private_optimizer, drawing_sampler(setup.loader)
        self._observed = self._private is not None
        if self._private is None:
            self._state, self._host_states = torch.get_rng_state(), _states()
            parameters = setup.model.parameters() if hasattr(setup.model, "parameters") else ()
            self._sizes = [p.numel() for p in parameters if p.requires_grad]

    def after_step(self, step: RuleStep) -> None:
        import torch

        from dpspec_recording.watching.generators import generator_of_batches, generator_of_noise

        if step.number == 1 and self._private is None:
            self._observed = not torch.equal(self._state, torch.get_rng_state())
            now = _states()
            used = [name for name, state in self._host_states.items() if state != now[name]]
            self._host = {name: seed for name in used if (seed := _seed_of(name, self._host_states[name])) is not None}
            self._host |= _noise_seeds(step.noise, self._sizes)
            self._members = _batch_seeds(step.drawn)
        if self._private is None:
            self._host = {**_seed_of_all(step.noise_generators), **self._host}
            self._members = {**_seed_of_all(step.batch_generators), **self._members}
        noise = generator_of_noise(self._private) if self._observed else None
        batches = None if self._sampler is None else generator_of_batches(self._sampler)
        _add_guessable(self._torch, noise)
        _add_guessable(self._batches, None if batches is noise else batches)

    def facts(self) -> GuessableSeeds:
        return GuessableSeeds(
            noise=tuple(self._torch),
            batches=tuple(self._batches),
            loop_noise=dict(self._host),
            loop_batches=dict(self._members),
        )

    @staticmethod
    def caution(facts: GuessableSeeds, run: RuleRun) -> str:
        seeds = [f"torch.manual_seed({seed})" for seed in facts.noise]
        seeds += _code(facts.loop_noise)
        consequence = "An adversary who knows the script can recompute the noise."
        if not seeds:
            seeds = [f"torch.manual_seed({seed})" for seed in facts.batches]
            seeds += _code(facts.loop_batches)
            consequence = "An adversary who knows the script can recompute the batches: sampling amplifies nothing."
        if not seeds:
            return ""
        named = ", ".join(seeds[:3]) + (f" and {len(seeds) - 3} more" if len(seeds) > 3 else "")
        state = "is the state" if len(seeds) == 1 else "are states"
        return f"{named} {state} of a generator of the training. {consequence}"


def _code(seeds: Mapping[str, int]) -> list[str]:
    return [_OWN.get(name, f"{name}.seed({{}})").format(seed) for name, seed in sorted(seeds.items())]


def _add_guessable(seeds: list[int], generator: Any) -> None:
    """Append the seed of a generator if it is guessable and new."""
    seed = None if generator is None else generator.initial_seed()
    if seed is not None and _is_guessable(seed) and seed not in seeds[-1:] and len(seeds) < 100:
        seeds.append(seed)


def _is_guessable(seed: int) -> bool:
    """Whether a seed is small, public, or a time near to the present."""
    now = time.time()
    is_time = any(abs(seed / units - now) <= seconds for units, seconds in _CLOCKS.items())
    return seed < _GUESSABLE or seed > 2**64 - _GUESSABLE or seed == _DEFAULT or is_time


def _seed_of_all(generators: Sequence[Any]) -> dict[str, int]:
    """The seed of a generator of the loop if all seeds are guessable: one secret seed makes their numbers secret."""
    import torch

    if not all(_is_guessable(generator.initial_seed()) for generator in generators):
        return {}
    seeds = [generator.initial_seed() for generator in generators if generator is not torch.default_generator]
    return {"torch": seeds[0]} if seeds else {}


def _noise_seeds(noise: Any, sizes: Sequence[int]) -> dict[str, int]:
    """By kind of generator, the seed whose first normal values match noise of tensors of these sizes by a factor."""
    seeds: dict[str, int] = {}
    for size in () if noise is None else {*sizes[:1], len(noise)}:
        # torch draws 16 values together, which for 32 values or more depend on no others
        values = noise[: size if size < 32 else 16].double().cpu().numpy()
        if len(values) >= _VALUES:
            most = (1.0 - 1e-9) * float(values @ values) ** 0.5
            seeds |= _matching(len(values), True, _along(values, most))
    return seeds | _jax_seeds(noise, sizes)


def _jax_seeds(noise: Any, sizes: Sequence[int]) -> dict[str, int]:
    """The usual seed or time of a key of JAX whose normal values match, or the values of a key made from it the noise.

    A script that draws its noise by JAX has imported it.
    """
    jax = sys.modules.get("jax")
    if jax is None or noise is None or len(noise) < _JAX_VALUES:
        return {}
    import numpy as np

    random, now = jax.random, int(time.time())
    seeds = [*filter(_is_guessable, _USUAL), *range(now - _JAX_SECONDS, now + 1)]

    def made(keys: Any, split: int) -> Any:
        """The keys (k, split + folded) that scripts make from keys (k,)."""
        split_off = jax.vmap(lambda key: random.split(key, split))(keys)
        folded = [jax.vmap(lambda key, number=number: random.fold_in(key, number))(keys) for number in range(_FOLDED)]
        return jax.numpy.concatenate([split_off, *(key[:, None] for key in folded)], axis=1)

    keys = jax.vmap(random.key)(np.array(seeds, dtype=np.uint32))
    first_keys = made(keys, _SPLIT)
    further = made(first_keys.reshape(-1), _SPLIT_AGAIN).reshape(len(seeds), -1)
    all_keys = jax.numpy.concatenate([keys[:, None], first_keys, further], axis=1)
    values = jax.vmap(lambda key: random.normal(key, (_JAX_VALUES,)))(all_keys.reshape(-1))
    drawn = np.asarray(values, dtype=np.float64).reshape(*all_keys.shape, _JAX_VALUES)
    tensor_starts = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True) if size >= _JAX_VALUES]
    starts = {0, *tensor_starts[:_JAX_TENSORS]} if sum(sizes) == len(noise) else {0}
    first = np.stack([noise[start : start + _JAX_VALUES].double().cpu().numpy() for start in starts], axis=1)
    lengths = np.linalg.norm(drawn, axis=-1, keepdims=True) * np.linalg.norm(first, axis=0)
    matches = (drawn @ first > (1.0 - 1e-9) * lengths).any(axis=(1, 2))
    return {"jax": seeds[int(np.argmax(matches))]} if matches.any() else {}


def _along(values: Any, most: float) -> Callable[[Any], bool]:
    return lambda drawn: drawn @ values > most * (drawn @ drawn) ** 0.5


def _batch_seeds(members: Any) -> dict[str, int]:
    """By kind of generator, the seed whose first uniform values are lowest for the records of the batch."""
    import numpy as np

    if members is None or not len(first := np.unique(members[members < _RECORDS])):
        return {}
    size = int(first[-1]) + 1
    if math.log2(math.comb(size, len(first))) < _BITS:
        return {}
    drawn = np.isin(np.arange(size), first)
    return _matching(size, False, lambda values: values[drawn].max() < values[~drawn].min())


def _matching(size: int, normal: bool, matches: Callable[[Any], bool]) -> dict[str, int]:
    """By kind of generator, the usual seed whose first values match."""
    import torch

    values_of = _normal_values if normal else _uniform_values
    return {name: seed for seed, name, drawn in values_of(size, torch.get_default_dtype()) if matches(drawn)}


def _uniform_values(size: int, dtype: Any) -> Iterator[tuple[int, str, Any]]:
    """Usual seeds, their kinds of generator and their first values, (size,); torch's of the type ``dtype``."""
    import numpy as np
    import torch

    for seed in filter(_is_guessable, _USUAL):
        generator = torch.Generator().manual_seed(seed)
        yield seed, "torch", torch.rand(size, generator=generator, dtype=dtype).double().numpy()
        yield seed, "RandomState", np.random.RandomState(seed).random(size)
        yield seed, "default_rng", np.random.default_rng(seed).random(size)


@lru_cache(maxsize=32)  # few values, which all recordings of a process compare
def _normal_values(size: int, dtype: Any) -> list[tuple[int, str, Any]]:
    """The same of normal values."""
    import numpy as np
    import torch

    values: list[tuple[int, str, Any]] = []
    for seed in filter(_is_guessable, _USUAL):
        generator = torch.Generator().manual_seed(seed)
        values += [
            (seed, "torch", torch.randn(size, generator=generator, dtype=dtype).double().numpy()),
            (seed, "RandomState", np.random.RandomState(seed).standard_normal(size)),
            (seed, "default_rng", np.random.default_rng(seed).standard_normal(size)),
        ]
    return values


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
    for seed in range(_COMPARED):
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
