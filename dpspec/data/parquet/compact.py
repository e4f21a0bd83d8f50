"""Thrift's compact protocol, as far as the headers of Parquet's pages need it: structures of numbers and structures.

The protocol is described in thrift's repository, doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from typing import TypeAlias

#: A structure by the numbers of its fields; what is neither a whole number nor a structure is left out.
Struct: TypeAlias = "dict[int, int | Struct]"

#: Structures within structures; pages have three.
_DEEPEST = 8

#: Fields of a structure and of all within it; pages have thirty.
_MOST_FIELDS = 100

#: The protocol's types.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class CompactError(ValueError):
    """Bytes that are no structure."""


class CutShortError(CompactError):
    """A structure that goes on behind the bytes that were given."""


class Compact:
    """Reads a structure from bytes; ``at`` is where it stands."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields = 0
        self.at = 0

    def struct(self, depth: int = 0) -> Struct:
        """The structure that begins here; raises ``CompactError``."""
        if depth == _DEEPEST:
            raise CompactError(f"structures are nested more than {_DEEPEST} levels deep")
        fields: Struct = {}
        number = 0
        while head := self._byte():
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise CompactError(f"it has more than {_MOST_FIELDS} fields")
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._whole()
            value = self._value(kind, depth)
            if value is not None:
                fields[number] = value
        return fields

    def _value(self, kind: int, depth: int) -> int | Struct | None:
        if kind in (_I16, _I32, _I64):
            return self._whole()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind == _BYTE:
            self._skip(1)
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind == _BINARY:
            self._skip(self._natural())
        elif kind not in (_TRUE, _FALSE):
            raise CompactError(f"a field is of type {kind}, which no page has")
        return None

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise CutShortError("it is cut short")
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._data):
            raise CutShortError("it is cut short")

    def _natural(self) -> int:
        """A number of up to 64 bits, seven in each byte, the lowest first."""
        found = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise CompactError("a number has more than 64 bits")

    def _whole(self) -> int:
        """The same with a sign, which is the lowest bit."""
        found = self._natural()
        return (found >> 1) ^ -(found & 1)
