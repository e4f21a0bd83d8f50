"""A callback of Lightning's ``Trainer``, for automatic and manual optimization.

    callback = DPSpecCallback("run", engine=engine, stop_at_epsilon=8)
    lightning.Trainer(callbacks=[callback]).fit(task, loader)

The guide ``docs/how-to/audit-in-a-trainer.md`` has a complete script. Requires lightning and Opacus.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from lightning.pytorch.callbacks import Callback

from dpspec.engine.recorded.check import CheckedRun
from dpspec.errors import UsageError
from dpspec.integrations.live_audit import LiveAudit


class DPSpecCallback(Callback):
    """Records a training with Opacus' optimizer, logs its certified epsilon, and judges a claim at the end.

    The module logs ``dp/epsilon`` and ``dp/cautions`` (the number of rules that fired) at the end of each epoch. At the
    end of the training the trainer's loggers also get ``dp/proved``. The report is printed, and ``FOLDER.html`` is its
    page.
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
        """Prepare the audit of one call of ``fit``.

        Args:
            folder: The recording's folder, as for ``dpspec.record``.
            epsilon: The claim; ``stop_at_epsilon`` by default, and no claim without either.
            delta: Of the claim, the budget and all logged epsilons, in (0, 1).
            stop_at_epsilon: The budget, > 0: the training ends before the step that would exceed it, also before
                ``min_steps`` and ``min_epochs``.
            report: Whether to write the page.
            **options: Of ``dpspec.record``: ``engine``, ``loss``, ``resume``, ``overwrite``.

        Raises:
            UsageError: A number is outside its range. At the start of the training: there are several optimizers, the
                trainer steps none of Opacus, or one step exceeds the budget.
        """
        self._audit = LiveAudit(
            folder, epsilon=epsilon, delta=delta, stop_at_epsilon=stop_at_epsilon, report=report, **options
        )

    @property
    def checked(self) -> CheckedRun | None:
        """The result of ``dpspec.check``; None before the end of the training."""
        return self._audit.checked

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the recording of the module with Opacus' hooks."""
        if len(trainer.optimizers) != 1:
            raise UsageError(f"the callback records one optimizer, and the module has {len(trainer.optimizers)}")
        private = (module for module in pl_module.modules() if hasattr(module, "autograd_grad_sample_hooks"))
        self._audit.start(next(private, pl_module), trainer.optimizers[0], trainer.train_dataloader)
        trainer.optimizers = trainer.optimizers  # Lightning's wrapper copies the methods, which the recorder replaced
        # The iterator of the first epoch exists already, without a drawn batch: the recorder does not see its batches.
        iter(trainer.fit_loop._data_fetcher)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """End the training if another step would exceed the budget."""
        if self._audit.is_spent():
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log epsilon and the number of cautions."""
        pl_module.log_dict(self._audit.values())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the recording, and judge the claim."""
        values = self._audit.end()
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the recording without a verdict."""
        self._audit.end(exception)
