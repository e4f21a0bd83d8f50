"""The options that all kinds share: split, size, seed, standardise, radius."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpspec.contract import DataError, DataSource, Facts, FrozenMap, LoadedData
from dpspec.data import Source, whole_facts, whole_rows
from dpspec.data import source as limits
from dpspec.data.source import checked, select, transformed

Make = Callable[..., DataSource]


def _select(records: int, **options: Any) -> LoadedData:
    numbers = np.arange(records)
    whole = LoadedData(
        train_x=numbers.astype(np.float32)[:, None], train_y=numbers, test_x=np.zeros((0, 1)), test_y=numbers[:0]
    )
    facts = Facts(records=records, features=1, classes=records, shape=(1,))
    selection = select(FrozenMap(options), facts)
    rows = selection.rows(whole)
    assert selection.records == len(rows.train_y)
    assert selection.test_records == len(rows.test_y)
    return rows


@given(data=st.data(), records=st.integers(3, 80), seed=st.integers(0, 2**63 - 1))
def test_split_and_size_partition_the_records(data: st.DataObject, records: int, seed: int) -> None:
    test = data.draw(st.integers(1, records - 2))
    size = data.draw(st.integers(1, records - test - 1))
    split = {"test": float(test), "seed": seed}
    whole = _select(records, split=split)
    assert sorted([*whole.train_y, *whole.test_y]) == list(range(records))
    assert np.array_equal(whole.train_x[:, 0], whole.train_y)
    smaller, larger = (_select(records, split=split, size=n, seed=seed) for n in (size, size + 1))
    assert np.array_equal(smaller.test_y, whole.test_y)
    assert len(smaller.train_y) == size
    assert set(smaller.train_y) < set(larger.train_y) <= set(whole.train_y)
    assert (np.diff(smaller.train_y) > 0).all()


def test_draws_are_the_same_with_every_numpy() -> None:
    assert _select(20, split={"test": 5.0, "seed": 3}).test_y.tolist() == [6, 9, 10, 14, 16]
    assert _select(20, size=5, seed=3).train_y.tolist() == [1, 2, 5, 9, 10]


@pytest.mark.parametrize(
    ("test", "records", "count"), [(0.2, 1797, 359), (0.5, 5, 3), (1.0, 2, 1), (4.0, 5, 4), (0.001, 600, 1)]
)
def test_split_is_a_fraction_or_a_count(test: float, records: int, count: int) -> None:
    assert len(_select(records, split={"test": test}).test_y) == count


def test_a_published_split_is_a_list_of_records() -> None:
    """In any order; what is drawn from a seed has another digest, even where it draws the same number."""
    rows = _select(6, split={"test": (4, 1)}, size=3)
    assert rows.test_y.tolist() == [1, 4]
    assert set(rows.train_y) < {0, 2, 3, 5}
    facts = Facts(records=6, features=1, classes=6, shape=(1,))
    keys = [select(FrozenMap({"split": {"test": test}}), facts).key for test in ((4, 1), (1, 4), (1, 5), 2.0)]
    assert keys[0] == keys[1]
    assert keys[0] not in keys[2:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": {"test": (3, 10)}}, "holds out record 10, but the last of 10 records is 9"),
        ({"split": {"test": tuple(range(10))}}, "holds out all 10 records"),
        ({"split": {"test": 2.5}}, "a fraction below 1 or an integer, got 2.5"),
        ({"split": {"test": 0.01}}, "holds out 0 of 10 records"),
        ({"size": 11}, "size is 11, but there are only 10 training records"),
    ],
)
def test_selections_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        _select(10, **options)


def test_split_is_refused_where_test_records_exist(source: Make, files: Any) -> None:
    with pytest.raises(DataError, match="already has test records"):
        source("npz", files, path="arrays.npz", classes=3, split={"test": 0.5}).facts()


def test_standardise_by_one_constant_per_feature_or_channel() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = transformed(vectors, FrozenMap({"standardise": {"mean": [1.0, 2.0, 3.0], "std": 2.0}}), "x")
    assert got.tolist() == [[-0.5, -0.5, -0.5], [1, 1, 1]]
    images = np.ones((4, 2, 3, 3), dtype=np.float32)
    got = transformed(images, FrozenMap({"standardise": {"mean": [0.0, 1.0], "std": [2.0, 4.0]}}), "x")
    assert (got[:, 0] == 0.5).all()
    assert (got[:, 1] == 0).all()


@pytest.mark.parametrize(("kind", "wanted"), [("digits", r"per channel \(1\)"), ("synthetic", r"per feature \(16\)")])
def test_wrong_number_of_constants_is_refused_by_facts_and_load(kind: str, wanted: str, source: Make) -> None:
    made = source(kind, standardise={"mean": [1.0, 2.0]})
    for step in (made.facts, made.load):
        with pytest.raises(DataError, match=f"standardise.mean must list one number {wanted}, got 2"):
            step()


def test_standardise_that_overflows_is_refused() -> None:
    with pytest.raises(DataError, match="x: record 1 is not finite in float32 \\(after standardise\\)"):
        transformed(np.array([[0], [1e30]], dtype=np.float32), FrozenMap({"standardise": {"std": 1e-30}}), "x")


@given(x=arrays(np.float32, (4, 6), elements=st.floats(-(2.0**100), 2.0**100, width=32)), radius=st.floats(1e-6, 1e6))
def test_radius_is_never_exceeded_and_short_records_are_left_alone(x: Any, radius: float) -> None:
    got = transformed(x, FrozenMap({"radius": radius}), "x")
    before, after = (np.linalg.norm(a.astype(np.float64), axis=1) for a in (x, got))
    assert (after <= radius).all()
    assert np.array_equal(got[before <= radius], x[before <= radius])
    assert (after[before > radius] >= radius * (1 - 1e-6)).all()
    assert got.dtype == np.float32


@pytest.mark.parametrize("shape", [(41, 5), (9, 2, 4, 4)])
def test_blocks_give_the_bits_of_the_whole(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32) * 3
    options = FrozenMap({"standardise": {"mean": 0.1, "std": 0.3}, "radius": 2.0})
    whole = transformed(x, options, "x")
    monkeypatch.setattr(limits, "_BLOCK", 2 * x[0].size)
    assert np.array_equal(transformed(x, options, "x"), whole)
    integers = np.arange(x.size).reshape(shape)
    assert np.array_equal(checked(integers, np.zeros(len(x), dtype=np.int64), 2, "x")[0], integers.astype(np.float32))
    integers = integers.astype(np.float64)
    integers[7] = np.inf
    with pytest.raises(DataError, match="record 7 is not finite"):
        checked(integers, np.zeros(len(x), dtype=np.int64), 2, "x")


@pytest.mark.family
@pytest.mark.parametrize("kind", ["npz-float64", "npz-uint8", "csv", "parquet"])
def test_loading_takes_at_most_the_planned_memory(kind, source, tmp_path):
    change = {"split": {"test": 0.5}, "standardise": {"mean": 0.5}, "radius": 0.5}
    records, width = (10_000, 8) if kind in ("csv", "parquet") else (4000, 200)
    table = {"label": "y", "classes": ["no", "yes"]}
    if kind.startswith("npz"):
        x, y = np.zeros((records, width), dtype=kind.partition("-")[2]), np.zeros(records, dtype=np.int64)
        np.savez_compressed(tmp_path / "x.npz", x=x, y=y)
        made = source("npz", tmp_path, path="x.npz", classes=2, **change)
    elif kind == "csv":
        names, line = ",".join([*(f"a{i}" for i in range(width)), "y"]), ",".join(["1.5"] * width + ["yes"])
        (tmp_path / "x.csv").write_text(f"{names}\n" + f"{line}\n" * records, encoding="utf-8")
        made = source("csv", tmp_path, path="x.csv", **table, **change)
    else:
        pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        columns = {f"a{i}": np.zeros(records) for i in range(width)}
        pq.write_table(pa.table({**columns, "y": ["yes"] * records}), tmp_path / "x.parquet")
        made = source("parquet", tmp_path, path="x.parquet", **table, **change)
    made.facts()
    tracemalloc.start()
    try:
        made.load()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    planned = made.loading_bytes()  # type: ignore[attr-defined]
    assert planned / 4 < peak < planned + 2**25  # temporary arrays of one block


def test_a_data_kind_by_hook_has_the_shared_keys(tmp_path: Path) -> None:
    """The keys of ``dpspec.data.schema`` select and scale the rows of a plugin's source."""

    class Rows(Source):
        def describe(self) -> Any:
            return whole_facts(10, (2,), 2, "rows")

        def read(self) -> Any:
            return whole_rows((np.arange(20.0).reshape(10, 2), np.arange(10) % 2))

    def source(**options: Any) -> Rows:
        return Rows(FrozenMap(options), tmp_path)

    whole, held = source(), source(split={"test": [9, 0]}, size=5, radius=3.0)
    assert (held.facts().records, held.facts().test_records) == (5, 2)
    assert held.facts().digest != whole.facts().digest
    loaded = held.load()
    assert loaded.test_x.shape == (2, 2)
    assert np.linalg.norm(loaded.test_x, axis=1).max() <= 3.0
    assert not {*loaded.train_y.shape} - {5}
