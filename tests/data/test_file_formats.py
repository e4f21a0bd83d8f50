"""Files of another format than declared are named, with the key that reads them."""

import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.refused import refused

from dpspec.contract import DataError, DataSource
from dpspec.data.source import locate

Make = Callable[..., DataSource]

TEXT = b"a,label\n1,0\n2,1\n"


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (gzip.compress(TEXT), "is a gzip file; decompress it"),
        (written(lambda file: zipfile.ZipFile(file, "w").writestr("t.csv", TEXT)), "is a zip archive"),
        (written(lambda file: np.savez(file, x=np.ones(3))), "write kind: npz"),
        (b"PAR1" + bytes(20) + b"PAR1", "write kind: parquet"),
        (pickle.dumps({"a": 1}), "is a pickle, which is never read"),
        (b'[{"a": 1, "label": 0}]', "is JSON"),
        (b"<!DOCTYPE html><html>404</html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1]), "write kind: idx"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",  # compressed files have the time
)
def test_a_table_in_another_format(content: bytes, part: str, source: Make, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    refused(source("csv", tmp_path, path="t.csv", label="label", classes=2), "t.csv: ", part)


def test_arrays_in_another_format(source: Make, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(written(lambda file: np.save(file, np.ones(3))))
    refused(source("npz", tmp_path, path="t", classes=2), "t: is one NumPy array; save x and y in one file")
    (tmp_path / "t").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    refused(
        source("idx", tmp_path, images="t", labels="t"),
        "t: is a PNG image; write kind: images with the folder of the class folders",
    )
    (tmp_path / "t").write_bytes(gzip.compress(TEXT))
    refused(source("tokens", tmp_path, path="t", vocabulary=9, length=2, classes=2), "t: is a gzip file; decompress it")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("https://example.org/t.csv", "read from local files only"),
        ("~/t.csv", "write the whole path"),
        ("train", "did you mean 'train.npz'?"),
        ("link", "is a link to a missing file"),
    ],
)
def test_files_that_are_missing_for_a_reason(name: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "train.npz").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError) as caught:
        locate(tmp_path, name)
    assert part in str(caught.value)
