"""The cost of a recording in a trainer: processor time of a step with and without dpspec, in one process.

    python tests/benchmarks/trainers.py [--stack trainer ghost lightning flower mlflow] [--steps 150]

A step of Flower is a round of a server with 10 clients that send constant updates. MLflow's figure is one call with the
result of a check. Medians are of the steps after the first 50, some of which are replayed at a fixed cost.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

FIRST, BATCH = 50, 64


class Classifier(nn.Module):
    """A model of 12,010 parameters."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 10))

    def forward(self, x, **_):
        return self.layers(x)


def private_parts(*, ghost=False):
    """The model, Opacus' optimizer, criterion and loader, the engine, and a list that gets the time of each step."""
    data = [{"x": row, "labels": torch.tensor(number % 10)} for number, row in enumerate(torch.randn(40 * BATCH, 64))]
    model, engine, criterion = Classifier(), PrivacyEngine(accountant="rdp"), nn.CrossEntropyLoss()
    model, optimizer, *others, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        data_loader=DataLoader(data, batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        criterion=criterion,
        grad_sample_mode="ghost" if ghost else "hooks",
    )
    times = []
    optimizer.original_optimizer.register_step_post_hook(lambda *_: times.append(time.process_time()))
    return model, optimizer, others[0] if others else criterion, loader, engine, times


def trainer_times(folder, steps, *, recorded, ghost=False):
    """The times of the steps of Hugging Face's Trainer."""
    import transformers

    from dpspec.integrations.huggingface import DPSpecCallback

    model, optimizer, criterion, loader, engine, times = private_parts(ghost=ghost)

    class PrivateTrainer(transformers.Trainer):
        def get_train_dataloader(self):
            return loader

        def training_step(self, *inputs, **counts):
            optimizer.zero_grad()
            return super().training_step(*inputs, **counts)

        def compute_loss(self, model, inputs, *_, **counts):
            return criterion(model(inputs["x"]), inputs["labels"])

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=steps,
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=steps,
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    callbacks = [DPSpecCallback(folder / "run", engine=engine, report=False)] if recorded else []
    trainer = PrivateTrainer(
        model, arguments, train_dataset=loader.dataset, callbacks=callbacks, optimizers=(optimizer, None)
    )
    torch.seed()
    trainer.train()
    return times


def lightning_times(folder, steps, *, recorded):
    """The times of the steps of Lightning's Trainer."""
    import lightning

    from dpspec.integrations.lightning import DPSpecCallback

    model, optimizer, criterion, loader, engine, times = private_parts()

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = model

        def training_step(self, batch, number):
            return criterion(self.network(batch["x"]), batch["labels"])

        def configure_optimizers(self):
            return optimizer

    lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        callbacks=[DPSpecCallback(folder / "run", engine=engine, report=False)] if recorded else [],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Task(), loader)
    return times


class Clients:
    """Flower's interface to 10 clients, each of which adds 0.01 to all values."""

    def get_node_ids(self):
        return list(range(1, 11))

    def send_and_receive(self, messages, **_):
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

        replies = []
        for message in messages:
            state = {name: value + 0.01 for name, value in message.content["arrays"].to_torch_state_dict().items()}
            content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 8})})
            replies.append(Message(content=content, reply_to=message))
        return replies


def flower_times(folder, steps, *, recorded):
    """The times of rounds of Flower's server."""
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    from dpspec.integrations.flower import RecordedStrategy

    for name in ("_run_id", "_node_id", "_task_id"):  # which Flower's runtime sets in a server's process
        setattr(TaskIdentity, name, 1)
    inner, times = FedAvg(fraction_train=1.0, fraction_evaluate=0.0), []
    configure = inner.configure_train
    inner.configure_train = lambda *arguments: times.append(time.process_time()) or configure(*arguments)
    private = DifferentialPrivacyServerSideFixedClipping(inner, 3.0, 0.5, 10)
    strategy = RecordedStrategy(private, folder / "run", clients=10) if recorded else private
    with strategy if recorded else contextlib.nullcontext():
        arrays = ArrayRecord(Classifier().state_dict())
        strategy.start(grid=Clients(), initial_arrays=arrays, num_rounds=steps)
    return times


def measure_mlflow(folder):
    """Print the processor time of one call with the result of a check."""
    import mlflow

    import dpspec
    from dpspec.integrations.trackers import log_to_mlflow

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    mlflow.set_tracking_uri((folder / "runs").as_uri())
    result = dpspec.run(Path(__file__).parents[2] / "specs" / "bounds-only.yaml", train=False)
    with mlflow.start_run():
        log_to_mlflow(result)
        start = time.process_time()
        log_to_mlflow(result)
        print(f"mlflow: {time.process_time() - start:.2f} s each call")


STACKS = {
    "trainer": trainer_times,
    "ghost": lambda folder, steps, recorded: trainer_times(folder, steps, recorded=recorded, ghost=True),
    "lightning": lightning_times,
    "flower": flower_times,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", nargs="+", default=[*STACKS, "mlflow"], choices=[*STACKS, "mlflow"])
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for stack in options.stack:
        with tempfile.TemporaryDirectory() as name:
            if stack == "mlflow":
                measure_mlflow(Path(name))
                continue
            medians = []
            for recorded in (False, True):
                with contextlib.redirect_stdout(None):
                    times = STACKS[stack](Path(name), options.steps, recorded=recorded)
                steps = [later - earlier for earlier, later in zip(times[FIRST:], times[FIRST + 1 :], strict=False)]
                medians.append(1e3 * statistics.median(steps))
            print(f"{stack}: {medians[0]:.1f} ms a step, {medians[1]:.1f} ms recorded")
