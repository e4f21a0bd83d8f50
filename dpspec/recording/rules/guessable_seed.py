"""Whether noise and batches follow from a seed that an adversary can guess."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule

#: Seeds below this, or as close below 2**64, count as guessable. A seed of the system is there with probability 2**-20.
_GUESSABLE = 2**32

#: Seeds with which the states of NumPy and Python are compared.
_COMPARED = 1024

#: The seed of a new ``torch.Generator``.
_DEFAULT = 67280421310721

RULE = Rule(
    name="guessable-seed",
    summary="torch, NumPy or Python's random was seeded with a small integer, and noise or batches follow from it",
    why="Noise and batches follow from the seed: an adversary who guesses it subtracts the noise.",
    fix="Remove the seed, or call torch.seed() before make_private; seed a noise_generator by its method seed().",
    code="dpspec.recording.rules.guessable_seed:GuessableSeed",
)


class GuessableSeed(TrainingRule):
    early = True

    def __init__(self) -> None:
        self._private: Any = None
        self._state: Any = None
        self._host_states: dict[str, bytes] = {}
        self._host: dict[str, int] = {}
        self._torch: list[int] = []
        self._sampler: Any = None
        self._batches: list[int] = []
        self._observed = False

    def start(self, setup: RuleSetup) -> None:
        import torch

        self._private, self._sampler = setup.private_optimizer, _drawing_sampler(setup.loader)
        self._observed = self._private is not None
        if self._private is None:
            self._state, self._host_states = torch.get_rng_state(), _states()

    def after_step(self, step: RuleStep) -> None:
        import torch

        if step.number == 1 and self._private is None:
            self._observed = not torch.equal(self._state, torch.get_rng_state())
            now = _states()
            used = [name for name, state in self._host_states.items() if state != now[name]]
            self._host = {name: seed for name in used if (seed := _seed_of(name, self._host_states[name])) is not None}
        noise = self._generator() if self._observed else None
        batches = None if self._sampler is None else self._sampler.generator or torch.default_generator
        _add_guessable(self._torch, noise)
        _add_guessable(self._batches, None if batches is noise else batches)

    def _generator(self) -> Any:
        import torch

        if self._private is None:
            return torch.default_generator
        if self._private.generator is not None:
            return self._private.generator
        device = self._private.params[0].device
        return torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator

    def facts(self) -> Mapping[str, Any]:
        return {"torch": list(self._torch), "host": dict(self._host), "batches": list(self._batches)}

    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        seeds = [f"torch.manual_seed({int(seed)})" for seed in facts["torch"]]
        seeds += [f"{name}.seed({int(seed)})" for name, seed in sorted(facts["host"].items())]
        consequence = "An adversary who knows the script can recompute the noise."
        if not seeds:
            seeds = [f"torch.manual_seed({int(seed)})" for seed in facts.get("batches", ())]
            consequence = "An adversary who knows the script can recompute the batches: sampling amplifies nothing."
        if not seeds:
            return ""
        named = ", ".join(seeds[:3]) + (f" and {len(seeds) - 3} more" if len(seeds) > 3 else "")
        state = "is the state" if len(seeds) == 1 else "are states"
        return f"{named} {state} of a generator of the training. {consequence}"


def _drawing_sampler(loader: Any) -> Any:
    """The sampler of a loader that draws from its ``generator``, of batches or of single records; None without one."""
    batches = getattr(loader, "batch_sampler", None)
    samplers = (batches, getattr(batches, "sampler", None))
    return next((sampler for sampler in samplers if hasattr(sampler, "generator")), None)


def _add_guessable(seeds: list[int], generator: Any) -> None:
    """Append the seed of a generator if it is guessable and new."""
    seed = None if generator is None else generator.initial_seed()
    if seed is not None and _is_guessable(seed) and seed not in seeds[-1:] and len(seeds) < 100:
        seeds.append(seed)


def _is_guessable(seed: int) -> bool:
    return seed < _GUESSABLE or seed > 2**64 - _GUESSABLE or seed == _DEFAULT


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
