"""The callback in Hugging Face's Trainer: sound trainings, budgets and faults."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers", exc_type=ImportError)

import torch
import transformers
from opacus import PrivacyEngine
from support.opacus_training import SECRET
from torch import nn
from torch.utils.data import DataLoader

from dpspec.errors import UsageError
from dpspec.integrations.huggingface import DPSpecCallback
from dpspec.recording.folder.facts import Facts
from dpspec.recording.folder.run_folder import RunFolder

pytestmark = pytest.mark.ci


class Classifier(nn.Module):
    """A model whose forward pass returns the loss, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Fitted:
    """A training by Trainer with the callback. fault: the name of a fault, empty for a sound training."""

    def __init__(
        self, folder: Path, fault: str = "", *, wrap: bool = True, ghost: bool = False, **options: Any
    ) -> None:
        torch.manual_seed(SECRET)
        x = torch.randn(300, 6)
        data = [{"x": row, "labels": (row[0] > 0).long()} for row in x]
        model, engine = Classifier(), PrivacyEngine()
        ghost_options = {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()} if ghost else {}
        hooked, self.optimizer, *criterion, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
            data_loader=DataLoader(data, batch_size=30),  # type: ignore[arg-type]
            noise_multiplier=1.1,
            max_grad_norm=1.0,
            wrap_model=wrap,
            **ghost_options,
        )
        optimizer = self.optimizer

        class PrivateTrainer(transformers.Trainer):  # type: ignore[misc, name-defined]
            def get_train_dataloader(self) -> Any:
                return super().get_train_dataloader() if fault == "loader" else loader

            def training_step(self, *inputs: Any, **counts: Any) -> Any:
                if fault != "uncleared":
                    optimizer.zero_grad()
                if fault == "silent" and self.state.global_step == 7:
                    optimizer.noise_multiplier = 0.0
                if fault == "inner" and self.state.global_step == 7:
                    self.optimizer = optimizer.original_optimizer
                return super().training_step(*inputs, **counts)

            def compute_loss(self, model: Any, inputs: Any, *given: Any, **counts: Any) -> Any:
                if fault == "mixed":
                    logits = model(**inputs)["logits"]
                    return nn.functional.cross_entropy(logits - logits.mean(0), inputs["labels"])
                if fault == "tokens":
                    return super().compute_loss(model, inputs, *given, **counts)
                if ghost:
                    return criterion[0](model(**inputs)["logits"], inputs["labels"])
                return model(**inputs)["loss"]

        arguments = transformers.TrainingArguments(
            output_dir=str(folder.parent / "checkpoints"),
            num_train_epochs=options.pop("epochs", 2),
            gradient_accumulation_steps=2 if fault == "accumulated" else 1,
            seed=42 if fault == "seed" else SECRET % 2**32,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=5,
            max_grad_norm=1.0 if fault == "clipped sum" else 0.0,
            remove_unused_columns=False,
            disable_tqdm=True,
        )
        self.callback = DPSpecCallback(folder, **{"epsilon": 50.0, "engine": engine, **options})
        optimizers = (optimizer.original_optimizer if fault == "torch" else optimizer, None)
        self.trainer = PrivateTrainer(
            model=hooked if wrap else model,
            args=arguments,
            train_dataset=data,
            callbacks=[self.callback],
            optimizers=optimizers,
        )

    def train(self) -> "Fitted":
        if self.trainer.args.seed != 42:
            torch.seed()
        self.trainer.train()
        return self


@pytest.mark.parametrize(("wrap", "ghost"), [(True, False), (False, False), (True, True), (False, True)])
def test_a_sound_training_is_proved_and_its_logs_have_epsilon(wrap: bool, ghost: bool, tmp_path: Path) -> None:
    fitted = Fitted(tmp_path / "run", wrap=wrap, ghost=ghost).train()
    checked, logs = fitted.callback.checked, fitted.trainer.state.log_history
    assert checked is not None
    assert checked.passed
    epsilons = [entry["dp/epsilon"] for entry in logs]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(checked.epsilon)
    assert [entry["dp/cautions"] for entry in logs] == [0] * len(logs)
    assert logs[-1]["dp/proved"] is True
    assert (tmp_path / "run.html").read_text(encoding="utf-8").startswith("<!")


def test_the_logs_count_cautions_during_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpspec.recording.rules.guessable_seed._GUESSABLE", 2**32)  # tests/conftest.py sets 0
    history = Fitted(tmp_path / "run", "seed", report=False).train().trainer.state.log_history
    assert [history[0]["dp/cautions"], history[-1]["dp/cautions"]] == [1, 1]


def test_the_training_stops_at_the_budget(tmp_path: Path) -> None:
    fitted = Fitted(tmp_path / "run", stop_at_epsilon=4.0, epsilon=None, report=False, epochs=50).train()
    checked = fitted.callback.checked
    assert checked is not None
    assert checked.proved
    assert 3.8 < (checked.epsilon or 0.0) <= 4.0
    assert fitted.trainer.state.global_step < 100


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("loader", "sampling"),
        ("mixed", "A record changes the results of other records"),
        ("silent", "13 of 20 updates got no noise"),
        ("accumulated", "drawn records without a clipped norm"),
        ("inner", "without noise"),
        ("clipped sum", "other gradients than the second backward pass left"),
    ],
)
def test_faults_are_not_proved(fault: str, words: str, tmp_path: Path) -> None:
    ghost = fault == "clipped sum"  # where the trainer's own clipping changes Opacus' sum before the noise
    checked = Fitted(tmp_path / "run", fault, ghost=ghost, report=False).train().callback.checked
    assert checked is not None
    assert not checked.proved
    (audit,) = checked.result.audits
    assert audit.recording is not None
    reasons = [verdict.reason for verdict in audit.verdicts]
    assert words in " ".join([*audit.recording.facts, audit.conformance.reason, *reasons])


def error_of(folder: Path) -> str:
    (end,) = [step for step in RunFolder.open(folder).steps() if isinstance(step, Facts)]
    return end.error


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("torch", UsageError, "the trainer steps AdamW, not Opacus' optimizer"),
        ("tokens", UsageError, "the trainer passes num_items_in_batch to the model"),
        ("uncleared", ValueError, "Gradients haven't been cleared"),
    ],
)
def test_faults_that_end_the_training(fault: str, error: type[Exception], words: str, tmp_path: Path) -> None:
    fitted = Fitted(tmp_path / "run", fault, report=False)
    with pytest.raises(error, match=words), fitted.callback:
        fitted.train()
    if fault != "torch":
        assert error_of(tmp_path / "run") == error.__name__
    assert fitted.callback.checked is None


def test_a_recording_that_an_exception_interrupts_ends_with_the_process(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]!r}
from pathlib import Path
from test_huggingface import Fitted
fitted = Fitted(Path({str(tmp_path / "run")!r}), "uncleared")
fitted.train()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert "Gradients haven't been cleared" in done.stderr
    assert error_of(tmp_path / "run") == "ValueError"


#: Changes of the guide's script that make its clipping ghost clipping.
GHOST = {
    "hooks, optimizer, loader =": "hooks, optimizer, criterion, loader =",
    "    wrap_model=False,": '    wrap_model=False, grad_sample_mode="ghost", criterion=torch.nn.CrossEntropyLoss(),',
    'losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")': "",
    "return (losses.sum(1) / (labels != -100).sum(1).clamp_min(1)).mean()": (
        "return criterion(logits.flatten(0, 1), labels.flatten(), shape=labels.shape)"
    ),
}


@pytest.mark.parametrize("changes", [{}, GHOST], ids=["flat", "ghost"])
def test_the_script_of_the_guide_is_proved_and_stops_at_its_budget(changes: dict[str, str], tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "audit-in-a-trainer.md"
    (code,) = re.findall(r"<!-- file: tuned.py -->\n```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    for old, new in changes.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PROVED  epsilon <= " in done.stdout
