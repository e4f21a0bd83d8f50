"""Lightning's strategy ``ddp`` on two processes: FOLDER, and names of faults."""

from typing import Any

import lightning

from dpspec.errors import DpspecError
from dpspec.integrations.lightning import DPSpecCallback
from support.two_processes.training import cases, private_parts, summary

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def configure_model(self) -> None:  # after the start of torch.distributed
        self.network, self.private, self.loader, _ = private_parts(self.fault)

    def train_dataloader(self) -> Any:
        return self.loader

    def training_step(self, batch: Any, number: int) -> Any:
        return self.network(**batch)["loss"]

    def configure_optimizers(self) -> Any:
        return self.private


for folder, fault in cases():
    budget = {"stop_at_epsilon": 3.0} if fault == "budget" else {}
    callback = DPSpecCallback(folder, epsilon=8, delta=1e-5, report=False, **budget)
    ranks: dict[str, Any] = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback], **ranks, **QUIET)
    try:
        trainer.fit(Task(fault))
        if callback.checked is not None:
            print(f"{fault}: {summary(callback.checked)}")
    except DpspecError as error:
        print(f"{fault}: {error}")
