"""dpspec's own data kinds, models, losses, scores and backend, under the suites that plugin authors use."""

import functools
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpspec.contract import Facts
from dpspec.registry.loader import Candidate, Registry, build
from dpspec.testing import BackendSuite, DatasetSuite, LossSuite, ModelSuite, ScoreSuite


@functools.cache
def ours() -> Registry:
    return build([Candidate(distribution="dpspec", version="0", plugin="builtin", value="dpspec.registry.builtin")])


def write_npz(suite: Any, directory: Path) -> None:
    np.savez(directory / "rows.npz", x=np.random.default_rng(1).normal(size=(20, 3)), y=np.arange(20) % 2)


def write_csv(suite: Any, directory: Path) -> None:
    (directory / "rows.csv").write_text("a,b,label\n" + "".join(f"{i},{i / 7},{i % 3}\n" for i in range(12)))


PICTURES = Facts(records=10, features=784, classes=10, shape=(1, 28, 28))
OWN: list[tuple[type, dict[str, Any]]] = [
    (DatasetSuite, {"kind": "digits"}),
    (DatasetSuite, {"kind": "declared", "rows": False, "options": {"records": 50}}),
    (DatasetSuite, {"kind": "synthetic", "options": {"records": 50}}),
    (DatasetSuite, {"kind": "npz", "options": {"path": "rows.npz", "classes": 2}, "write_files": write_npz}),
    (
        DatasetSuite,
        {"kind": "csv", "options": {"path": "rows.csv", "label": "label", "classes": 3}, "write_files": write_csv},
    ),
    (ModelSuite, {"kind": "mlp", "options": {"hidden": [8, 4], "activation": "tanh"}}),
    (ModelSuite, {"kind": "cnn-small", "facts": PICTURES}),
    (ModelSuite, {"kind": "resnet20"}),
    (LossSuite, {"kind": "binary-cross-entropy", "options": {"label_smoothing": 0.2}}),
    (LossSuite, {"kind": "huber", "classes": 1}),
    (BackendSuite, {"kind": "native"}),
    (ScoreSuite, {"kind": "path"}),
    (ScoreSuite, {"kind": "shadow"}),
]
CASES = [
    pytest.param(base, attributes, name, id=f"{attributes['kind']}-{name.removeprefix('test_')}")
    for base, attributes in OWN
    for name in dir(base)
    if name.startswith("test_")
]


@pytest.mark.family
@pytest.mark.parametrize(("base", "attributes", "name"), CASES)
def test_a_promise_is_kept(base: type, attributes: dict[str, Any], name: str, tmp_path: Path) -> None:
    method = getattr(type("Suite", (base,), {"registry": staticmethod(ours), **attributes})(), name)
    method(tmp_path) if "tmp_path" in inspect.signature(method).parameters else method()
