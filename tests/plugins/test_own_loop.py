"""A team's own loop in a package, with the descriptor of the how-to, keeps the contract of backends."""

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


def test_the_how_to_shows_the_descriptor_that_is_tested():
    code = (PACKAGE / "dpspec_own_loop" / "__init__.py").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert code.split('"""', 2)[2].strip() in [block.strip() for block in blocks]
