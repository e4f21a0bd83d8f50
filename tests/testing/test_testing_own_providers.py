"""dpspec's own data kinds, models and backend, under the suites that plugin authors use."""

import functools
from pathlib import Path
from typing import ClassVar

import numpy as np

from dpspec.contract import Facts
from dpspec.registry.loader import Candidate, Registry, build
from dpspec.testing import BackendSuite, DatasetSuite, LossSuite, ModelSuite, ScoreSuite


@functools.cache
def ours() -> Registry:
    return build([Candidate(distribution="dpspec", version="0", plugin="builtin", value="dpspec.registry.builtin")])


class Ours:
    registry = staticmethod(ours)


class TestDigits(Ours, DatasetSuite):
    kind = "digits"


class TestDeclared(Ours, DatasetSuite):
    kind = "declared"
    rows = False
    options: ClassVar = {"records": 50}


class TestSynthetic(TestDeclared):
    kind = "synthetic"
    rows = True


class TestNpz(Ours, DatasetSuite):
    kind = "npz"
    options: ClassVar = {"path": "rows.npz", "classes": 2}

    def write_files(self, directory: Path):
        x, y = np.random.default_rng(1).normal(size=(20, 3)), np.arange(20) % 2
        np.savez(directory / "rows.npz", x=x, y=y)


class TestCsv(Ours, DatasetSuite):
    kind = "csv"
    options: ClassVar = {"path": "rows.csv", "label": "label", "classes": 3}

    def write_files(self, directory: Path):
        (directory / "rows.csv").write_text("a,b,label\n" + "".join(f"{i},{i / 7},{i % 3}\n" for i in range(12)))


class TestMlp(Ours, ModelSuite):
    kind = "mlp"
    options: ClassVar = {"hidden": [8, 4], "activation": "tanh"}


class TestCnnSmall(Ours, ModelSuite):
    kind = "cnn-small"
    facts = Facts(records=10, features=784, classes=10, shape=(1, 28, 28))


class TestResnet20(Ours, ModelSuite):
    kind = "resnet20"


class TestSmoothing(Ours, LossSuite):
    kind = "binary-cross-entropy"
    options: ClassVar = {"label_smoothing": 0.2}


class TestHuber(Ours, LossSuite):
    kind = "huber"
    classes = 1


class TestNative(Ours, BackendSuite):
    kind = "native"


class TestPath(Ours, ScoreSuite):
    kind = "path"


class TestShadow(Ours, ScoreSuite):
    kind = "shadow"
