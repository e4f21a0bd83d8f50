"""Recorded trainings of adapters of language models, correct and with faults."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers", exc_type=ImportError)
pytest.importorskip("peft", exc_type=ImportError)

from support.adapters import Adapted, checked, gpt2, llama
from support.checked_runs import Question, check_run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "audit-a-language-model.md"

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ci]


def merged(training: Adapted, rank: int) -> None:
    """Add the adapter to the frozen weights, and subtract it again."""
    training.adapted.merge_adapter()
    training.adapted.unmerge_adapter()


def trained_head(training: Adapted, rank: int) -> None:
    """Change a frozen weight without noise."""
    training.adapted.base_model.model.lm_head.weight.data[0] += 0.01


def own_step(training: Adapted, rank: int) -> None:
    """Change a part of the adapter after the step."""
    next(p for p in training.adapted.parameters() if p.requires_grad).data.mul_(1.001)


def unfrozen(training: Adapted, rank: int) -> None:
    """Make a layer trainable that Opacus does not wrap, and change it."""
    weight = training.adapted.base_model.model.lm_head.weight
    weight.requires_grad_(True)
    weight.data.mul_(1.001)


@pytest.mark.parametrize(
    ("make", "world"),
    [(gpt2, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((gpt2, 1), (llama, 1), (llama, 2)))],
)
def test_an_adapter_is_proved(make: Callable[[], Any], world: int, tmp_path: Path) -> None:
    found = checked(Adapted(tmp_path / "run", make, world, epochs=2))
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")
    assert found.run.header.clipping == "ghost"
    assert found.run.header.world == (world if world > 1 else 0)
    assumed = {"per-record-clipping", "joined-ranks"} if world > 1 else {"per-record-clipping"}
    assert assumed <= {one.name for one in found.assumptions}


@pytest.mark.parametrize("fault", [merged, trained_head, own_step, unfrozen])
def test_a_fault_of_an_adapter_is_not_proved(fault: Callable[[Adapted, int], None], tmp_path: Path) -> None:
    assert checked(Adapted(tmp_path / "run", each=fault, epochs=1)).verdict != "proved"


def test_the_script_of_the_guide_is_proved_and_its_canaries_give_a_lower_bound(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True)
    found = check_run(tmp_path / "tuned", Question(delta=1e-5, epsilon=5.0))
    assert found.verdict == "proved"
    assert found.canaries is not None
    assert 0.0 < found.canaries.lower <= found.costs[1].interval.upper
