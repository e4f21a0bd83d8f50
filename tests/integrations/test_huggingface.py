"""The callback in Hugging Face's and TRL's trainers, with LoRA: sound trainings, budgets and faults."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers", exc_type=ImportError)
pytest.importorskip("peft", exc_type=ImportError)

import peft
import torch
import transformers
from opacus import PrivacyEngine
from support.opacus_training import SECRET
from torch import nn
from torch.utils.data import DataLoader

import dpspec
from dpspec.errors import UsageError
from dpspec.integrations.huggingface import DPSpecCallback
from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.observers.all import OBSERVERS

pytestmark = pytest.mark.ci


WIDTH, TOKENS = 8, 60


def padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Cut a batch at its longest record: few have all tokens."""
    ids = torch.stack([row["input_ids"] for row in rows]) if rows else torch.zeros(0, WIDTH, dtype=torch.long)
    ids = ids[:, : WIDTH if (ids[:, 0] == 7).any() else 5]
    return {"input_ids": ids, "labels": ids}


def sft_parts(fault: str) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """TRL's trainer and arguments, and options of both."""
    trl = pytest.importorskip("trl", exc_type=ImportError)
    from tokenizers import Tokenizer, models

    words = models.WordLevel({f"t{number}": number for number in range(TOKENS)}, unk_token="t0")
    special = {"unk_token": "t0", "pad_token": "t1", "eos_token": "t2"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **special)
    options = {"dataset_kwargs": {"skip_prepare_dataset": True}, "gradient_checkpointing": False, "bf16": False}
    if fault in ("packing", "padding_free"):
        options |= {fault: True, "max_length": WIDTH if fault == "packing" else None}
    return trl.SFTTrainer, trl.SFTConfig, {"processing_class": tokenizer}, options


class Fitted:
    """A training of LoRA adapters with the callback. fault: the name of a fault, empty for a sound training.

    stack: ``flat`` or ``ghost`` clipping in ``Trainer``, or ``sft``, flat clipping in TRL's trainer.
    """

    def __init__(self, folder: Path, fault: str = "", *, stack: str = "flat", wrap: bool = False, **options: Any):
        torch.manual_seed(SECRET)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        base = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=TOKENS, **sizes))
        model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).train()
        ids = torch.randint(0, TOKENS, (300, WIDTH))
        data: Any = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in ids]
        engine, ghost = PrivacyEngine(), stack == "ghost"
        hooked, self.optimizer, *criterion, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01),
            data_loader=DataLoader(data, batch_size=30, collate_fn=padded if fault == "padded" else None),
            noise_multiplier=1.1,
            max_grad_norm=1.0,
            wrap_model=wrap,
            **({"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()} if ghost else {}),
        )
        optimizer = self.optimizer
        second = torch.optim.SGD(base.lm_head.parameters(), lr=0.1)
        base.lm_head.weight.requires_grad_(fault == "unfrozen")
        trainer_class, arguments_class = transformers.Trainer, transformers.TrainingArguments
        trainer_options: dict[str, Any] = {}
        arguments_options: dict[str, Any] = {}
        if stack == "sft":
            data = pytest.importorskip("datasets").Dataset.from_list(data).with_format("torch")
            trainer_class, arguments_class, trainer_options, arguments_options = sft_parts(fault)

        class PrivateTrainer(trainer_class):  # type: ignore[misc, valid-type]
            def get_train_dataloader(self) -> Any:
                return super().get_train_dataloader() if fault == "loader" else loader

            def training_step(self, *inputs: Any, **counts: Any) -> Any:
                if fault != "uncleared":
                    optimizer.zero_grad()
                if fault == "reseeded":
                    torch.manual_seed(SECRET)
                if fault == "silent" and self.state.global_step == 7:
                    optimizer.noise_multiplier = 0.0

                loss = super().training_step(*inputs, **counts)
                if fault == "unfrozen":
                    second.step()
                return loss

            def compute_loss(self, model: Any, inputs: Any, *given: Any, **counts: Any) -> Any:
                if fault in ("tokens", "smoothed"):
                    return super().compute_loss(model, inputs, *given, **counts)
                logits, labels = model(input_ids=inputs["input_ids"]).logits[:, :-1], inputs["labels"][:, 1:]
                if fault == "mixed":
                    logits = logits - logits.mean(0)
                if ghost:
                    return criterion[0](logits.flatten(0, 1), labels.flatten(), shape=labels.shape)
                losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(1)
                if fault == "largest":
                    return losses.topk(-(-len(losses) // 2)).values.mean()
                return losses.sum() if fault == "sum" else losses.mean()

        arguments = arguments_class(
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
            label_smoothing_factor=0.1 if fault == "smoothed" else 0.0,
            **arguments_options,
        )
        self.callback = DPSpecCallback(folder, **{"epsilon": 50.0, "engine": engine, **options})
        self.trainer = PrivateTrainer(
            model=hooked if wrap else model,
            args=arguments,
            train_dataset=data,
            callbacks=[self.callback],
            optimizers=(optimizer.original_optimizer if fault == "torch" else optimizer, None),
            **trainer_options,
        )

    def train(self) -> "Fitted":
        if self.trainer.args.seed != 42:
            torch.seed()
        self.trainer.train()
        return self


@pytest.mark.parametrize(("stack", "wrap"), [("flat", False), ("ghost", True), ("sft", False)])
def test_a_sound_training_is_proved_and_its_logs_have_epsilon(stack: str, wrap: bool, tmp_path: Path) -> None:
    fitted = Fitted(tmp_path / "run", stack=stack, wrap=wrap).train()
    checked, logs = fitted.callback.checked, fitted.trainer.state.log_history
    assert checked is not None
    assert checked.passed
    epsilons = [entry["dp/epsilon"] for entry in logs]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(checked.epsilon)
    assert [entry["dp/cautions"] for entry in logs] == [0] * len(logs)
    assert logs[-1]["dp/proved"] is True
    assert (tmp_path / "run.html").read_text(encoding="utf-8").startswith("<!")


def test_the_logs_count_cautions_during_the_training(tmp_path: Path) -> None:
    history = Fitted(tmp_path / "run", "seed", report=False).train().trainer.state.log_history
    assert [history[0]["dp/cautions"], history[-1]["dp/cautions"]] == [1, 1]


def test_the_training_stops_at_the_budget(tmp_path: Path) -> None:
    options: dict[str, Any] = {"stop_at_epsilon": 4.0, "epsilon": None, "report": False, "epochs": 50}
    fitted = Fitted(tmp_path / "run", **options).train()
    checked, steps = fitted.callback.checked, fitted.trainer.state.global_step
    assert checked is not None
    assert checked.proved
    assert checked.epsilon is not None
    assert checked.epsilon <= 4.0 < dpspec.epsilon(noise_multiplier=1.1, rate=0.1, steps=steps + 1, delta=1e-5).lower


#: Faults of all stacks, with words of the report.
FAULTS = {
    "loader": "the loader's batches are unknown",
    "mixed": "A record changes the results of other records",
    "silent": "13 of 20 updates got no noise",
    "accumulated": "drawn records without a clipped norm",
    "unfrozen": "Another optimizer (SGD) stepped 20 times on 1 tensors of the model",
    "reseeded": "Draw new noise for every coordinate",
    "padded": "varying-padding",
    "sum": 'give the loss the reduction "mean"',
    "largest": "zero-gradient-rows",
    "clipped sum": "other gradients than the second backward pass left",
}
_CASES = [("flat", fault) for fault in FAULTS if fault != "clipped sum"]  # of Opacus' sum, before the noise
_CASES += [("ghost", "silent"), ("ghost", "clipped sum"), ("sft", "mixed"), ("sft", "padded")]


@pytest.mark.parametrize(("stack", "fault"), _CASES)
def test_faults_do_not_pass(stack: str, fault: str, tmp_path: Path) -> None:
    checked = Fitted(tmp_path / "run", fault, stack=stack, report=False).train().callback.checked
    assert checked is not None
    assert not checked.passed
    (audit,) = checked.result.audits
    assert audit.recording is not None
    reasons = [verdict.reason for verdict in audit.verdicts]
    assert FAULTS[fault] in " ".join([*audit.recording.faults, audit.conformance.reason, *reasons, *checked.cautions])


def error_of(folder: Path) -> str:
    (end,) = [step for step in RunFolder.open(folder, OBSERVERS).steps() if isinstance(step, Facts)]
    return end.error


@pytest.mark.parametrize(
    ("stack", "fault", "error", "words"),
    [
        ("flat", "torch", UsageError, "the trainer steps AdamW, not Opacus' optimizer"),
        ("flat", "tokens", UsageError, "the trainer's loss divides by num_items_in_batch"),
        ("flat", "uncleared", ValueError, "Poisson sampling is not compatible with grad accumulation"),
        ("sft", "tokens", UsageError, "the trainer's loss divides by num_items_in_batch"),
        ("sft", "smoothed", UsageError, "the trainer's loss divides by num_items_in_batch"),
        ("sft", "packing", UsageError, "packing=True puts several records into one row"),
        ("sft", "padding_free", UsageError, "padding_free=True puts several records into one row"),
    ],
)
def test_faults_that_end_the_training(stack, fault, error, words, tmp_path):
    fitted = Fitted(tmp_path / "run", fault, stack=stack, report=False)
    with pytest.raises(error, match=words), fitted.callback:
        fitted.train()
    if fault in ("tokens", "smoothed", "uncleared"):
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
    assert "Poisson sampling is not compatible with grad accumulation" in done.stderr
    assert error_of(tmp_path / "run") == "ValueError"


def test_the_script_of_the_guide_is_proved_and_stops_at_its_budget(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "audit-in-a-trainer.md"
    (code,) = re.findall(r"<!-- file: tuned.py -->\n```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PROVED  epsilon <= " in done.stdout
