"""What the script's own accountant was told: its history, looked at after every step."""

from __future__ import annotations

import math
from typing import Any

from dpspec.errors import UsageError


class AccountantWatch:
    """Reads ``history``, a list of (noise multiplier, sampling rate, steps), of an accountant or an engine's."""

    def __init__(self, engine: Any) -> None:
        """``engine``: Opacus' ``PrivacyEngine`` or an accountant; ``UsageError`` for anything else."""
        accountant = getattr(engine, "accountant", engine)
        if not isinstance(getattr(accountant, "history", None), list):
            kind = type(engine).__name__
            raise UsageError(f"engine must be Opacus' PrivacyEngine or one of its accountants, got {kind}")
        self._accountant = accountant
        mechanism = getattr(accountant, "mechanism", None)
        self.mechanism = str(mechanism()) if callable(mechanism) else type(accountant).__name__

    def told(self) -> tuple[float, float, int]:
        """The last noise multiplier and rate, and how many steps in all; NaN and 0 before the first."""
        history = self._accountant.history
        if not history:
            return math.nan, math.nan, 0
        noise, rate, _ = history[-1]
        return float(noise), float(rate), sum(int(steps) for _, _, steps in history)

    def history(self) -> list[list[float]]:
        """All of it, as JSON has it."""
        return [[float(noise), float(rate), int(steps)] for noise, rate, steps in self._accountant.history]
