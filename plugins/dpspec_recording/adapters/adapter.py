"""The interface of an adapter, by which a session records all kinds of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpspec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dpspec_recording.observers.observer import Events, Training


class Adapter:
    """Turns a kind of training into the events of :mod:`dpspec_recording.observers.observer`, and ends its steps.

    The methods from :meth:`sampled` to :meth:`declare` get the reports of a training that reports its steps; they raise
    ``UsageError`` for other trainings.

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

    def sampled(self, indices: Any) -> None:
        """The training reports the numbers of drawn records."""
        raise _is_observed("sampled")

    def clipped(self, norms: Any) -> None:
        """The training reports norms after clipping."""
        raise _is_observed("clipped")

    def noised(self, noise: Any) -> None:
        """The training reports its noise."""
        raise _is_observed("noised")

    def summed(self, total: Any) -> None:
        """The training reports its sum."""
        raise _is_observed("summed")

    def stepped(self, parameters: Iterable[Any] | None, gradients: Iterable[Any] | None) -> None:
        """The training reports that the parameters moved."""
        raise _is_observed("stepped")

    def declare(self, declaration: Mapping[str, Any]) -> None:
        """The training changes intentions; None leaves one."""
        raise _is_observed("declare")


def _is_observed(method: str) -> UsageError:
    return UsageError(f"run.{method} is for custom loops: the recorder observes Opacus' optimizer without it")
