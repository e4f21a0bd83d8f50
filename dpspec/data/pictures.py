"""PNG and JPEG pictures as arrays of bytes, decoded by pillow under limits of ours."""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Json
from dpspec.data.extras import need

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
