"""``images``: a folder of PNG and JPEG pictures for each class, decoded by pillow under limits of ours."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from io import BytesIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, Json, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.files import MAX_BYTES, check_count, locate, need, sha256
from dpspec.data.options import path, schema
from dpspec.data.source import Source

if TYPE_CHECKING:
    import numpy as np


#: No picture may have more pixels, whatever its file says: decoding takes memory in proportion.
MAX_PIXELS = 2**24

#: What pillow calls pictures of 8 bits a channel, which become grey or colour without loss of scale.
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})

#: How pillow calls pictures of one and of three channels.
_TARGETS = {1: "L", 3: "RGB"}

#: The schema of the keys that say what becomes of pictures.
KEYS: dict[str, Json] = {
    "shape": {
        "type": "array",
        "minItems": 3,
        "maxItems": 3,
        "items": {"type": "integer", "minimum": 1, "maximum": 4096},
        "description": "[channels, height, width] of every record: 1 channel for grey, 3 for colour; pictures of "
        "another kind are converted. A public constant.",
    },
    "resize": {
        "type": "boolean",
        "default": False,
        "description": "Whether pictures of another size are scaled to that of shape; otherwise they are refused.",
    },
}


def check_shape(shape: tuple[int, ...]) -> None:
    """Raise ``DataError`` unless pictures (channels, height, width) can have this shape."""
    if len(shape) != 3 or shape[0] not in _TARGETS:
        raise DataError(f"shape must be [1 or 3, height, width] for pictures, got {list(shape)}")


def decoded(data: bytes, shape: tuple[int, ...], resize: bool, kind: str, where: object) -> np.ndarray[Any, Any]:
    """A picture as bytes (channels, height, width); ``kind`` is the data kind that needs pillow.

    Transparency is dropped, rotation by metadata is not applied. Raises ``DataError`` for anything but a PNG or JPEG
    picture of 8 bits a channel, of the right size or to be resized, and of at most ``MAX_PIXELS`` pixels.
    """
    import numpy as np

    pillow = need("PIL.Image", "pillow", kind)
    channels, height, width = shape
    try:
        with warnings.catch_warnings():
            # pillow warns of large pictures before we could measure them; ours is the lower limit.
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            picture = pillow.open(BytesIO(data), formats=("PNG", "JPEG"))
        if picture.width * picture.height > MAX_PIXELS:
            raise DataError(f"{where}: {picture.width} x {picture.height} pixels; at most {MAX_PIXELS} are decoded")
        if picture.mode not in _MODES:
            raise DataError(f"{where}: pictures must have 8 bits a channel, got one of mode {picture.mode!r}")
        if picture.size != (width, height) and not resize:
            raise DataError(
                f"{where}: is {picture.height} x {picture.width} pixels, shape declares {height} x {width}; "
                "resize: true scales every picture"
            )
        picture = picture.convert(_TARGETS[channels])
        if picture.size != (width, height):
            picture = picture.resize((width, height), pillow.Resampling.BILINEAR)
        pixels: np.ndarray[Any, Any] = np.array(picture, dtype=np.uint8).reshape(height, width, channels)
    except DataError:
        raise
    except Exception as error:  # foreign bytes make pillow raise more kinds than can be listed
        raise DataError(f"{where}: not a readable PNG or JPEG picture: {error}") from error
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def scaled(pictures: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bytes as float32 from 0 to 1: divided by the public constant 255."""
    import numpy as np

    return pictures.astype(np.float32) / np.float32(255)


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
