"""An observer that keeps all reports of a small run."""

from typing import Any

from torch import Tensor

from dpspec.contract import Observer


class SeenRun(Observer):
    def __init__(self) -> None:
        self.calls: list[tuple[int, str, Tensor]] = []
        self.states: list[Tensor] = []
        self.indices: list[Tensor] = []
        self.noise: list[Tensor] = []
        self.norms: list[Tensor] = []

    def _keep(self, kept: list[Tensor], step: int, event: str, value: Tensor) -> None:
        self.calls.append((step, event, value.clone()))
        kept.append(self.calls[-1][2])

    def released(self, step: int, state: Tensor) -> None:
        self._keep(self.states, step, "released", state)

    def sampled(self, step: int, indices: Tensor) -> None:
        self._keep(self.indices, step, "sampled", indices)

    def noised(self, step: int, noise: Tensor) -> None:
        self._keep(self.noise, step, "noised", noise)

    def clipped(self, step: int, norms: Tensor) -> None:
        self._keep(self.norms, step, "clipped", norms)

    def replay(self, observer: Any, after: int, until: int) -> None:
        """Repeat the reports of the steps in (after, until], with the first model if ``after`` is 0."""
        for step, method, value in self.calls:
            if after < step <= until or step == after == 0:
                getattr(observer, method)(step, value)
