from dpspec.testing import CanarySuite, ScoreSuite


class TestUpsideDown(CanarySuite):
    kind = "upside-down"


class TestAround(ScoreSuite):
    kind = "around"
