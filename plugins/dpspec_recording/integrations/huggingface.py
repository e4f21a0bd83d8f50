"""A callback of Hugging Face's ``Trainer`` and of the trainers that derive from it, such as TRL's ``SFTTrainer``.

    trainer = PrivateTrainer(..., callbacks=[DPSpecCallback("run", engine=engine, stop_at_epsilon=8)])
    trainer.train()

The guide ``docs/how-to/audit-in-a-trainer.md`` has a complete script. Requires transformers and Opacus.
"""

from __future__ import annotations

from typing import Any, Self

from transformers import TrainerCallback

from dpspec.errors import UsageError
from dpspec_recording.integrations.live_audit import LiveAudit


class DPSpecCallback(LiveAudit, TrainerCallback):
    """Records a training with Opacus' optimizer, logs its certified epsilon, and judges a claim at the end.

    The logs have ``dp/epsilon`` and ``dp/cautions``, the number of rules that fired; the last entry also has
    ``dp/proved``, whether the claim is proved. The report is printed, and ``FOLDER.html`` is its page.

    A trainer does not report an exception. The recording then ends with the process, or at the end of a block
    ``with callback:`` around ``trainer.train()``, in both cases without a verdict.

    :class:`~dpspec_recording.integrations.live_audit.LiveAudit` describes the arguments. If TRL packs records, or the
    loss of a record depends on the tokens of other records, the training raises ``UsageError``.
    """

    _hook: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.end(error)

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Begin the recording."""
        self.end(InterruptedError("the trainer began another training"))
        for option in ("packing", "padding_free"):
            if getattr(args, option, False):
                raise UsageError(
                    f"{option}=True puts several records into one row, and Opacus clips a row as one record: set it to "
                    "False"
                )
        self._hook = objects["model"].register_forward_pre_hook(_refuse_loss_of_batch, with_kwargs=True)
        self.start(objects["model"], objects["optimizer"], objects["train_dataloader"])

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Ask for the end of the training if another step would exceed the budget."""
        if self.is_spent():
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **objects: Any) -> None:
        """Add epsilon to the logs of this event, and of the callbacks after this one."""
        values = self.values()
        if logs is not None:
            logs.update(values)
        if state.log_history:
            state.log_history[-1].update(values)

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """End the recording, and judge the claim."""
        values = self.end()
        if values:
            state.log_history.append({**values, "step": state.global_step, "epoch": state.epoch})

    def end(self, error: BaseException | None = None) -> dict[str, float]:
        """End the recording as :class:`LiveAudit`, and the observation of losses."""
        if self._hook is not None:
            self._hook.remove()
        return super().end(error)


def _refuse_loss_of_batch(model: Any, inputs: Any, named: dict[str, Any]) -> None:
    """Raise ``UsageError`` if the loss is a sum over all tokens, by the model or by TRL (``fused_lm_head``)."""
    if model.training and (named.get("num_items_in_batch") is not None or named.get("fused_lm_head")):
        raise UsageError(
            "the trainer's loss divides by num_items_in_batch, so that the loss of a record depends on the tokens of "
            "other records: override compute_loss with the mean loss of each record (how-to/audit-in-a-trainer.md)"
        )
