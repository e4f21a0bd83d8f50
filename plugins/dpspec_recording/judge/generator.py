"""The generator of a recorded training's noise, and what its float32 numbers reveal with certainty."""

import math
from dataclasses import replace

from dpspec.accounting import SMALLEST_TENSOR, revealed_by_schedule
from dpspec.contract.executed import ExecutedNoise
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.observers.noise import guessable_seed
from dpspec_recording.observers.noise.guessable_seed import GuessableSeeds
from dpspec_recording.observers.rules import Rules

#: The generators of torch by the type of their device.
_GENERATORS = {"cpu": "torch's CPU generator", "cuda": "torch's CUDA generator"}

#: The number of bits of a seed.
_BITS = 64


def recorded_noise(run: RecordedRun) -> ExecutedNoise | None:
    """The generator of Opacus, which draws the noise of each parameter on its device; None for other loops."""
    rules = run.fact(Rules)
    noted = () if rules is None else rules.of(guessable_seed.RULE, GuessableSeeds)
    observed = [facts for facts in noted if facts is not None and facts.noise_device]
    if not observed or len(observed) < len(noted):
        return None
    facts = replace(
        observed[0], seed_bits=min(seeds.seed_bits for seeds in observed), draws=min(seeds.draws for seeds in observed)
    )
    is_known = facts.seed_bits < _BITS or facts.noise_device == "cpu"
    return ExecutedNoise(
        generator=_GENERATORS.get(facts.noise_device, f"torch's generator on {facts.noise_device}"),
        seed_bits=facts.seed_bits if is_known else None,
        draws=facts.draws,
        revealed=_revealed(run, facts),
    )


def _revealed(run: RecordedRun, facts: GuessableSeeds) -> float:
    """The probability of Theorem F1 for the executed schedule, with the noise multipliers of its options."""
    header = run.header
    is_float32 = facts.noise_device == "cpu" and facts.draws == 1 and header.dtypes == ("float32",)
    if not is_float32 or header.world or header.clipping not in ("flat", "ghost"):
        return 0.0
    values = sum(size // SMALLEST_TENSOR * SMALLEST_TENSOR for _, size in header.layers)
    if not values:
        return 0.0
    steps = zip(run["noise_multiplier"].tolist(), run.rates, strict=True)
    noisy = ((sigma, rate, 1) for sigma, rate in steps if rate is not None and 0.0 < sigma < math.inf)
    return revealed_by_schedule(noisy, values)
