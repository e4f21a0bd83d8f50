"""Sources by kind, and small files of every format."""

import gzip
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpspec.contract import DataSource, FrozenMap
from dpspec.registry.builtin import DATASETS

CSV = "a,b,label\n" + "".join(f"{i},{i / 7},{('yes', 'no')[i % 2]}\n" for i in range(12))


@pytest.fixture(scope="session")
def source() -> Callable[..., DataSource]:
    def make(kind: str, directory: Path = Path(), **options: Any) -> DataSource:
        module, name = next(d.source for d in DATASETS if d.kind == kind).split(":")
        made: DataSource = getattr(import_module(module), name)(FrozenMap(options), directory)
        return made

    return make


@pytest.fixture(scope="session")
def idx_bytes() -> Callable[[Any], bytes]:
    def write(values: Any) -> bytes:
        array = np.asarray(values, dtype=np.uint8)
        head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
        return head + array.tobytes()

    return write


@pytest.fixture
def arrays() -> dict[str, Any]:
    random = np.random.default_rng(4)
    return {
        "x": random.standard_normal((30, 5)),
        "y": random.integers(0, 3, 30),
        "x_test": random.standard_normal((10, 5)),
        "y_test": random.integers(0, 3, 10),
    }


@pytest.fixture
def files(tmp_path: Path, idx_bytes: Callable[[Any], bytes], arrays: dict[str, Any]) -> Path:
    """A directory with table.csv, arrays.npz and the IDX files images, labels, test_images, test_labels."""
    (tmp_path / "table.csv").write_text(CSV)
    np.savez(tmp_path / "arrays.npz", **arrays)
    random = np.random.default_rng(3)
    for prefix, count in (("", 20), ("test_", 8)):
        (tmp_path / f"{prefix}images").write_bytes(idx_bytes(random.integers(0, 256, (count, 9, 8))))
        (tmp_path / f"{prefix}labels").write_bytes(gzip.compress(idx_bytes(random.integers(0, 10, count)), mtime=0))
    return tmp_path


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., Path]:
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def write(name: str = "table.parquet", **columns: Any) -> Path:
        files.write_table(arrow.table(columns), tmp_path / name)
        return tmp_path / name

    return write
