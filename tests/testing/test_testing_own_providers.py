"""dpspec's own data kinds, models and backend, under the suites that plugin authors use."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from dpspec.contract import Facts
from dpspec.registry.loader import Candidate, Registry, build
from dpspec.testing import BackendSuite, DatasetSuite, ModelSuite, ScoreSuite


@functools.cache
def ours() -> Registry:
    return build([Candidate(distribution="dpspec", version="0", plugin="builtin", value="dpspec.registry.builtin")])


class Ours:
    registry = staticmethod(ours)


class TestDigits(Ours, DatasetSuite):
    kind = "digits"


class TestBreastCancer(Ours, DatasetSuite):
    kind = "breast-cancer"

    def options(self, directory):
        return {"split": {"test": 0.2}, "size": 300, "radius": 1.0}


class TestDeclared(Ours, DatasetSuite):
    kind = "declared"
    rows = False

    def options(self, directory):
        return {"records": 50}


class TestSynthetic(TestDeclared):
    kind = "synthetic"
    rows = True


class TestNpz(Ours, DatasetSuite):
    kind = "npz"

    def options(self, directory: Path):
        x, y = np.random.default_rng(1).normal(size=(20, 3)), np.arange(20) % 2
        np.savez(directory / "rows.npz", x=x, y=y)
        return {"path": "rows.npz", "classes": 2}


class TestCsv(Ours, DatasetSuite):
    kind = "csv"

    def options(self, directory: Path):
        (directory / "rows.csv").write_text("a,b,label\n" + "".join(f"{i},{i / 7},{i % 3}\n" for i in range(12)))
        return {"path": "rows.csv", "label": "label", "classes": 3}


class TestIdx(Ours, DatasetSuite):
    kind = "idx"

    def options(self, directory: Path):
        def write(name: str, values: np.ndarray) -> None:
            head = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
            (directory / name).write_bytes(head + values.astype(np.uint8).tobytes())

        write("images", np.arange(6 * 4 * 4).reshape(6, 4, 4))
        write("labels", np.arange(6))
        return {"images": "images", "labels": "labels"}


class TestParquet(Ours, DatasetSuite):
    kind = "parquet"

    def options(self, directory: Path):
        arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = arrow.table({"a": range(12), "size": ["s", "l"] * 6, "label": [i % 3 for i in range(12)]})
        files.write_table(table, directory / "rows.parquet")
        categories = {"size": ["s", "l"]}
        return {"path": "rows.parquet", "label": "label", "classes": 3, "categories": categories}


class TestImages(Ours, DatasetSuite):
    kind = "images"

    def options(self, directory: Path):
        image = pytest.importorskip("PIL.Image")
        for name in ("cat", "dog"):
            (directory / "pictures" / name).mkdir(parents=True, exist_ok=True)
            for i in range(3):
                pixels = np.full((4, 5), 40 * i, dtype=np.uint8)
                image.fromarray(pixels).save(directory / "pictures" / name / f"{i}.png")
        return {"path": "pictures", "classes": ["cat", "dog"], "shape": [1, 4, 5]}


class TestLinear(Ours, ModelSuite):
    kind = "linear"


class TestMlp(Ours, ModelSuite):
    kind = "mlp"
    options: ClassVar = {"hidden": [8, 4], "activation": "tanh"}


class TestCnnSmall(Ours, ModelSuite):
    kind = "cnn-small"
    facts = Facts(records=10, features=784, classes=10, shape=(1, 28, 28))


class TestLenet5(Ours, ModelSuite):
    kind = "lenet5"
    facts = Facts(records=10, features=784, classes=10, shape=(1, 28, 28))


class TestLogistic(Ours, ModelSuite):
    kind = "logistic"


class TestTabularMlp(Ours, ModelSuite):
    kind = "tabular-mlp"
    options: ClassVar = {"hidden": [8, 4]}
    facts = Facts(records=10, features=30, classes=2, shape=(30,))


class TestResnet20(Ours, ModelSuite):
    kind = "resnet20"


class TestWideResnet(Ours, ModelSuite):
    kind = "wide-resnet-16-4"
    options: ClassVar = {"groups": 4}


class TestNative(Ours, BackendSuite):
    kind = "native"


class TestPath(Ours, ScoreSuite):
    kind = "path"


class TestShadow(Ours, ScoreSuite):
    kind = "shadow"
