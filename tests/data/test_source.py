"""For every data kind: correct facts and rows, distinct digests, and no heavy imports."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpspec.contract import DataError, DataSource, Facts

Make = Callable[..., DataSource]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "csv": ("csv", {"path": "table.csv", "label": "label", "classes": ["no", "yes"]}),
    "npz": ("npz", {"path": "arrays.npz", "classes": 3}),
    "parquet": ("parquet", {"path": "table.parquet", "label": "label", "classes": ["no", "yes"]}),
    "idx-test": (
        "idx",
        {"images": "images", "labels": "labels", "test_images": "test_images", "test_labels": "test_labels"},
    ),
    "blobs": ("synthetic", {"records": 50}),
}
OWN_TEST = {"npz", "idx-test"}


@pytest.fixture(autouse=True)
def _more_files(parquet: Callable[..., Path]) -> None:
    parquet(a=range(12), b=[i / 7 for i in range(12)], label=["yes", "no"] * 6)


@pytest.mark.parametrize("case", CASES)
def test_options_are_reproducible_and_have_digests_of_their_own(case: str, source: Make, files: Path) -> None:
    kind, own = CASES[case]
    digests = set()
    variants: list[dict[str, Any]] = [
        {},
        {"size": 7, "seed": 1},
        {"size": 7, "seed": 2},
        {"standardise": {"std": 2.0}},
        {"standardise": {"mean": 2.0}},
        {"radius": 0.5},
        {"standardise": {"mean": 0.5, "std": 2.0}, "radius": 0.75},
    ]
    if case not in OWN_TEST:
        variants += [{"split": {"test": t, "seed": s}} for t in (2.0, 0.4) for s in (0, 1)]
    for options in variants:
        first, second = (source(kind, files, **own, **options) for _ in range(2))
        assert first.facts() == second.facts()
        a, b = first.load(), second.load()
        assert np.array_equal(a.train_x, b.train_x)
        assert np.array_equal(a.test_y, b.test_y)
        digests.add(first.facts().digest)
    assert len(digests) == len(variants)


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
    after = None
    with suppress(DataError) if kind != "csv" else nullcontext():
        after = source(kind, files, **own).facts().digest
    assert after != before


def test_options_that_change_no_row_keep_the_digest(source: Make) -> None:
    digest = source("digits").facts().digest
    assert source("digits", seed=5).facts().digest == digest
    assert source("digits", size=1797).facts().digest == digest
    fraction, count = ({"test": 0.25, "seed": 1}, {"test": 449.0, "seed": 1})
    assert source("digits", split=fraction).facts() == source("digits", split=count).facts()


def test_bundled_data(source: Make) -> None:
    facts, rows = source("digits").facts(), source("digits").load()
    assert (facts.records, facts.shape) == (1797, (1, 8, 8))
    assert (rows.train_x.min(), rows.train_x.max()) == (0, 1)
    assert rows.train_y[:10].tolist() == list(range(10))


def test_bundled_rows_that_are_not_the_described_ones_are_refused(source, monkeypatch):
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
