"""The executed schedule of a training in words."""

from collections.abc import Sequence

from dpspec import decimals
from dpspec.contract.executed import ExecutedPhase

_MOST_PHASES = 8


def schedule_in_words(phases: Sequence[ExecutedPhase], more_phases: int) -> list[str]:
    """``steps 1 to 100: rate 0.05, noise multiplier 1.1, clip norm 1``; of many phases the first ones."""
    shown: list[str] = []
    for phase in phases[:_MOST_PHASES]:
        last = phase.first + phase.steps - 1
        steps = f"step {phase.first}" if phase.steps == 1 else f"steps {phase.first} to {last}"
        noise = "noise not observed"
        if phase.noise_multiplier is not None:
            noise = (
                f"noise multiplier {decimals.nearest(phase.noise_multiplier)}" if phase.noise_multiplier else "no noise"
            )
        clip = "" if phase.clip_norm is None else f", clip norm {decimals.nearest(phase.clip_norm)}"
        rate = "no Poisson sample" if phase.rate is None else f"rate {decimals.nearest(phase.rate)}"
        shown.append(f"{steps}: {rate}, {noise}{clip}")
    unlisted_count = len(phases) - _MOST_PHASES + more_phases
    return [*shown, f"and {unlisted_count} more phases"] if unlisted_count > 0 else shown
