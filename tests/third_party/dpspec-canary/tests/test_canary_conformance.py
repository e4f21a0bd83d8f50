from __future__ import annotations

from dpspec.testing import CanarySuite, ScoreSuite


class TestUpsideDown(CanarySuite):
    kind = "upside-down"


class TestAround(ScoreSuite):
    kind = "around"
