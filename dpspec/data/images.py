"""Data kind ``images``: a folder of PNG and JPEG pictures per class, decoded by pillow with size limits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Json
from dpspec.contract.fragments import array, flag
from dpspec.data.options import path, schema
from dpspec.data.source import MAX_BYTES, Halves, import_optional, locate, sha256

if TYPE_CHECKING:
    import numpy as np

    from dpspec.data.source import Rows


#: Maximum number of pixels of a picture, which bounds the memory for decoding.
MAX_PIXELS = 2**24

#: Pillow's modes with 8 bits per channel, which convert to grayscale or color without a change of scale.
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})

#: Pillow's modes by number of channels.
_TARGETS = {1: "L", 3: "RGB"}


RESIZE: dict[str, Json] = flag(
    "Scale pictures to the size in shape. By default pictures of another size are errors.", default=False
)


def check_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 3 or shape[0] not in _TARGETS:
        raise DataError(f"shape must be [1 or 3, height, width] for pictures, got {list(shape)}")


def decoded(data: bytes, shape: tuple[int, ...], resize: bool, kind: str, where: object) -> np.ndarray[Any, Any]:
    """Decode a PNG or JPEG picture without transparency and rotation; float32 (channels, height, width) from 0 to 1."""
    import numpy as np

    pillow = import_optional("PIL.Image", "pillow", kind)
    channels, height, width = shape
    try:
        with warnings.catch_warnings():
            # The limit below is lower than the one of pillow's warning.
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            picture = pillow.open(BytesIO(data), formats=("PNG", "JPEG"))
        if picture.width * picture.height > MAX_PIXELS:
            raise DataError(f"{where}: {picture.width} x {picture.height} pixels; at most {MAX_PIXELS} are decoded")
        if picture.mode not in _MODES:
            raise DataError(f"{where}: pictures must have 8 bits per channel, got mode {picture.mode!r}")
        if picture.size != (width, height) and not resize:
            raise DataError(
                f"{where}: {picture.height} x {picture.width} pixels, but shape declares {height} x {width}; "
                "set resize: true to scale pictures"
            )
        picture = picture.convert(_TARGETS[channels])
        if picture.size != (width, height):
            picture = picture.resize((width, height), pillow.Resampling.BILINEAR)
        pixels: np.ndarray[Any, Any] = np.array(picture, dtype=np.uint8).reshape(height, width, channels)
    except DataError:
        raise
    except Exception as error:  # pillow raises many kinds for invalid files
        raise DataError(f"{where}: not a readable PNG or JPEG picture: {error}") from error
    return pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)


DATASET = Dataset(
    kind="images",
    summary="A folder of PNG and JPEG pictures per class, pixels in [0, 1] (needs pillow).",
    schema=schema(
        {
            "path": path("The folder with one folder of pictures per class."),
            "test_path": path("The same for test pictures."),
            "classes": array(
                "The names of the classes' folders, class 0 first. A public constant.",
                {"type": "string", "pattern": "^[^./\\\\][^/\\\\]*$"},
                least=2,
                most=100_000,
                unique=True,
            ),
            "shape": array(
                "[channels, height, width] of every record: 1 channel for grayscale, 3 for color. Pictures are "
                "converted. A public constant.",
                {"type": "integer", "minimum": 1, "maximum": 4096},
                least=3,
                most=3,
            ),
            "resize": RESIZE,
        },
        required=["path", "classes", "shape"],
    ),
    source="dpspec.data.images:Images",
)

_SUFFIXES = (".png", ".jpg", ".jpeg")


class Images(Halves):
    def halves(self) -> list[Path]:
        check_shape(self._record)
        return [self.directory / self.options[key] for key in ("path", "test_path") if key in self.options]

    def shape(self, half: Path) -> tuple[int, ...]:
        return (sum(1 for _ in self._files(half)), *self._record)

    def rows(self, half: Path) -> Rows:
        import numpy as np

        files = [*self._files(half)]
        x = np.zeros((len(files), *self._record), dtype=np.float32)
        for i, (_, file) in enumerate(files):
            try:
                data = file.read_bytes()
            except OSError as error:
                raise DataError(f"{file}: cannot be read: {error}") from error
            x[i] = decoded(data, self._record, bool(self.options.get("resize", False)), "images", file)
        return x, np.array([place for place, _ in files], dtype=np.int64)

    def key(self, halves: list[Path]) -> dict[str, Json]:
        files = [[[place, sha256(file)] for place, file in self._files(root)] for root in halves]
        return {
            "kind": "images",
            "shape": [*self._record],
            "resize": bool(self.options.get("resize", False)),
            "files": files,
        }

    @property
    def _record(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.options["shape"])

    def _files(self, root: Path) -> Iterator[tuple[int, Path]]:
        """Yield the class and file of each picture. Hidden files are skipped, links are errors."""
        names: tuple[str, ...] = self.options["classes"]
        for name in _entries(root):
            if name not in names and (root / name).is_dir():
                raise DataError(f"{root}: folder {name!r} is not a declared class")
        size = 0
        for place, name in enumerate(names):
            folder = root / name
            _reject_link(folder)
            for entry in _entries(folder):
                if not entry.lower().endswith(_SUFFIXES):
                    raise DataError(f"{folder / entry}: not a picture: its name must end in {', '.join(_SUFFIXES)}")
                _reject_link(folder / entry)
                file = locate(folder, entry)
                size += file.stat().st_size
                if size > MAX_BYTES:
                    raise DataError(f"{root}: pictures exceed the limit of {MAX_BYTES} bytes")
                yield place, file


def _entries(folder: Path) -> list[str]:
    """Return the names in a folder except hidden ones, sorted by code point on every machine."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: not a readable folder: {error}") from error


def _reject_link(path: Path) -> None:
    if path.is_symlink():
        raise DataError(f"{path}: is a symbolic link; pictures must be files in their class's folder")
