"""Lower bounds of single fine-tunings of a small Llama by LoRA and by all weights, from the final model only.

    python tests/benchmarks/fine_tuning_canaries.py [--seeds 3] [--count 500]

The model has random weights. DP-SGD (Opacus, ghost clipping, 3 steps of all records) trains the adapter and the output
layer, or all weights. Canaries begin as a record or as one template, and end in one or three new tokens. Each run is
recorded and checked; the lower bound follows from the losses of the new tokens relative to all new tokens (delta 1e-5,
95 %). Needs dpspec[llm].
"""

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from language_canaries import EachMean
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from peft import LoraConfig, get_peft_model
from support.checked_runs import Question, check_run
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import dpspec

RECORDS, WORDS, LENGTH, STEPS, NOISE = 500, 300, 8, 3, 1.877

#: Movement of parameters per sum of clipped gradients, in units of the noise.
MOVE = 0.02

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


class Outcome(NamedTuple):
    verdict: str
    lower: float
    upper: float


class Shifted(EachMean):
    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return super().forward(logits[:, :-1], targets[:, 1:])


def one_run(tuning: str, tokens: int, template: tuple[int, ...], count: int, seed: int, folder: Path) -> Outcome:
    torch.manual_seed(seed)
    rows = torch.randint(0, WORDS, (RECORDS, LENGTH))
    vocabulary = WORDS + count * tokens
    planted = dpspec.plant(
        [{"input_ids": row, "labels": row} for row in rows],
        kind="new-tokens",
        count=count,
        vocabulary=vocabulary,
        tokens=tokens,
        template=template,
        seed=seed,
    )
    base = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **SIZES))
    with torch.no_grad():
        base.lm_head.weight[WORDS:] = base.lm_head.weight[WORDS:].mean(0)
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
    tuned = get_peft_model(base, adapter) if tuning == "LoRA" else base
    tuned.train()
    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    engine = PrivacyEngine()
    model, optimizer, criterion, loader = engine.make_private(
        module=tuned,
        optimizer=torch.optim.SGD(trained, lr=MOVE / NOISE * len(planted)),
        data_loader=DataLoader(planted, batch_size=len(planted)),
        criterion=Shifted(),
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=engine) as run:
        for _ in range(STEPS):
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=128, optimizer=optimizer) as batches:
                for batch in batches:
                    optimizer.zero_grad()
                    criterion(model(input_ids=batch["input_ids"]).logits, batch["labels"]).backward()
                    optimizer.step()

    def relative_loss(model: Any, batch: Any) -> Tensor:
        logits = model(input_ids=batch["input_ids"]).logits[:, -tokens - 1 : -1]
        targets = batch["input_ids"][:, -tokens:, None]
        return (logits[:, :, WORDS:].mean(2) - logits.gather(2, targets)[:, :, 0]).mean(1)

    run.score(model, relative_loss)
    checked = check_run(folder, Question(delta=1e-5, epsilon=4.01))
    assert checked.canaries is not None
    return Outcome(checked.verdict, checked.canaries.lower, checked.costs[1].interval.upper)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--count", type=int, default=500)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    templates: tuple[tuple[int, ...], ...] = ((), (1, 2, 3))
    for tuning, template, tokens in product(("LoRA", "all weights"), templates, (1, 3)):
        start, checked = time.monotonic(), []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                checked.append(one_run(tuning, tokens, template, options.count, seed, Path(folder) / "run"))
        lower = [outcome.lower for outcome in checked]
        upper, verdicts = max(outcome.upper for outcome in checked), {outcome.verdict for outcome in checked}
        print(
            f"| {tuning} | {'template' if template else 'record'} | {tokens} | {upper:.2f} | "
            f"{statistics.median(lower):.2f} ({min(lower):.2f} to {max(lower):.2f}) | {', '.join(sorted(verdicts))} | "
            f"{(time.monotonic() - start) / options.seeds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
