"""Hugging Face's Trainer on two processes, by accelerate."""

import sys
from typing import Any

import torch
import transformers

from dpspec.integrations.huggingface import DPSpecCallback
from support.two_processes.training import private_parts, records

folder, fault = sys.argv[1], sys.argv[2]
arguments = transformers.TrainingArguments(
    output_dir=f"{folder}-checkpoints",
    num_train_epochs=2,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    remove_unused_columns=False,
    disable_tqdm=True,
    ddp_backend="gloo",
)
assert arguments.world_size == 2  # this starts torch.distributed
model, optimizer, loader, engine = private_parts(fault)


class PrivateTrainer(transformers.Trainer):  # type: ignore[misc, name-defined]
    def get_train_dataloader(self) -> Any:
        return loader

    def training_step(self, *inputs: Any, **counts: Any) -> Any:
        optimizer.zero_grad()
        return super().training_step(*inputs, **counts)

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **counts: Any) -> Any:
        return model(**inputs)["loss"]


budget = {"stop_at_epsilon": 3.0} if fault == "budget" else {}
callback = DPSpecCallback(folder, epsilon=8, delta=1e-5, report=False, engine=engine, **budget)
trainer = PrivateTrainer(model, arguments, train_dataset=records(), callbacks=[callback], optimizers=(optimizer, None))
torch.seed()
trainer.train()
if callback.checked is not None:
    print("passed" if callback.checked.passed else "failed", callback.checked.epsilon)
