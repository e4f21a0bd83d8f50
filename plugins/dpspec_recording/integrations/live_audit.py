"""The audit of a running training, for callbacks of trainers: recording, epsilon, budget and verdict."""

from __future__ import annotations

import atexit
import math
import sys
import warnings
from collections import Counter
from os import PathLike
from pathlib import Path
from typing import Any

import torch

import dpspec
from dpspec.accounting import PrivacyLoss
from dpspec.errors import UsageError
from dpspec.reporters import page
from dpspec.reporters.terminal import render_brief
from dpspec.results.checked_run import CheckedRun
from dpspec_recording.recognized import sampler_of, unwrapped


class LiveAudit:
    """Records one training, and judges a claim about it.

    Attributes:
        delta: The delta of the claim and of all logged epsilons, in (0, 1).
        checked: The result of ``dpspec.check``; None before the end.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        stop_at_epsilon: float | None = None,
        report: bool = True,
        **options: Any,
    ) -> None:
        """Prepare the audit of one training.

        Args:
            folder: The recording's folder, as for ``dpspec.record``.
            epsilon: The claim; ``stop_at_epsilon`` by default, and no claim without either.
            delta: Of the claim, the budget and all logged epsilons, in (0, 1).
            stop_at_epsilon: The budget, > 0: the training ends before the step that would exceed it.
            report: Whether to write the page.
            **options: Of ``dpspec.record``: ``engine``, ``loss``, ``resume``, ``overwrite``.

        Raises:
            UsageError: A number is outside its range. At the start of the training: the trainer steps no optimizer of
                Opacus, or one step exceeds the budget.
        """
        if stop_at_epsilon is not None and not 0.0 < stop_at_epsilon < math.inf:
            raise UsageError(f"stop_at_epsilon must be finite and above 0, got {stop_at_epsilon!r}")
        if not 0.0 < delta < 1.0:
            raise UsageError(f"delta must be above 0 and below 1, got {delta!r}")
        self.delta = delta
        self._folder, self._claimed, self._report = folder, stop_at_epsilon if epsilon is None else epsilon, report
        self._options, self._limit = options, stop_at_epsilon
        self._recorder: Any = None
        self._budget: _Budget | None = None
        self.checked: CheckedRun | None = None

    def start(self, model: Any, optimizer: Any, loader: Any) -> None:
        """Begin the recording of Opacus' optimizer, with Opacus' hooks of a model that it does not wrap.

        If the trainer never ends it, because of an exception, it ends with the process.
        """
        optimizer = unwrapped(optimizer)
        if not hasattr(optimizer, "original_optimizer"):
            raise UsageError(
                f"the trainer steps {type(optimizer).__name__}, not Opacus' optimizer: give it the optimizer and the "
                "loader that make_private returned"
            )
        if self._limit is not None:
            if _processes() > 1:
                raise UsageError("stop_at_epsilon is for one process: give epsilon=, and fix the number of steps")
            self._budget = _Budget(self._limit, self.delta, optimizer, sampler_of(loader).batches)
        recorded = {"model": _with_hooks(model), "optimizer": optimizer, "loader": loader, **self._options}
        self._recorder = dpspec.record(self._folder, **recorded)
        self._recorder.__enter__()
        atexit.register(self._abandon)

    def _abandon(self) -> None:
        """End the recording at the end of the process, of an exception if there was one."""
        self.end(getattr(sys, "last_value", None) or InterruptedError("the trainer did not end its training"))

    def is_spent(self) -> bool:
        """Whether the next step, with the current noise and rate, would exceed the budget. Call it after each step."""
        return self._budget is not None and self._budget.is_spent(self._recorder)

    def values(self) -> dict[str, float]:
        """The certified epsilon of the recorded steps, and the number of rules that fired, for the trainer's logs."""
        if self._recorder is None:
            return {}
        cautions = len(self._recorder.cautions(self.delta))
        return {"dp/epsilon": self._recorder.epsilon(self.delta), "dp/cautions": cautions}

    def end(self, error: BaseException | None = None) -> dict[str, float]:
        """End the recording; without an error check it, print the report, write the page, and return numbers for logs.

        Of several processes the first one checks, after all have ended.
        """
        recorder, self._recorder = self._recorder, None
        atexit.unregister(self._abandon)
        if self._budget is not None:
            self._budget.hook.remove()
        if recorder is None:
            return {}
        recorder.__exit__(None if error is None else type(error), error, None)
        if error is not None:
            return {}
        if _processes() > 1:
            torch.distributed.barrier()
            if torch.distributed.get_rank() != 0:
                return {}
        self.checked = dpspec.check(recorder.folder, epsilon=self._claimed, delta=self.delta)
        print(render_brief(self.checked.result))
        if self._report:
            Path(f"{recorder.folder}.html").write_text(page.render(self.checked.result), encoding="utf-8")
        certified = math.inf if self.checked.epsilon is None else self.checked.epsilon
        return {"dp/epsilon": certified, "dp/cautions": len(self.checked.cautions), "dp/proved": self.checked.proved}


class _Budget:
    """Counts steps, and finds the last one within a budget by few evaluations of the steps until then."""

    def __init__(self, limit: float, delta: float, optimizer: Any, sampler: Any) -> None:
        self._limit, self._delta, self._optimizer, self._sampler = limit, delta, optimizer, sampler
        self._counts: Counter[tuple[float, float]] = Counter()
        self._schedule = self._current()
        self._unchecked, self._allowed, self._further = 0, 0, 1
        noise, rate = self._schedule
        if not (0.0 < noise < math.inf and 0.0 < rate <= 1.0):
            raise UsageError(
                f"stop_at_epsilon needs Poisson batches, and noise: the sampling rate is {rate:g} and the noise "
                f"multiplier {noise:g}; let the trainer iterate the loader that make_private returned"
            )
        if not self._allows(1):
            raise UsageError(f"one step costs more than stop_at_epsilon={limit:g} at delta={delta:g}")
        self.hook = optimizer.original_optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self._counts[self._current()] += 1
        self._unchecked += 1

    def is_spent(self, recorder: Any) -> bool:
        self._allowed, self._unchecked = self._allowed - self._unchecked, 0
        schedule = self._current()
        if schedule != self._schedule:
            self._schedule, self._allowed, self._further = schedule, 0, 1
        if self._allowed > 0:
            return False
        recorded = recorder.epsilon(self._delta)
        if recorded > self._limit:
            message = f"the recorded steps cost epsilon {recorded:g}: see the report of the run"
            warnings.warn(f"stop_at_epsilon={self._limit:g}: {message}", RuntimeWarning, stacklevel=2)
            return True
        while self._further and not self._allows(self._further):
            self._further //= 2
        self._allowed, self._further = self._further, 2 * self._further
        return self._allowed == 0

    def _current(self) -> tuple[float, float]:
        rate = getattr(self._sampler, "sample_rate", None)
        return float(self._optimizer.noise_multiplier), math.nan if rate is None else float(rate)

    def _allows(self, further: int) -> bool:
        """Whether the steps until now and further ones with the current noise and rate are within the budget."""
        counts = self._counts + Counter({self._schedule: further})
        if any(not (0.0 < noise < math.inf and 0.0 < rate <= 1.0) for noise, rate in counts):
            return False
        loss = PrivacyLoss.of_steps((*schedule, count) for schedule, count in counts.items())
        return loss.epsilon(self._delta).upper <= self._limit


def _processes() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _with_hooks(model: Any) -> Any:
    """Opacus' hooks of a model that ``make_private(wrap_model=False)`` did not wrap; the model itself without them."""
    for handle in getattr(model, "autograd_grad_sample_hooks", ()):
        owner = getattr((handle.hooks_dict_ref() or {}).get(handle.id), "__self__", None)
        if owner is not None:
            return owner
    return model
