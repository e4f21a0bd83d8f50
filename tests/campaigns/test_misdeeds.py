"""Plugins that misbehave, in small; all of them by hand: ``python tests/campaigns/misdeeds.py``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import misdeeds as campaign
from support.misdeeds.deeds import misdeeds

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")

#: One of each sort; those that hang take seconds.
TRIED = [
    "import: os._exit",
    "import: escapes",
    "import: writes to descriptor 1",
    "import: closes stdout",
    "import: loops",
    "hook: sys.exit",
    "render returns None",
    "render returns bytes",
    "render: escapes",
    "render takes no internal",
    "render is a number",
    "facts returns None",
    "Source is a number",
    "facts.records is negative",
    "bound yields None",
    "plan returns an integer",
    "trials: another index",
    "conclude: ValueError",
    "pool returns None",
    "records: NaN",
    "held directions: supports elsewhere",
    "score: escapes",
    "score writes coins",
]


def test_names_are_unique_and_texts_are_python() -> None:
    every = list(misdeeds())
    assert len({one.name for one in every}) == len(every) > 300
    for one in every:
        compile(one.text, one.name, "exec")
    assert set(TRIED) <= {one.name for one in every}


@pytest.mark.ci
def test_each_is_named_and_other_commands_go_on() -> None:
    chosen = [one for one in misdeeds() if one.name in TRIED]
    wrong = {one.name: said for one, said in campaign.campaign(chosen, jobs=2) if said}
    assert wrong == {}
