"""LoRA adapters of causal language models of transformers, trained with Opacus' ghost clipping and recorded.

They need ``dpspec[llm]``. Small configurations are initialized at random, without a download. Batches are split by
``BatchMemoryManager``, and the trainings of two processes use ``gloo``. The started processes import this module.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import dpspec
from support.checked_runs import Question, check_run
from support.opacus_training import physical_batches

RECORDS, LENGTH, VOCABULARY = 256, 12, 200


class NextToken(nn.Module):
    """The mean over the tokens of each sequence, not over the batch, which would mix records."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
        each = losses.sum(1) / (labels[:, 1:] != -100).sum(1)
        return each if self.reduction == "none" else each.mean()


def sequences() -> list[dict[str, Tensor]]:
    """Right-padded token ids of 6 to 12 tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, VOCABULARY, (RECORDS, LENGTH), generator=generator)
    there = (torch.arange(LENGTH) < torch.randint(6, LENGTH + 1, (RECORDS, 1), generator=generator)).long()
    labels = torch.where(there == 1, ids, -100)
    return [
        {"input_ids": i, "attention_mask": t, "labels": y} for i, t, y in zip(ids * there, there, labels, strict=True)
    ]


def gpt2() -> Any:
    size = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=0)), ["c_attn"]


def llama() -> Any:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=32, **size)
    return transformers.LlamaForCausalLM(config), ["q_proj", "v_proj"]


@dataclass
class Adapted:
    """One training. each: is called with the training and the rank after each step."""

    folder: Path
    make: Callable[..., Any] = gpt2
    world: int = 1
    epochs: int = 4
    each: Callable[[Adapted, int], None] | None = None

    def train(self, rank: int = 0) -> None:
        if self.world > 1:
            distributed.init_process_group(
                "gloo", init_method=f"file://{self.folder}.store", rank=rank, world_size=self.world
            )
        torch.set_num_threads(1)
        torch.manual_seed(0)
        base, layers = self.make()
        config = peft.LoraConfig(r=4, target_modules=layers, task_type="CAUSAL_LM", lora_dropout=0.0)
        self.adapted: Any = peft.get_peft_model(base, config).train()
        torch.seed()  # each rank draws its own records
        module = DifferentiallyPrivateDistributedDataParallel(self.adapted) if self.world > 1 else self.adapted
        engine = PrivacyEngine(accountant="rdp")
        self.model, self.optimizer, criterion, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01),
            data_loader=DataLoader(sequences(), batch_size=64),  # type: ignore[arg-type]
            criterion=NextToken(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode="ghost",
        )

        with dpspec.record(self.folder, model=self.model, optimizer=self.optimizer, loader=loader, engine=engine):
            for _ in range(self.epochs):
                with physical_batches(loader, self.optimizer, 16) as batches:
                    for batch in batches:
                        self.optimizer.zero_grad()
                        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
                        criterion(self.model(**inputs).logits, batch["labels"]).backward()
                        self.optimizer.step()
                        if self.each is not None and not self.optimizer._is_last_step_skipped:
                            self.each(self, rank)


def _rank(rank: int, training: Adapted) -> None:
    warnings.simplefilter("ignore")
    training.train(rank)
    distributed.destroy_process_group()


def checked(training: Adapted) -> Any:
    if training.world > 1:
        torch.multiprocessing.spawn(_rank, args=(training,), nprocs=training.world)
    else:
        training.train()
    return check_run(training.folder, Question(delta=1e-5, epsilon=20.0))
