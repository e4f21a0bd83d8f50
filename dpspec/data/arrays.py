"""Data kinds ``idx``, the format of MNIST, and ``npz``, numpy's archive, which is read without pickle."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from dpspec.contract import DataError, Dataset, Diagnostic, Json
from dpspec.contract.fragments import string
from dpspec.data.file_formats import IDX_BEGIN, head_of, other_format
from dpspec.data.source import CLASSES, MAX_BYTES, Halves, check_count, locate, path, schema, sha256
from dpspec.text import joined, shortened

if TYPE_CHECKING:
    import numpy as np

    from dpspec.data.source import Rows

    Array = np.ndarray[Any, Any]


_RELATIVE = "Relative to path. If the file does not exist, .gz is appended to its name."

IDX = Dataset(
    kind="idx",
    summary="Images and labels in the IDX format of MNIST, pixels in [0, 1].",
    schema=schema(
        *("images", "labels"),
        path=path("The folder of the files; by default the spec's."),
        images=string(f"The training images: an IDX file of bytes (n, height, width), gzipped or not. {_RELATIVE}"),
        labels=string(f"The training labels: an IDX file of bytes (n), gzipped or not. {_RELATIVE}"),
        test_images=string(f"The test images; goes with test_labels. {_RELATIVE}"),
        test_labels=string(f"The test labels; goes with test_images. {_RELATIVE}"),
        classes={**CLASSES, "default": 10},
    ),
    source="dpspec.data.arrays:Idx",
)

_UNSIGNED_BYTE = 0x08


class Idx(Halves):
    """Images of shape (1, height, width): bytes divided by the public constant 255."""

    def halves(self) -> list[tuple[Path, Path]]:
        named = [("images", "labels"), ("test_images", "test_labels")]
        if not {"test_images", "test_labels"} & self.options.keys():
            named.pop()
        for key in (key for pair in named for key in pair):
            if key not in self.options:
                raise DataError(f"idx data with test records needs test_images and test_labels; {key} is missing")

        def file(key: str) -> Path:
            return locate(self._folder, self.options[key], otherwise=".gz", key=key)

        return [(file(images), file(labels)) for images, labels in named]

    def shape(self, half: tuple[Path, Path]) -> tuple[int, ...]:
        images, labels = half
        with _open_decompressed(images) as file:
            records, *size = _idx_header(file, images, axes=3)
        with _open_decompressed(labels) as file:
            (count,) = _idx_header(file, labels, axes=1)
        if count != records:
            raise DataError(f"{labels}: {count} labels for the {records} images of {images}")
        return (records, 1, *size)

    def rows(self, half: tuple[Path, Path]) -> Rows:
        import numpy as np

        images, labels = half
        pixels = _array(images, axes=3)[:, None].astype(np.float32)
        pixels /= np.float32(255)
        return pixels, _array(labels, axes=1)

    def key(self, halves: list[tuple[Path, Path]]) -> dict[str, Json]:
        return {"kind": "idx", "files": [sha256(file) for pair in halves for file in pair]}

    def what(self, test: bool = False) -> str:
        names = (self.options.get("test_" * test + key) for key in ("images", "labels"))
        return " and ".join(str(self._folder / name) for name in names if name)

    @property
    def _folder(self) -> Path:
        return self.directory / str(self.options.get("path", ""))


def _array(path: Path, axes: int) -> Array:
    import numpy as np

    with _open_decompressed(path) as file:
        shape = _idx_header(file, path, axes)
        expected_bytes = prod(shape)
        values = file.read(expected_bytes + 1)
    if len(values) != expected_bytes:
        raise DataError(
            f"{path}: the header declares {expected_bytes} bytes of values, but the file contains "
            f"{'more' if len(values) > expected_bytes else len(values)}"
        )
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _idx_header(file: IO[bytes], path: Path, axes: int) -> tuple[int, ...]:
    """Read the header: two zero bytes, type, number of axes, and one big-endian 32-bit length per axis."""
    head = file.read(4 + 4 * axes)
    if len(head) < 4 + 4 * axes or head[:2] != b"\0\0" or head[3] != axes:
        labels_for_images = head[:4] == bytes([0, 0, _UNSIGNED_BYTE, 4 - axes])
        described = f"not an IDX file with {axes} {'axis' if axes == 1 else 'axes'}"
        if labels_for_images:
            raise DataError(f"{path}: {described}; images and labels may be swapped")
        raise DataError(f"{path}: {other_format(head, IDX_BEGIN) or described}")
    if head[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path}: IDX values must be unsigned bytes (type 0x08), got type {head[2]:#04x}")
    shape = tuple(int.from_bytes(head[i : i + 4], "big") for i in range(4, len(head), 4))
    check_count(path, shape)
    return shape


@contextmanager
def _open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if it begins like a gzip file. Read errors become ``DataError``."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


NPZ = Dataset(
    kind="npz",
    summary="Arrays x and y, and optionally x_test and y_test, of a numpy .npz file.",
    schema=schema(
        *("path", "classes"),
        path=path("The .npz file: x is (n, features), (n, height, width) or (n, channels, height, width)."),
        classes=CLASSES,
    ),
    source="dpspec.data.arrays:Npz",
)


class Npz(Halves):
    """Features ``x`` of any real dtype and integer labels ``y``. Images without a channel axis get one."""

    def halves(self) -> list[str]:
        with open_archive(self.file()) as archive:
            return [""] if {"x_test.npy", "y_test.npy"}.isdisjoint(archive.namelist()) else ["", "_test"]

    def shape(self, half: str) -> tuple[int, ...]:
        with open_archive(self.file()) as archive:
            return self._shape(archive, half)

    def rows(self, half: str) -> Rows:
        with open_archive(self.file()) as archive:
            shape = self._shape(archive, half)
            return npy_values(archive, f"x{half}").reshape(shape), npy_values(archive, f"y{half}")

    def remarks(self) -> Iterator[Diagnostic]:
        channels, *size = self.describe().shape
        if len(size) == 2 and size[1] in (1, 3, 4) and channels not in (1, 3, 4):
            shape = f"({channels}, {size[0]}, {size[1]})"
            message = f"images of shape {shape} have {channels} channels; the last axis may be the channels"
            yield Diagnostic(
                code="channels-last",
                message=message,
                path=("data", "path"),
                help="channels come first: x.transpose(0, 3, 1, 2)",
                severity="warning",
            )

    def key(self, halves: list[str]) -> dict[str, Json]:
        return {"kind": "npz", "file": sha256(self.file())}

    def file(self) -> Path:
        return locate(self.directory, self.options["path"])

    def _shape(self, archive: zipfile.ZipFile, half: str) -> tuple[int, ...]:
        """Return the shape of the features, if both headers are valid; (n, height, width) are images with a channel."""
        shapes = []
        for name, kinds, axes in ((f"x{half}", "fiu", (2, 3, 4)), (f"y{half}", "iu", (1,))):
            source = f"{self.what()}: {name}"
            shape, dtype = npy_header(archive, name, source)
            if dtype.kind not in kinds or len(shape) not in axes:
                values, axis_counts = "real numbers" if "f" in kinds else "integers", joined([*map(str, axes)], "or")
                message = f"{source} must have {values} and {axis_counts} axes, got dtype {dtype} and shape {shape}"
                raise DataError(message + _conversion(name, shape, dtype), "path")
            check_count(source, shape)
            if (size := prod(shape) * dtype.itemsize) > MAX_BYTES:
                raise DataError(f"{source}: {size} decompressed bytes; the maximum is {MAX_BYTES}")
            shapes.append(shape)
        if shapes[1] != shapes[0][:1]:
            message = f"y{half} must have shape {shapes[0][:1]}, one label per record, got {shapes[1]}"
            raise DataError(f"{self.what()}: {message}")
        records, *record = shapes[0]
        return (records, 1, *record) if len(record) == 2 else shapes[0]


def _conversion(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Return how to convert an array of another type or number of axes; empty if that is not obvious."""
    if dtype.kind == "O":
        return "; Python objects are never read: save an array of numbers"
    if name.startswith("x"):
        return f"; write {name}.reshape(-1, 1) for one feature" if len(shape) == 1 and dtype.kind in "fiu" else ""
    if len(shape) == 2:
        return f"; write {name}.ravel()" if shape[1] == 1 else f"; write {name}.argmax(axis=1) for one-hot labels"
    return f"; write {name}.astype(int)" if dtype.kind in "fb" and len(shape) == 1 else ""


def npy_header(archive: zipfile.ZipFile, name: str, source: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    import numpy as np

    with _member(archive, name) as member:
        version = np.lib.format.read_magic(member)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(member)
        else:
            raise DataError(f"{source} is in .npy format {version}, which is not supported")
    return tuple(int(n) for n in shape), dtype


def npy_values(archive: zipfile.ZipFile, name: str) -> Array:
    """Read an array of an archive. :func:`npy_header` must have shown that it fits into memory."""
    import numpy as np

    with _member(archive, name) as member:
        values: Array = np.lib.format.read_array(member, allow_pickle=False)
    return values


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    try:
        return archive.open(f"{name}.npy")
    except KeyError:
        names = ", ".join(shortened(member.removesuffix(".npy")) for member in archive.namelist()[:20])
        raise DataError(f"{archive.filename or 'the archive'}: has no array {name!r} (its arrays: {names})") from None


@contextmanager
def open_archive(file: Path, content: IO[bytes] | None = None) -> Iterator[zipfile.ZipFile]:
    """Open ``file``, or its ``content`` if it was read before.

    Every error becomes a ``DataError``, because zip, zlib and numpy raise many kinds.
    """
    try:
        with zipfile.ZipFile(content or file) as archive:
            yield archive
    except DataError:
        raise
    except Exception as error:
        described = other_format(head_of(file), b"PK\x03\x04") if content is None else ""
        raise DataError(f"{file}: {described or f'not a readable .npz file: {error}'}") from error
