"""A callback of Lightning's ``Trainer``, for automatic and manual optimization.

    callback = DPSpecCallback("run", engine=engine, stop_at_epsilon=8)
    lightning.Trainer(callbacks=[callback]).fit(task, loader)

The guide ``docs/how-to/audit-in-a-trainer.md`` has a complete script. Requires lightning and Opacus.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from dpspec.errors import UsageError
from dpspec_recording.integrations.live_audit import LiveAudit


class DPSpecCallback(LiveAudit, Callback):
    """Records a training with Opacus' optimizer, logs its certified epsilon, and judges a claim at the end.

    The module logs ``dp/epsilon`` and ``dp/cautions`` (the number of rules that fired) at the end of each epoch. At the
    end of the training the trainer's loggers also get ``dp/proved``. The report is printed, and ``FOLDER.html`` is its
    page. A budget ends the training also before ``min_steps`` and ``min_epochs``.

    :class:`~dpspec_recording.integrations.live_audit.LiveAudit` describes the arguments. A module with several
    optimizers is a ``UsageError`` at the start of the training.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the recording of the module with Opacus' hooks."""
        if len(trainer.optimizers) != 1:
            raise UsageError(f"the callback records one optimizer, and the module has {len(trainer.optimizers)}")
        private = (module for module in pl_module.modules() if hasattr(module, "autograd_grad_sample_hooks"))
        self.start(next(private, pl_module), trainer.optimizers[0], trainer.train_dataloader)
        trainer.optimizers = trainer.optimizers  # Lightning's wrapper copies the methods, which the recorder replaced
        # The iterator of the first epoch exists already, without a drawn batch: the recorder does not see its batches.
        iter(trainer.fit_loop._data_fetcher)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """End the training if another step would exceed the budget."""
        if self.is_spent():
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log epsilon and the number of cautions."""
        pl_module.log_dict(self.values())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the recording, and judge the claim."""
        values = self.end()
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the recording without a verdict."""
        self.end(exception)
