"""What holds for every data kind: facts are true, rows are right, digests tell them apart, nothing heavy is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from dpspec.contract import DataError, DataSource, Facts, LoadedData
from dpspec.registry.builtin import DATASETS

Make = Callable[..., DataSource]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("digits", {}),
    "breast-cancer": ("breast-cancer", {}),
    "csv": ("csv", {"path": "table.csv", "label": "label", "classes": ["no", "yes"]}),
    "npz": ("npz", {"path": "arrays.npz", "classes": 3}),
    "idx": ("idx", {"images": "images", "labels": "labels"}),
    "parquet": ("parquet", {"path": "table.parquet", "label": "label", "classes": ["no", "yes"]}),
    "pictures": ("images", {"path": "pictures", "classes": ["cat", "dog"], "shape": [3, 6, 5]}),
    "idx-test": (
        "idx",
        {"images": "images", "labels": "labels", "test_images": "test_images", "test_labels": "test_labels"},
    ),
    **{
        pattern: ("synthetic", {"pattern": pattern, "records": 50})
        for pattern in ("blobs", "linear", "rings", "xor", "images")
    },
}
#: Named by what must be fetched: their facts are declared, and their rows are not asked for here.
REMOTE: dict[str, tuple[str, dict[str, Any]]] = {
    "huggingface": (
        "huggingface",
        {"name": "a/b", "revision": "0" * 40, "records": 70, "features": 4, "label": "class", "classes": 2},
    ),
}
OWN_TEST = {"npz", "idx-test"}


@pytest.fixture(autouse=True)
def _more_files(parquet: Callable[..., Path], pictures: Path) -> None:
    parquet(a=range(12), b=[i / 7 for i in range(12)], label=["yes", "no"] * 6)


def _expect(facts: Facts, rows: LoadedData) -> None:
    assert rows.train_x.shape == (facts.records, *facts.shape)
    assert rows.test_x.shape == (facts.test_records, *facts.shape)
    assert rows.train_y.shape == (facts.records,)
    assert rows.test_y.shape == (facts.test_records,)
    assert facts.features == np.prod(facts.shape)
    for x, y in ((rows.train_x, rows.train_y), (rows.test_x, rows.test_y)):
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert np.isfinite(x).all()
        assert ((y >= 0) & (y < facts.classes)).all()


@pytest.mark.parametrize("case", CASES)
def test_options_are_reproducible_and_have_digests_of_their_own(case: str, source: Make, files: Path) -> None:
    kind, own = CASES[case]
    digests = set()
    variants: list[dict[str, Any]] = [
        {},
        {"size": 7, "seed": 1},
        {"size": 7, "seed": 2},
        {"size": 8, "seed": 1},
        {"standardise": {"std": 2.0}},
        {"standardise": {"mean": 2.0}},
        {"radius": 0.5},
        {"radius": 0.25},
        {"standardise": {"mean": 0.5, "std": 2.0}, "radius": 0.75},
    ]
    if case not in OWN_TEST:
        variants += [{"split": {"test": t, "seed": s}} for t in (2.0, 0.4) for s in (0, 1)]
    for options in variants:
        first, second = (source(kind, files, **own, **options) for _ in range(2))
        assert first.facts() == second.facts()
        a, b = first.load(), second.load()
        _expect(first.facts(), a)
        assert np.array_equal(a.train_x, b.train_x)
        assert np.array_equal(a.test_y, b.test_y)
        digests.add(first.facts().digest)
    assert len(digests) == len(variants)


def test_kinds_have_digests_of_their_own(source: Make, files: Path) -> None:
    cases = [*CASES.values(), *REMOTE.values()]
    digests = {source(kind, files, **own).facts().digest for kind, own in cases}
    assert len(digests) == len(cases)


@pytest.mark.parametrize(
    ("kind", "own", "file"),
    [(*CASES["csv"], "table.csv"), (*CASES["npz"], "arrays.npz"), (*CASES["idx-test"], "test_labels")],
    ids=["csv", "npz", "idx"],
)
def test_digest_changes_with_the_file(kind: str, own: dict[str, Any], file: str, source: Make, files: Path) -> None:
    before = source(kind, files, **own).facts().digest
    data = bytearray((files / file).read_bytes())
    data[-1] ^= 1
    (files / file).write_bytes(data)
    if kind == "csv":
        assert source(kind, files, **own).facts().digest != before
        return
    try:
        after = source(kind, files, **own).facts().digest
    except DataError:
        after = None
    assert after != before


def test_options_that_change_no_row_keep_the_digest(source: Make) -> None:
    digest = source("digits").facts().digest
    assert source("digits", seed=5).facts().digest == digest
    assert source("digits", size=1797).facts().digest == digest
    fraction, count = ({"test": 0.25, "seed": 1}, {"test": 449.0, "seed": 1})
    assert source("digits", split=fraction).facts() == source("digits", split=count).facts()


@pytest.mark.parametrize(("kind", "shape", "records"), [("digits", (1, 8, 8), 1797), ("breast-cancer", (30,), 569)])
def test_bundled_data(kind: str, shape: tuple[int, ...], records: int, source: Make) -> None:
    facts, rows = source(kind).facts(), source(kind).load()
    assert (facts.records, facts.shape) == (records, shape)
    if kind == "digits":
        assert (rows.train_x.min(), rows.train_x.max()) == (0, 1)
        assert rows.train_y[:10].tolist() == list(range(10))
    else:
        assert np.abs(rows.train_x.mean(axis=0)).max() < 0.15
        assert np.abs(rows.train_x.std(axis=0) - 1).max() < 0.1
        assert int(rows.train_y.sum()) == 357


def test_bundled_rows_that_are_not_the_described_ones_are_refused(
    source: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = source("digits")
    x, y = made.fetch()  # type: ignore[attr-defined]
    monkeypatch.setattr(made, "fetch", lambda: (x[::-1], y))
    with pytest.raises(DataError, match="scikit-learn has different records"):
        made.load()


def test_declared_data_has_facts_and_no_rows(source: Make) -> None:
    made = source("declared", records=60_000, features=[1, 28, 28], classes=10, test_records=10_000)
    assert made.facts() == Facts(
        records=60_000, features=784, classes=10, shape=(1, 28, 28), test_records=10_000, digest=None
    )
    assert source("declared", records=5).facts().shape == (1,)
    with pytest.raises(DataError, match="has no records"):
        made.load()


def _properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in schema.get("properties", {}).items():
        yield name, inner
        yield from _properties(inner)


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda d: d.kind)
def test_schema_is_valid_and_described(dataset: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(dataset.schema)
    jsonschema.Draft7Validator.check_schema(dataset.schema)
    assert dataset.schema["additionalProperties"] is False
    for name, inner in _properties(dataset.schema):
        assert inner["description"].endswith("."), name
        if "default" in inner:
            jsonschema.validate(inner["default"], inner)


def test_facts_load_nothing_heavy(files: Path) -> None:
    (files / "texts.jsonl").write_text('{"tokens": [1, 2], "label": 1}\n')
    program = f"""
import sys
from importlib import import_module
from pathlib import Path
from dpspec.contract import FrozenMap
from dpspec.registry.builtin import DATASETS
assert "numpy" not in sys.modules
texts = {{"path": "texts.jsonl", "vocabulary": 9, "length": 4, "classes": 2}}
cases = {[*CASES.values(), *REMOTE.values()]!r} + [("declared", {{"records": 3}}), ("tokens", texts)]
cases.append(("synthetic-tokens", {{}}))
for kind, options in cases:
    module, name = next(d.source for d in DATASETS if d.kind == kind).split(":")
    assert getattr(import_module(module), name)(FrozenMap(options), Path({str(files)!r})).facts().records
assert {{d.kind for d in DATASETS}} == {{kind for kind, _ in cases}}
print(sorted({{"torch", "scipy", "sklearn"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
