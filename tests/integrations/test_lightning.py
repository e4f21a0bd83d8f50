"""The callback in Lightning's Trainer: sound trainings, budgets and faults."""

import contextlib
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", exc_type=ImportError)

import lightning
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.loggers import CSVLogger
from support.opacus_training import Training

import dpspec
from dpspec.errors import UsageError
from dpspec.integrations.lightning import DPSpecCallback

pytestmark = pytest.mark.ci


def fitted(
    folder: Path, training: Training, *, manual: bool = False, fault: str = "", around: Any = None, **options: Any
) -> Any:
    """The callback and the trainer after a training.

    around: parts of a recorder around ``fit`` in the place of the callback; options are then of the trainer.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.automatic_optimization = training.model, not manual

        def training_step(self, batch: Any, number: int) -> Any:
            if fault == "silent" and number == 7:
                training.private.noise_multiplier = 0.0
            if fault == "error" and number == 7:
                raise ValueError("of the training")

            x, labels = batch
            outputs = self.model(x.lerp(x.roll(1, 0), 0.3) if fault == "mixup" else x)
            loss = training.criterion(outputs - outputs.mean(0) if fault == "mixed" else outputs, labels)
            if not manual:
                if fault == "plateau":
                    self.log("loss", loss, on_epoch=True)
                return loss
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            if fault == "clipped sum":
                self.clip_gradients(optimizer, gradient_clip_val=0.01)
            optimizer.step()
            return None

        def configure_optimizers(self) -> Any:
            torch_optimizer = training.private.original_optimizer
            if fault == "plateau":
                scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(training.private)
                return {"optimizer": training.private, "lr_scheduler": scheduler, "monitor": "loss"}
            return {"torch": torch_optimizer, "two": [training.private, torch_optimizer]}.get(fault, training.private)

    if fault == "changed":

        def change(*_: Any) -> None:
            for p in training.private.params:
                p.grad.mul_(1.001)

        training.private.original_optimizer.register_step_pre_hook(change)
    trainer_options = {} if around is None else options
    options = options if around is None else {}
    callback = DPSpecCallback(folder, **{"epsilon": 50.0, "engine": training.engine, **options})
    quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        max_epochs=training.epochs,
        min_epochs=training.epochs,
        accelerator="cpu",
        logger=CSVLogger(str(folder.parent), name="logs", version=0),
        callbacks=[callback] if around is None else [],
        log_every_n_steps=1,
        accumulate_grad_batches=2 if fault == "accumulated" else 1,
        **{**quiet, **trainer_options},
    )
    loader = training.loader
    if fault == "loader":
        loader = torch.utils.data.DataLoader(loader.dataset, batch_size=30, shuffle=True)
    with contextlib.nullcontext() if around is None else training.recorder(folder, **around):
        trainer.fit(Task(), loader)
    return callback, trainer


@pytest.mark.parametrize(("clipping", "manual"), [("flat", False), ("ghost", True)])
def test_a_sound_training_is_proved_and_logged(clipping: str, manual: bool, tmp_path: Path) -> None:
    callback, _ = fitted(tmp_path / "run", Training(clipping=clipping).build(), manual=manual)
    assert callback.checked.passed
    header, *rows = (tmp_path / "logs" / "version_0" / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert {"dp/epsilon", "dp/cautions", "dp/proved"} <= set(header.split(","))
    assert len(rows) >= 3
    assert (tmp_path / "run.html").exists()


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}])
def test_a_recorder_around_fit_proves_a_sound_training(options: dict[str, Any], tmp_path: Path) -> None:
    training = Training().build()
    optimizer = LightningOptimizer(training.private)  # its class derives from the class of the optimizer inside
    fitted(tmp_path / "run", training, around={} if options else {"optimizer": optimizer}, **options)
    assert dpspec.check(tmp_path / "run", epsilon=50).passed


def test_the_training_stops_at_the_budget(tmp_path: Path) -> None:
    training = Training(epochs=50).build()
    callback, trainer = fitted(tmp_path / "run", training, stop_at_epsilon=4.0, epsilon=None, report=False)
    assert callback.checked.proved
    next_step = dpspec.epsilon(noise_multiplier=1.1, rate=0.1, steps=trainer.global_step + 1, delta=1e-5)
    assert callback.checked.epsilon <= 4.0 < next_step.lower


@pytest.mark.parametrize(
    ("fault", "words", "clipping", "manual"),
    [
        ("loader", "the loader's batches are shuffled", "flat", False),
        ("mixup", "changed-inputs", "flat", False),
        ("mixed", "A record changes the results of other records", "flat", False),
        ("plateau", "metric-scheduler", "flat", False),
        ("silent", "13 of 20 updates got no noise", "flat", True),
        ("changed", "The optimizer's gradient is not the noisy sum", "flat", True),
        ("clipped sum", "other gradients than the second backward pass left", "ghost", True),
    ],
)
def test_faults_do_not_pass(fault: str, words: str, clipping: str, manual: bool, tmp_path: Path) -> None:
    training = Training(clipping=clipping).build()
    checked = fitted(tmp_path / "run", training, manual=manual, fault=fault, report=False)[0].checked
    assert not checked.passed
    (audit,) = checked.result.audits
    reasons = [verdict.reason for verdict in audit.verdicts]
    assert words in " ".join([*audit.recording.faults, audit.conformance.reason, *reasons, *checked.cautions])


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("torch", "the trainer steps SGD, not Opacus' optimizer"),
        ("two", "the callback records one optimizer, and the module has 2"),
        ("accumulated", "Poisson sampling is not compatible with grad accumulation"),
    ],
)
def test_faults_that_end_the_training(fault: str, words: str, tmp_path: Path) -> None:
    error = ValueError if fault == "accumulated" else UsageError
    with pytest.raises(error, match=words):
        fitted(tmp_path / "run", Training().build(), manual=fault == "two", fault=fault)


def test_an_error_of_the_training_ends_the_recording(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the training"):
        fitted(tmp_path / "run", Training().build(), fault="error")
    assert (tmp_path / "run" / "public.log").exists()


def test_the_script_of_the_guide_is_proved_and_stops_at_its_budget(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "audit-in-a-trainer.md"
    blocks = re.findall(r"<!-- file: fitted.py -->\n```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", *blocks], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PROVED  epsilon <= " in done.stdout
