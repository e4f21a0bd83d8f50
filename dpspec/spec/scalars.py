"""Plain YAML scalars by the YAML 1.2 core schema: ``1e-6`` is a number, ``no`` is text, ``010`` is ten."""

from __future__ import annotations

import re

from dpspec.contract import Json

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.?(nan|inf|infinity)", re.IGNORECASE)
_LARGEST = 2**63 - 1


def read_scalar(text: str) -> Json:
    """The value of an unquoted scalar: None, a bool, an int, a float, or the text itself.

    The forms ``.nan`` and ``.inf`` of the core schema are left out on purpose and stay text. Raises ``ValueError``,
    saying why, where a number does not survive as an int of 64 bits or as a finite, non-zero float64.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return _int(text, 10)
    if _BASED.fullmatch(text):
        return _int(text[2:], 8 if text[1] == "o" else 16)
    if _FLOAT.fullmatch(text):
        return _float(text)
    return text


def is_not_finite(text: str) -> bool:
    """Whether a text is somebody's way of writing NaN or an infinity."""
    return _NOT_FINITE.fullmatch(text) is not None


def _int(digits: str, base: int) -> int:
    # The length is looked at first: int() takes quadratic time, and refuses 4,300 digits in its own words.
    value = int(digits, base) if len(digits.lstrip("+-0")) <= 20 else _LARGEST + 1
    if abs(value) > _LARGEST:
        raise ValueError("is too large: whole numbers go up to 9223372036854775807")
    return value


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("is too large for a 64-bit float")
    if value == 0 and re.search("[1-9]", text.lower().partition("e")[0]):
        raise ValueError("is too small for a 64-bit float: it would become 0")
    return value + 0.0  # -0.0 becomes 0.0, which has one canonical spelling
