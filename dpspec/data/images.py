"""``images``: a folder of PNG and JPEG pictures for each class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.files import MAX_BYTES, check_count, locate, sha256
from dpspec.data.options import path, schema
from dpspec.data.pictures import KEYS, check_shape, decoded, scaled
from dpspec.data.source import Source

if TYPE_CHECKING:
    import numpy as np

DATASET = Dataset(
    kind="images",
    summary="A folder of PNG and JPEG pictures for each class, pixels in [0, 1] (needs pillow).",
    schema=schema(
        {
            "path": path("The folder that holds a folder of pictures for each class."),
            "test_path": path("The same for the test pictures."),
            "classes": {
                "type": "array",
                "minItems": 2,
                "maxItems": 100_000,
                "uniqueItems": True,
                "items": {"type": "string", "pattern": "^[^./\\\\][^/\\\\]*$"},
                "description": "The names of the classes' folders, class 0 first. A public constant.",
            },
            **KEYS,
        },
        required=["path", "classes", "shape"],
    ),
    source="dpspec.data.images:Images",
)

_SUFFIXES = (".png", ".jpg", ".jpeg")


class Images(Source):
    """Records of the declared shape, in the order of the classes and, within one, of the files' names."""

    def describe(self) -> Facts:
        """Counts the files, whose bytes make the digest; decodes none."""
        shape = self._shape()
        check_shape(shape)
        halves = [[*self._files(root)] for root in self._roots()]
        for root, half in zip(self._roots(), halves, strict=True):
            check_count(root, (len(half), *shape))
        key = [[[place, sha256(file)] for place, file in half] for half in halves]
        return Facts(
            records=len(halves[0]),
            features=prod(shape),
            classes=len(self.options["classes"]),
            shape=shape,
            test_records=sum(map(len, halves[1:])),
            digest=digest({"kind": "images", "shape": [*shape], "resize": self._resize(), "files": key}),
        )

    def read(self) -> LoadedData:
        """All pictures; raises ``DataError`` naming the first file that is none."""
        (x, y), *test = map(self._rows, self._roots())
        test_x, test_y = test[0] if test else (x[:0], y[:0])
        return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)

    def what(self, test: bool = False) -> str:
        """The folder of training or of test pictures."""
        return str(self._roots()[-1 if test else 0])

    def _roots(self) -> list[Path]:
        """The folder of training pictures and, where the spec names one, that of test pictures."""
        return [self.directory / self.options[key] for key in ("path", "test_path") if key in self.options]

    def _shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.options["shape"])

    def _resize(self) -> bool:
        return bool(self.options.get("resize", False))

    def _rows(self, root: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        import numpy as np

        files = [*self._files(root)]
        x = np.zeros((len(files), *self._shape()), dtype=np.float32)
        for i, (_, file) in enumerate(files):
            try:
                data = file.read_bytes()
            except OSError as error:
                raise DataError(f"{file}: cannot be read: {error}") from error
            x[i] = scaled(decoded(data, self._shape(), self._resize(), "images", file))
        return x, np.array([place for place, _ in files], dtype=np.int64)

    def _files(self, root: Path) -> Iterator[tuple[int, Path]]:
        """Every picture: its class and its file. Hidden files are passed over, links refused."""
        names: tuple[str, ...] = self.options["classes"]
        for name in _entries(root):
            if name not in names and (root / name).is_dir():
                raise DataError(f"{root}: folder {name!r} is not among the declared classes")
        size = 0
        for place, name in enumerate(names):
            folder = root / name
            _no_link(folder)
            for entry in _entries(folder):
                if not entry.lower().endswith(_SUFFIXES):
                    raise DataError(f"{folder / entry}: not a picture: its name must end in {', '.join(_SUFFIXES)}")
                _no_link(folder / entry)
                file = locate(folder, entry)
                size += file.stat().st_size
                if size > MAX_BYTES:
                    raise DataError(f"{root}: pictures of more than {MAX_BYTES} bytes; no more are read")
                yield place, file


def _entries(folder: Path) -> list[str]:
    """The names in a folder in the order of their characters, the same on every machine; hidden ones left out."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: not a readable folder: {error}") from error


def _no_link(path: Path) -> None:
    """Refuse symbolic links: what they lead to may lie anywhere."""
    if path.is_symlink():
        raise DataError(f"{path}: is a symbolic link; pictures must lie in their class's folder")
