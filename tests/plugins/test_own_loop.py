"""A team's own loop, as the how-to shows it, keeps the contract of backends and is audited like any other."""

import re
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from dpspec.registry.loader import Candidate, build
from dpspec.testing import BackendSuite

PACKAGE = Path(__file__).parent / "dpspec_own_loop"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-loop-as-backend.md"


@pytest.fixture(autouse=True, scope="module")
def installed():
    sys.path.insert(0, str(PACKAGE))
    yield
    sys.path.remove(str(PACKAGE))


class TestOwnLoop(BackendSuite):
    kind = "own-loop"
    schemes: ClassVar = frozenset({"poisson"})

    @staticmethod
    def registry():
        return build([Candidate(distribution="dpspec-own-loop", version="0", plugin="own", value="dpspec_own_loop")])


@pytest.mark.parametrize("name", ["__init__.py", "loop.py"])
def test_the_how_to_shows_the_code_that_is_tested(name):
    code = (PACKAGE / "dpspec_own_loop" / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert any(block.strip() in code for block in blocks if "class OwnLoop" in block or "dpspec_backends" in block)
    assert code.split('"""', 2)[2].strip() in [block.strip() for block in blocks]
