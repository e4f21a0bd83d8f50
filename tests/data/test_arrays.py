"""csv, npz and idx: rows, and errors for unusable files."""

import gzip
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refused import refused

from dpspec.contract import DataSource
from dpspec.data import source as limits

Make = Callable[..., DataSource]

TABLE: dict[str, Any] = {"path": "table.csv", "label": "label", "classes": ["no", "yes"]}
ARRAYS: dict[str, Any] = {"path": "arrays.npz", "classes": 3}
IMAGES: dict[str, Any] = {"images": "images", "labels": "labels"}
TESTED: dict[str, Any] = {**IMAGES, "test_images": "test_images", "test_labels": "test_labels"}


@pytest.mark.parametrize(
    ("kind", "options", "file"),
    [
        ("csv", TABLE, "table.csv"),
        ("npz", ARRAYS, "arrays.npz"),
        ("idx", IMAGES, "labels"),
        ("idx", TESTED, "test_images"),
        ("parquet", {**TABLE, "path": "table.parquet"}, "table.parquet"),
    ],
)
def test_files_that_are_absent_odd_or_huge(kind, options, file, source, files, parquet, monkeypatch):
    parquet(a=range(12), label=["no", "yes"] * 6)
    path, made = files / file, source(kind, files, **options)
    made.facts()
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_BYTES", path.stat().st_size - 1)
        refused(made, "bytes; at most")
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_VALUES", 7)
        refused(made, "values; at most 7")
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_RECORDS", 3)
        refused(made, "records; at most 3")
    path.unlink()
    refused(made, str(path), "no such file")
    os.mkfifo(path)
    refused(made, str(path), "not a regular file")
    path.unlink()
    path.mkdir()
    refused(made, str(path), "is a folder; name a file in it")
    path.rmdir()
    path.write_bytes(b"")
    refused(made, str(path), "is empty")


@pytest.mark.skipif(not os.path.exists("/proc/self/pagemap"), reason="files that hide their size")
@pytest.mark.parametrize("name", ["pagemap", "environ"])
def test_files_of_the_system_stay_unread(name: str, source: Make, files: Path) -> None:
    """The first file is endless, and a message must not quote the secrets in the second."""
    refused(source("csv", files, **{**TABLE, "path": f"/proc/self/{name}"}), f"{name}: is empty")


def test_paths_are_relative_to_the_specs_directory(source: Make, files: Path) -> None:
    nested = files / "specs"
    nested.mkdir()
    assert source("csv", nested, **{**TABLE, "path": "../table.csv"}).facts().records == 12
    assert source("csv", nested, **{**TABLE, "path": str(files / "table.csv")}).facts().records == 12
    refused(source("csv", nested, **TABLE), "no such file")
    refused(source("csv", files, **{**TABLE, "path": "a\0b"}), "cannot be opened")
    refused(source("csv", files, **{**TABLE, "path": "table.csv/x"}), "cannot be opened")


def _csv(files: Path, text: str | bytes) -> None:
    (files / "table.csv").write_bytes(text.encode() if isinstance(text, str) else text)


def test_csv_values(source: Make, files: Path) -> None:
    rows = source("csv", files, **TABLE).load()
    assert np.array_equal(rows.train_x, np.array([[i, i / 7] for i in range(12)], dtype=np.float32))
    assert rows.train_y.tolist() == [1, 0] * 6
    rows = source("csv", files, **TABLE, columns=["b"]).load()
    assert rows.train_x.shape == (12, 1)
    swapped = source("csv", files, **TABLE, columns=["b", "a"])
    assert np.array_equal(swapped.load().train_x[:, 1], np.arange(12))
    assert swapped.facts().digest != source("csv", files, **TABLE).facts().digest
    other = source("csv", files, **{**TABLE, "classes": ["yes", "no"]})
    assert other.load().train_y.tolist() == [0, 1] * 6
    assert other.facts().digest != source("csv", files, **TABLE).facts().digest


def test_csv_dialect(source: Make, files: Path) -> None:
    _csv(files, '﻿"a, or so", label ,b\r\n 1e2 ,0,"-.5"\r\n\r\n3,1,4\r\n')
    made = source("csv", files, path="table.csv", label="label", classes=2)
    assert made.facts().records == 2
    rows = made.load()
    assert rows.train_x.tolist() == [[100, -0.5], [3, 4]]
    assert rows.train_y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("Zoe,Zoe,label\n1,2,yes\n", {}, ["columns 1 and 2 have the same name; rename one column"]),
        (",b,,\n1,2,yes,\n", {}, ["columns 1 and 4 have no name; remove separators at the ends of lines"]),
        ("\n", {}, ["is empty", "must name the columns"]),
        ("a,label\n1e39,yes\n", {}, ["record 0 is not finite in float32"]),
        ("a,label\n" + "1" * 200_000 + ",yes\n", {}, ["not a readable CSV file", "field larger than"]),
    ],
)
def test_csv_refuses(text: str | bytes, options: dict[str, Any], parts: list[str], source: Make, files: Path) -> None:
    _csv(files, text)
    refused(source("csv", files, **{**TABLE, **options}), "table.csv", *parts)


@pytest.mark.parametrize(
    ("shape", "wanted"), [((6, 4), (4,)), ((6, 5, 4), (1, 5, 4)), ((6, 3, 5, 4), (3, 5, 4))], ids=str
)
@pytest.mark.parametrize("dtype", ["<f2", ">i8"])
def test_npz_shapes_and_dtypes(shape, wanted, dtype, source, files):
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    np.savez_compressed(files / "arrays.npz", x=np.asfortranarray(x), y=np.zeros(6, dtype="uint8"))
    made = source("npz", files, **ARRAYS)
    rows = made.load()
    assert made.facts().shape == wanted
    assert rows.train_x.shape == (6, *wanted)
    assert np.array_equal(rows.train_x.reshape(shape), x)
    assert rows.test_x.shape == (0, *wanted)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"x": None}, ["has no array 'x' (its arrays: ", "y"]),
        ({"x": np.ones((30, 5), complex)}, ["x must have real numbers and 2, 3 or 4 axes, got dtype complex128"]),
        ({"x": np.ones((30, 5), object)}, ["got dtype object and shape (30, 5); Python objects are never read"]),
        ({"x": np.ones((0, 5))}, ["x: is empty"]),
        ({"x": np.ones((30, 4))}, ["test records have shape (5,), training records (4,)"]),
        ({"x": np.ones((29, 5))}, ["y must have shape (29,), one label per record, got (30,)"]),
        (
            {"y": np.zeros((30, 1), int)},
            ["y must have integers and 1 axes, got dtype int64 and shape (30, 1); write y.ravel()"],
        ),
        (
            {"y": np.eye(3)[[0] * 30]},
            ["got dtype float64 and shape (30, 3); write y.argmax(axis=1) for one-hot labels"],
        ),
        ({"y_test": np.full(10, 2**64 - 1, "uint64")}, ["(test): the label of record 0 is not in"]),
        ({"x": np.append(np.ones((29, 5)), [[1, 2, np.nan, 4, 5]], axis=0)}, ["record 29 is not finite"]),
    ],
)
def test_npz_refuses(changed, parts, source, files, arrays):
    np.savez(files / "arrays.npz", **{k: v for k, v in {**arrays, **changed}.items() if v is not None})
    refused(source("npz", files, **ARRAYS), "arrays.npz", *parts)


def test_channels_at_the_end_are_a_warning(source: Make, files: Path) -> None:
    for shape, count in (((6, 8, 8, 3), 1), ((6, 3, 8, 8), 0), ((6, 8, 3), 0), ((6, 4), 0)):
        np.savez(files / "arrays.npz", x=np.zeros(shape, "uint8"), y=np.zeros(6, int))
        made: Any = source("npz", files, **ARRAYS)
        assert [remark.code for remark in made.remarks()] == ["channels-last"] * count


def _npy(header: str, version: int = 1) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 * version, "little") + text


@pytest.mark.parametrize(
    ("member", "part"),
    [
        (_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (30, 99999999999)}"), "values; at most"),
        (_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (30, 5)}"), "not a readable .npz file"),
        (_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-30, -5)}"), "is empty"),
        (_npy("{'descr': '|O', 'fortran_order': False, 'shape': (30, 5)}"), "got dtype object"),
        (_npy("__import__('os')"), "not a readable .npz file"),
        (_npy("{}", version=3), "is in .npy format (3, 0)"),
    ],
)
def test_npz_headers_that_lie(member: bytes, part: str, source: Make, files: Path, arrays: dict[str, Any]) -> None:
    np.savez(files / "arrays.npz", **{k: v for k, v in arrays.items() if k != "x"})
    with zipfile.ZipFile(files / "arrays.npz", "a") as archive:
        archive.writestr("x.npy", member)
    refused(source("npz", files, **ARRAYS), "arrays.npz", part)


def test_idx_round_trip_gzipped_or_not(source: Make, files: Path, idx_bytes: Callable[[Any], bytes]) -> None:
    random = np.random.default_rng(8)
    values = {"images": random.integers(0, 256, (5, 4, 3)), "labels": random.integers(0, 10, 5)}
    plain = {name: idx_bytes(array) for name, array in values.items()}
    (files / "images").write_bytes(plain["images"])
    (files / "labels").write_bytes(plain["labels"])
    made = source("idx", files, **IMAGES)
    facts, rows = made.facts(), made.load()
    assert (facts.records, facts.shape, facts.classes, facts.test_records) == (5, (1, 4, 3), 10, 0)
    assert np.array_equal(rows.train_x[:, 0], (values["images"] / 255).astype(np.float32))
    assert np.array_equal(rows.train_y, values["labels"])
    for name, data in plain.items():
        (files / name).write_bytes(gzip.compress(data))
    packed = source("idx", files, **IMAGES)
    assert np.array_equal(packed.load().train_x, rows.train_x)
    assert np.array_equal(packed.load().train_y, rows.train_y)
    assert packed.facts().records == 5


def test_idx_folders_and_names_without_gz(source, files, idx_bytes, monkeypatch):
    before = source("idx", files, **TESTED).facts()
    (files / "specs").mkdir()
    assert source("idx", files / "specs", **TESTED, path="..").facts() == before
    assert source("idx", files / "specs", **TESTED, path=str(files)).facts() == before
    (files / "images").rename(files / "images.gz")  # the name does not decide
    assert source("idx", files, **TESTED).facts() == before
    (files / "images").write_bytes(idx_bytes(np.zeros((20, 9, 8))))
    assert not source("idx", files, **TESTED).load().train_x.any()
    (files / "images").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_BYTES", 10)
        refused(source("idx", files, **IMAGES), "images.gz: ", "bytes; at most")
    (files / "images.gz").unlink()
    refused(source("idx", files / "specs", **IMAGES, path=".."), "images: no such file")


@pytest.mark.parametrize(
    ("file", "change", "parts"),
    [
        ("images", lambda d: b"\0\0\x08\1" + d[4:], ["not an IDX file with 3 axes; images and labels may be swapped"]),
        ("images", lambda d: d[:2] + b"\x0d" + d[3:], ["unsigned bytes (type 0x08), got type 0x0d"]),
        ("images", lambda d: d[:-1], ["declares 1440 bytes of values, but the file contains 1439"]),
        ("images", lambda d: d[:4] + b"\xff" * 12 + d[16:], ["values; at most"]),
        ("images", lambda d: d[:4] + b"\0" * 4 + d[8:], ["is empty"]),
        ("images", lambda d: d[:7] + b"\x13" + d[8:], ["20 labels for the 19 images of"]),
        ("images", lambda d: gzip.compress(d)[:-8] + b"\0" * 8, ["cannot be read"]),
        (
            "labels",
            lambda d: gzip.compress(gzip.decompress(d)[:-1] + b"\x0a"),
            ["images and ", "labels: the label of record 19 is not in 0..9"],
        ),
        (
            "test_images",
            lambda d: d[:8] + d[12:16] + d[8:12] + d[16:],
            ["test records have shape (1, 8, 9), training records (1, 9, 8)"],
        ),
    ],
)
def test_idx_refuses(file: str, change: Callable[[bytes], bytes], parts: list[str], source: Make, files: Path) -> None:
    path = files / file
    path.write_bytes(change(path.read_bytes()))
    refused(source("idx", files, **TESTED), *parts)


def test_a_small_archive_of_many_values_is_refused_before_it_is_read(source: Make, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape, kind in (("x", (2**17, 1025), np.float64), ("y", (2**17,), np.int64)):
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                header, {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": shape}
            )
            archive.writestr(f"{name}.npy", header.getvalue())
    made = source("npz", tmp_path, path="bomb.npz", classes=2)
    refused(made, f"x: {2**17 * 1025 * 8} decompressed bytes; the maximum is {2**30}")
