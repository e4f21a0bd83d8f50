"""Two published wrappers of Hugging Face's Trainer, unchanged: dp-lora 0.1.0 and DPTrainer 0.1.2 (without its pins)."""

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers", exc_type=ImportError)

import torch
import transformers
from support.opacus_training import SECRET
from torch import nn

import dpspec
from dpspec.errors import UsageError
from dpspec.integrations.huggingface import DPSpecCallback
from dpspec.reporters.terminal import render_brief
from dpspec.results.checked_run import CheckedRun

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore")]


def arguments(folder: Path, **options: Any) -> Any:
    return transformers.TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        learning_rate=0.1,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        remove_unused_columns=False,
        disable_tqdm=True,
        max_grad_norm=0.0,
        **options,
    )


def words_of(checked: CheckedRun) -> str:
    (audit,) = checked.result.audits
    assert audit.recording is not None
    reasons = [verdict.reason for verdict in audit.verdicts]
    return " ".join([*audit.recording.faults, audit.conformance.reason, *reasons, *checked.cautions])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        (4000, {"max_steps": 30, "per_device_train_batch_size": 40}, ""),
        (
            400,
            {"max_steps": 40, "per_device_train_batch_size": 10, "gradient_accumulation_steps": 4},
            "steps without an observed batch",
        ),
        (30, {"max_steps": 60, "per_device_train_batch_size": 1}, "more-rows-than-records"),
        (
            405,
            {"max_steps": 8, "per_device_train_batch_size": 40, "dataloader_drop_last": True},
            "sampling rate of the accountant",
        ),
        (
            400,
            {"max_steps": 8, "per_device_train_batch_size": 40, "poisson": False},
            "the distribution of the batches is unknown",
        ),
    ],
    ids=["sound", "noise for a quarter of the steps", "random record for an empty batch", "other rate", "shuffled"],
)
def test_dptrainer(records: int, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    dptrainer = pytest.importorskip("dptrainer", exc_type=ImportError)
    x = torch.randn(records, 20)
    privacy = {"target_epsilon": 4.0, "target_delta": 1e-5, "poisson_sampling": options.pop("poisson", True)}
    trainer = dptrainer.DPTrainer(
        model=Classifier(),
        args=arguments(tmp_path, restore_callback_states_from_checkpoint=True, **options),
        train_dataset=[{"x": row, "labels": (row[0] > 0).long()} for row in x],
        privacy_args=dptrainer.PrivacyArguments(per_sample_max_grad_norm=1.0, **privacy),
    )
    callback = DPSpecCallback(tmp_path / "run", engine=trainer.dp_callback.accountant, epsilon=4.0, report=False)
    trainer.add_callback(callback)
    torch.manual_seed(SECRET)  # the first batch is not empty: Opacus cannot collate such a one
    trainer.train()
    assert callback.checked is not None
    assert callback.checked.proved == (not message), words_of(callback.checked)
    assert message in words_of(callback.checked)


def dp_lora_trainer(folder: Path, *, callbacks: list[Any], **options: Any) -> Any:
    peft = pytest.importorskip("peft", exc_type=ImportError)
    pytest.importorskip("dp_lora", exc_type=ImportError)
    from dp_lora.config import DPLoRAConfig
    from dp_lora.integrations.hf_trainer import DPLoRATrainer

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=100, **sizes))
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_B" in name)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    ids = torch.randint(0, 100, (200, 8))
    return DPLoRATrainer(
        model=model,
        args=arguments(folder, max_steps=40, per_device_train_batch_size=20),
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        callbacks=callbacks,
        dp_config=DPLoRAConfig(noise_multiplier=1.0, max_grad_norm=1.0, **options),
    )


@pytest.mark.parametrize("ghost", [False, True])
def test_the_callback_refuses_the_optimizer_of_dp_lora(ghost: bool, tmp_path: Path) -> None:
    trainer = dp_lora_trainer(tmp_path, ghost_clipping=ghost, callbacks=[DPSpecCallback(tmp_path / "run")])
    with pytest.raises(UsageError, match="the trainer steps DPOptimizer, not Opacus' optimizer"):
        trainer.train()


class Reported(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Reports the steps of dp-lora's optimizer as those of a custom loop. cleared: clears its sums in each step."""

    def __init__(self, run: Any, trainer: Any, monkeypatch: pytest.MonkeyPatch, *, cleared: bool) -> None:
        from dp_lora.optimizers import dp_optimizer

        self.run, self.cleared, self.optimizer = run, cleared, trainer.dp_engine._dp_optimizer
        self.batches: list[list[int]] = []
        self.clear()
        clip, generate = dp_optimizer.DPOptimizer.clip_and_accumulate, dp_optimizer._generate_noise

        def observed_clip(optimizer: Any, gradients: Any) -> Any:
            squares = [g.reshape(g.shape[0], -1).norm(dim=1) ** 2 for _, g in gradients]
            norms = torch.stack(squares).sum(0).sqrt()
            factors = (1.0 / (norms + 1e-8)).clamp(max=1.0)
            self.norms = norms * factors
            self.sums = [torch.einsum("i,i...->...", factors, g) for _, g in gradients]
            return clip(optimizer, gradients)

        def observed_noise(*given: Any, **options: Any) -> torch.Tensor:
            self.noise.append(generate(*given, **options))
            return self.noise[-1]

        monkeypatch.setattr(dp_optimizer.DPOptimizer, "clip_and_accumulate", observed_clip)
        monkeypatch.setattr(dp_optimizer, "_generate_noise", observed_noise)
        sampler = type(trainer._dp_dataloader.batch_sampler)
        iterate = sampler.__iter__

        def observed_batches(self_: Any) -> Any:
            for batch in iterate(self_):
                self.batches.append(batch)
                yield batch

        monkeypatch.setattr(sampler, "__iter__", observed_batches)

    def clear(self) -> None:
        self.norms: torch.Tensor | None = None
        self.sums: list[torch.Tensor] = []
        self.noise: list[torch.Tensor] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.run.__enter__()  # after accelerate has marked the model

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.run.__exit__(None, None, None)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.clear()
        if self.cleared:
            self.optimizer._summed_grads.clear()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.run.sampled(self.batches[-1])
        if self.norms is not None:
            self.run.clipped(self.norms)
            self.run.summed(self.sums)
        if self.noise:
            self.run.noised(self.noise)
        self.run.stepped()


@pytest.mark.parametrize(
    ("options", "cleared", "messages"),
    [
        ({}, True, ()),
        ({}, False, ("gradients other than the reported sum and noise",)),
        (
            {"ghost_clipping": True},
            False,
            ("the noise was not observed at 40 of 40 steps", "single contributions were not observed"),
        ),
    ],
    ids=["sums cleared by the test", "sums never cleared", "ghost clipping without clipping and noise"],
)
def test_dp_lora(options, cleared, messages, tmp_path, monkeypatch):
    trainer = dp_lora_trainer(tmp_path, callbacks=[], **options)
    declared: Any = {"noise_multiplier": 1.0, "clip_norm": 1.0, "rate": 0.1, "records": 200}
    run = dpspec.record(tmp_path / "run", model=trainer.model, optimizer=trainer.optimizer, **declared)
    trainer._dp_setup()
    trainer.add_callback(Reported(run, trainer, monkeypatch, cleared=cleared))
    torch.seed()
    trainer.train()
    assert trainer.log_privacy()["steps"] == 40  # its accountant counts all steps
    assert trainer.log_privacy()["epsilon"] == pytest.approx(5.43, abs=0.01)
    checked = dpspec.check(tmp_path / "run", epsilon=8)
    assert checked.proved == (not messages), words_of(checked)
    report = " ".join(render_brief(checked.result).split())
    assert [message for message in messages if message not in f"{words_of(checked)} {report}"] == [], report
