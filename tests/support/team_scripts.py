"""The scripts of ``tests/e2e/scripts``, which nobody wrote for dpspec's convenience, and how people break theirs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "e2e" / "scripts"

#: Those that a recorder goes around.
RECORDED = ("opacus_tabular", "opacus_images", "plain_microbatches", "opacus_lora", "lightning_opacus")

#: script, fault, the assumption whose check has to be rejected, words of a test that rejects it.
FAULTS = [
    ("opacus_tabular", "told-another-rate", "accounting", "sampling rate of the accountant"),
    ("opacus_tabular", "wrong-optimizer", "noise-scale", "parameter updates without noise"),
    ("opacus_tabular", "shuffled", "sampling", "batches are shuffled"),
    ("opacus_tabular", "noise-forgotten", "noise-scale", "parameter updates without noise"),
    ("opacus_tabular", "last-virtual-step-dropped", "clipping", "drawn records"),
    ("opacus_images", "wrong-optimizer", "update", "outside the DP optimizer"),
    ("opacus_images", "noise-forgotten", "steps", "noise vectors"),
    ("plain_microbatches", "told-another-rate", "sampling", "binomial"),
    ("plain_microbatches", "wrong-optimizer", "update", "outside the DP optimizer"),
    ("plain_microbatches", "shuffled", "sampling", "inclusions per record"),
    ("plain_microbatches", "noise-forgotten", "noise-scale", "chi-square"),
    ("plain_microbatches", "clipping-after-averaging", "clipping", "drawn records without a clipped norm"),
    ("opacus_lora", "adapter-merged", "model-state", "changed model state"),
    ("lightning_opacus", "told-another-rate", "accounting", "sampling rate of the accountant"),
    ("lightning_opacus", "shuffled", "sampling", "batches are shuffled"),
    ("lightning_opacus", "noise-forgotten", "steps", "noise vectors"),
    ("lightning_opacus", "head-fitted", "update", "outside the DP optimizer"),
]

#: What a script needs that the tests do not install.
EXTRAS = {"lightning_opacus": ["lightning"], "peft": ["peft", "transformers"]}


def load(name: str) -> ModuleType:
    """A script as a module; ``ImportError`` where what it needs is not installed."""
    found = importlib.util.spec_from_file_location(f"scripts_{name}", SCRIPTS / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
