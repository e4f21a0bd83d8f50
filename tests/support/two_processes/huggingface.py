"""Hugging Face's Trainer on two processes, by accelerate: FOLDER, and names of faults."""

from pathlib import Path
from typing import Any

import torch
import transformers

from dpspec.errors import DpspecError
from dpspec.integrations.huggingface import DPSpecCallback
from dpspec.results.checked_run import CheckedRun
from support.two_processes.training import cases, private_parts, records, summary


def trained(folder: Path, fault: str) -> CheckedRun | None:
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
    parts = {"train_dataset": records(), "callbacks": [callback], "optimizers": (optimizer, None)}
    trainer = PrivateTrainer(model, arguments, **parts)
    torch.seed()
    with callback:
        trainer.train()
    return callback.checked


for folder, fault in cases():
    try:
        checked = trained(folder, fault)
        if checked is not None:
            print(f"{fault}: {summary(checked)}")
    except DpspecError as error:
        print(f"{fault}: {error}")
