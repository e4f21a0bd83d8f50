"""Phases of a training, in one line each."""

from typing import Any

from dpspec.contract import Phase


def phase_of(scheme: str, steps: int, noise: float = 1.0, clip: float = 1.0, **sampling: Any) -> Phase:
    block = {"scheme": scheme, **sampling}
    return Phase({"steps": steps, "noise_multiplier": noise, "clip_norm": clip, "sampling": block})
