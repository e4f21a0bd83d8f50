"""``npz``: numpy's archive of arrays, read without pickle."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.files import check_count, locate, sha256, shortened
from dpspec.data.options import CLASSES, path, schema
from dpspec.data.source import Source

if TYPE_CHECKING:
    import numpy as np

DATASET = Dataset(
    kind="npz",
    summary="Arrays x and y, and perhaps x_test and y_test, of a numpy .npz file.",
    schema=schema(
        {
            "path": path("The .npz file: x is (n, features), (n, height, width) or (n, channels, height, width)."),
            "classes": CLASSES,
        },
        required=["path", "classes"],
    ),
    source="dpspec.data.npz:Npz",
)


#: Names that a message lists at most.
_SHOWN = 20


class Npz(Source):
    """Features ``x`` of any real dtype and integer labels ``y``; images without channels get one."""

    def describe(self) -> Facts:
        """Shapes from the arrays' headers, digest from the file."""
        file = self._file()
        with _open(file) as archive:
            shape, labels = self._shape(archive, "x"), self._shape(archive, "y")
            test: tuple[int, ...] = (0, *shape[1:])
            test_labels: tuple[int, ...] = (0,)
            if _has_test(archive):
                test, test_labels = self._shape(archive, "x_test"), self._shape(archive, "y_test")
        if test[1:] != shape[1:]:
            raise DataError(f"{file}: records of x_test have shape {test[1:]}, those of x {shape[1:]}")
        for name, wanted, got in (("y", shape[:1], labels), ("y_test", test[:1], test_labels)):
            if got != wanted:
                raise DataError(f"{file}: {name} must have shape {wanted}, one label per record, got {got}")
        return Facts(
            records=shape[0],
            features=prod(shape[1:]),
            classes=int(self.options["classes"]),
            shape=_record(shape),
            test_records=test[0],
            digest=digest({"kind": "npz", "file": sha256(file)}),
        )

    def read(self) -> LoadedData:
        """All arrays, images with their channel axis."""
        with _open(self._file()) as archive:
            x, y = self._array(archive, "x"), self._array(archive, "y")
            test_x, test_y = x[:0], y[:0]
            if _has_test(archive):
                test_x, test_y = self._array(archive, "x_test"), self._array(archive, "y_test")
        return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)

    def _file(self) -> Path:
        return locate(self.directory, self.options["path"])

    def _shape(self, archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
        """The shape of an array from its header alone, refused where it could not be loaded."""
        with _member(archive, name) as member:
            return _header(member, f"{self.what()}: {name}", "iu" if name.startswith("y") else "fiu")

    def _array(self, archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
        import numpy as np

        shape = self._shape(archive, name)
        with _member(archive, name) as member:
            array: np.ndarray[Any, Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array if name.startswith("y") else array.reshape(shape[0], *_record(shape))


def _has_test(archive: zipfile.ZipFile) -> bool:
    """Whether test records are there; half of a pair is an error that names the other half."""
    return not {"x_test.npy", "y_test.npy"}.isdisjoint(archive.namelist())


def _record(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one record: (n, height, width) are images of one channel."""
    return (1, *shape[1:]) if len(shape) == 3 else shape[1:]


def _header(member: IO[bytes], what: str, kinds: str) -> tuple[int, ...]:
    import numpy as np

    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    else:
        raise DataError(f"{what} is in .npy format {version}, which holds no plain numbers")
    if dtype.kind not in kinds:
        raise DataError(f"{what} must hold {'integers' if kinds == 'iu' else 'real numbers'}, got dtype {dtype}")
    if not (len(shape) == 1 if kinds == "iu" else 2 <= len(shape) <= 4):
        raise DataError(f"{what} must have {'1 axis' if kinds == 'iu' else '2 to 4 axes'}, got shape {shape}")
    check_count(what, shape)
    return tuple(int(n) for n in shape)


@contextmanager
def _open(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever goes wrong becomes a ``DataError``.

    Every exception, since foreign bytes make zip, zlib and numpy's header parser raise more kinds than can be listed.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{file}: not a readable .npz file: {error}") from error


@contextmanager
def _member(archive: zipfile.ZipFile, name: str) -> Iterator[IO[bytes]]:
    try:
        member = archive.open(f"{name}.npy")
    except KeyError:
        names = ", ".join(shortened(other.removesuffix(".npy")) for other in archive.namelist()[:_SHOWN])
        raise DataError(f"{archive.filename}: has no array {name!r} (its arrays: {names})") from None
    with member:
        yield member
