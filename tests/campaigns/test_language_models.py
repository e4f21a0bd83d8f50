"""LoRA adapters of language models, in small; they need ``dpspec[llm]``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", exc_type=ImportError)
pytest.importorskip("peft", exc_type=ImportError)
sys.path.insert(0, str(Path(__file__).parent))

import language_models as campaign
from support.checked_runs import Question, check_run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "audit-a-language-model.md"

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ci]


def test_an_adapter_trained_in_two_processes_is_proved(tmp_path: Path) -> None:
    found = campaign.checked(campaign.Adapted(tmp_path / "run", world=2, epochs=2))
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")
    assert found.run.header.clipping == "ghost"
    assert found.run.header.world == 2
    assert {"per-record-clipping", "joined-ranks"} <= {one.name for one in found.assumptions}


@pytest.mark.parametrize("fault", campaign.FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_an_adapter_is_not_proved(fault: campaign.Fault, tmp_path: Path) -> None:
    assert campaign.checked(campaign.Adapted(tmp_path / "run", each=fault, epochs=1)).verdict != "proved"


def test_the_script_of_the_guide_is_proved_and_its_canaries_show_something(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, env=environment, check=True)
    found = check_run(tmp_path / "tuned", Question(delta=1e-5, epsilon=5.0))
    assert found.verdict == "proved"
    assert found.canaries is not None
    assert 0.0 < found.canaries.lower <= found.costs[1].interval.upper
