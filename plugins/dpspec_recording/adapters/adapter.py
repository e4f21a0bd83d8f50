"""The interface of an adapter, by which a session records all kinds of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpspec.errors import UsageError

if TYPE_CHECKING:
    from dpspec_recording.adapters.custom_loop import CustomLoop
    from dpspec_recording.probes.probe import Events, Training


class Adapter:
    """Turns a kind of training into the events of :mod:`dpspec_recording.probes.probe`, and ends its steps.

    Attributes:
        waits: The number of steps whose noise is read together, so that they are written together.
    """

    waits: int = 1

    def attach(self, training: Training, events: Events) -> None:
        """Observe until ``training.undo`` ends it."""
        raise NotImplementedError

    @property
    def is_rounded(self) -> bool:
        """Whether the norms of contributions are rounded to half precision."""
        return False

    def options(self) -> dict[str, Any]:
        """The options of the private sum now."""
        raise NotImplementedError

    def accumulates(self) -> bool:
        """Whether the optimizer has got a physical batch of a step that is not complete."""
        return False

    def present(self) -> tuple[float | None, float | None]:
        """The noise multiplier and the rate of a step that would come now."""
        raise NotImplementedError

    def begin_step(self) -> None:
        """The block begins, and with it the first step."""

    def read(self) -> None:
        """Read the noise of the last steps, if that was put off."""

    def end(self) -> None:
        """The block is over: end a step that is complete."""

    def reporting(self, method: str) -> CustomLoop:
        """The loop that reports its steps by a method of the recorder; ``UsageError`` for other trainings."""
        raise UsageError(f"run.{method} is for custom loops: the recorder observes Opacus' optimizer without it")
