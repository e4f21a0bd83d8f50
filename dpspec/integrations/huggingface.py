"""A callback of Hugging Face's ``Trainer`` and of the trainers that derive from it, such as TRL's ``SFTTrainer``.

    trainer = PrivateTrainer(..., callbacks=[DPSpecCallback("run", engine=engine, stop_at_epsilon=8)])
    trainer.train()

The guide ``docs/how-to/audit-in-a-trainer.md`` has a complete script. Requires transformers and Opacus.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Self

from transformers import TrainerCallback

from dpspec.engine.recorded.check import CheckedRun
from dpspec.errors import UsageError
from dpspec.integrations.live_audit import LiveAudit


class DPSpecCallback(TrainerCallback):
    """Records a training with Opacus' optimizer, logs its certified epsilon, and judges a claim at the end.

    The logs have ``dp/epsilon`` and ``dp/cautions``, the number of rules that fired; the last entry also has
    ``dp/proved``, whether the claim is proved. The report is printed, and ``FOLDER.html`` is its page.

    A trainer does not report an exception. The recording then ends with the process, or at the end of a block
    ``with callback:`` around ``trainer.train()``, in both cases without a verdict.
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
        """Prepare the audit of one call of ``train``.

        Args:
            folder: The recording's folder, as for ``dpspec.record``.
            epsilon: The claim; ``stop_at_epsilon`` by default, and no claim without either.
            delta: Of the claim, the budget and all logged epsilons, in (0, 1).
            stop_at_epsilon: The budget, > 0: the training ends before the step that would exceed it.
            report: Whether to write the page.
            **options: Of ``dpspec.record``: ``engine``, ``loss``, ``resume``, ``overwrite``.

        Raises:
            UsageError: A number is outside its range. At the start of the training: the trainer steps no optimizer of
                Opacus, one step exceeds the budget, TRL packs records, or the loss of a record depends on the tokens of
                other records.
        """
        self._hook: Any = None
        self._audit = LiveAudit(
            folder, epsilon=epsilon, delta=delta, stop_at_epsilon=stop_at_epsilon, report=report, **options
        )

    @property
    def checked(self) -> CheckedRun | None:
        """The result of ``dpspec.check``; None before the end of the training."""
        return self._audit.checked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._end(error)

    def on_train_begin(self, args: Any, state: Any, control: Any, **training_objects: Any) -> None:
        """Begin the recording."""
        self._end(InterruptedError("the trainer began another training"))
        for option in ("packing", "padding_free"):
            if getattr(args, option, False):
                raise UsageError(
                    f"{option}=True puts several records into one row, and Opacus clips a row as one record: set it to "
                    "False"
                )
        self._hook = training_objects["model"].register_forward_pre_hook(_refuse_loss_of_batch, with_kwargs=True)
        self._audit.start(
            training_objects["model"], training_objects["optimizer"], training_objects["train_dataloader"]
        )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **training_objects: Any) -> None:
        """Ask for the end of the training if another step would exceed the budget."""
        if self._audit.is_spent():
            control.should_training_stop = True

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **training_objects: Any
    ) -> None:
        """Add epsilon to the logs of this event, and of the callbacks after this one."""
        values = self._audit.values()
        if logs is not None:
            logs.update(values)
        if state.log_history:
            state.log_history[-1].update(values)

    def on_train_end(self, args: Any, state: Any, control: Any, **training_objects: Any) -> None:
        """End the recording, and judge the claim."""
        values = self._end()
        if values:
            state.log_history.append({**values, "step": state.global_step, "epoch": state.epoch})

    def _end(self, error: BaseException | None = None) -> dict[str, float]:
        if self._hook is not None:
            self._hook.remove()
        return self._audit.end(error)


def _refuse_loss_of_batch(model: Any, inputs: Any, named: dict[str, Any]) -> None:
    """Raise ``UsageError`` if the loss is a sum over all tokens, by the model or by TRL (``fused_lm_head``)."""
    if model.training and (named.get("num_items_in_batch") is not None or named.get("fused_lm_head")):
        raise UsageError(
            "the trainer's loss divides by num_items_in_batch, so that the loss of a record depends on the tokens of "
            "other records: override compute_loss with the mean loss of each record (how-to/audit-in-a-trainer.md)"
        )
