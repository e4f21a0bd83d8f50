"""Thrift's compact protocol, as far as Parquet needs it: structures of numbers, of lists and of structures.

The protocol is described in thrift's repository, doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from typing import TypeAlias

#: A whole number, a structure, a list, or None for what is none of them: texts, truth values, other numbers.
Value: TypeAlias = "int | Struct | list[Value] | None"

#: A structure by the numbers of its fields.
Struct: TypeAlias = "dict[int, Value]"

#: Structures and lists within each other; footers have nine.
_DEEPEST = 16

#: The protocol's types.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class CompactError(ValueError):
    """Bytes that are no structure."""


class CutShortError(CompactError):
    """A structure that goes on behind the bytes that were given."""


class Compact:
    """Reads a structure from bytes; ``at`` is where it stands."""

    def __init__(self, data: bytes, most: int) -> None:
        """``most``: how many fields and elements there may be, in all that is within the structure, too."""
        self._data = data
        self._left = most
        self.at = 0

    def struct(self, depth: int = 0) -> Struct:
        """The structure that begins here; raises ``CompactError``."""
        if depth == _DEEPEST:
            raise CompactError(f"it is nested more than {_DEEPEST} levels deep")
        fields: Struct = {}
        number = 0
        while head := self._byte():
            self._count(1)
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._whole()
            if kind not in (_TRUE, _FALSE):  # the type is the value
                fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Value:
        if kind in (_I16, _I32, _I64):
            return self._whole()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth + 1)
        if kind in (_TRUE, _FALSE, _BYTE):
            self._skip(1)
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind == _BINARY:
            self._skip(self._natural())
        else:
            raise CompactError(f"it has a value of type {kind}, which nothing in Parquet is of")
        return None

    def _list(self, depth: int) -> list[Value]:
        if depth == _DEEPEST:
            raise CompactError(f"it is nested more than {_DEEPEST} levels deep")
        head = self._byte()
        size = self._natural() if head >> 4 == 15 else head >> 4
        if size > len(self._data) - self.at:  # each takes a byte
            raise CutShortError("it is cut short")
        self._count(size)
        return [self._value(head & 15, depth) for _ in range(size)]

    def _count(self, more: int) -> None:
        self._left -= more
        if self._left < 0:
            raise CompactError("it has too many parts")

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
