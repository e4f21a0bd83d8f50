"""Lightning's strategy ``ddp`` on two processes."""

import sys
from typing import Any

import lightning

from dpspec.integrations.lightning import DPSpecCallback
from support.two_processes.training import private_parts

folder, fault = sys.argv[1], sys.argv[2]


class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def configure_model(self) -> None:  # after the start of torch.distributed
        self.network, self.private, self.loader, _ = private_parts(fault)

    def train_dataloader(self) -> Any:
        return self.loader

    def training_step(self, batch: Any, number: int) -> Any:
        return self.network(**batch)["loss"]

    def configure_optimizers(self) -> Any:
        return self.private


callback = DPSpecCallback(folder, epsilon=8, delta=1e-5, report=False)
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    use_distributed_sampler=False,
    logger=False,
    callbacks=[callback],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Task())
if trainer.is_global_zero and callback.checked is not None:
    print("passed" if callback.checked.passed else "failed", callback.checked.epsilon)
