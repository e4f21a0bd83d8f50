"""Random JSON values, random changes of JSON trees and bytes, and the files of a case."""

import copy
import random
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from pathlib import Path
from typing import Any

#: Strings that break parsers, terminals, pages and file systems.
TEXTS = (
    *("", " ", "~", "no", "null", "1e5", ".inf", ".nan", "NaN", "0x10", "1_000", "-", "\x00", "\x1b[31m", "\ud800"),
    *("\u202e", "a\nb", "a" * 5000, "[" * 500, "é" * 90, "../../../../etc/passwd", "/dev/zero", "/proc/self/mem"),
    *("file:///etc/passwd", "http://127.0.0.1:9/x", "$(touch owned)", "__import__('os').system('touch owned')"),
    *("!!python/object/apply:os.system ['touch owned']", "{{ 7 * 7 }}", "<script>alert(1)</script>", "</script>"),
    *("]]>", "%00", "::error::x", "claims.x.epsilon", "dpspec>=99", "group", "digits", "mechanism"),
)

#: Numbers at the limits of their types.
NUMBERS = (
    *(0, -1, 1, 2, 3, 64, 1000, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400, 0.0, -0.0, 0.5),
    *(1.0, 1e-9, 1e-320, 1e-12, 1e9, 1e308, -1e308),
)

#: Tokens of the file formats.
TOKENS = (
    *(b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xef\xbb\xbf", b"\r\n"),
    *(b"\n", b"\t", b'"', b"'", b",", b": ", b"- ", b"? ", b"| ", b"&a ", b"*a", b"<<: *a"),
    *(b"!!python/name:os.system ", b"!!binary ", b"%YAML 1.1\n---\n", b"...\n---\n", b"{", b"}", b"[", b"]"),
    *(b"[[[[[[[[[[[[[[[[", b"1e999", b"-1", b"NaN", b"Infinity", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08"),
    *(b"PAR1", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x03\x00", b"(1073741824,)", b"'O'", b"'descr'"),
    *(b"extends: spec.yaml\n", b"</script>", b"<script>", b"\xed\xa0\x80", b"999999999999999999999"),
)


def rounds(chance: random.Random, most: int = 6) -> int:
    return 1 + min(chance.randrange(most), chance.randrange(most))


def junk(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8)
    if kind < 3:
        return chance.choice(NUMBERS)
    if kind < 5:
        return chance.choice(TEXTS)
    if kind == 5 or depth > 2:
        return chance.choice((None, True, False))
    if kind == 6 and chance.randrange(8) == 0:
        return nested(chance.choice((65, 110, 150)), chance.randrange(2) == 0)
    if kind == 6:
        return [junk(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(TEXTS): junk(chance, depth + 1) for _ in range(chance.randrange(3))}


def nested(depth: int, lists: bool) -> Any:
    """Return a value so deep that recursion may overflow the stack."""
    value: Any = None
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


def like(chance: random.Random, value: Any) -> Any:
    """Return another value of the same type, which passes simple validation."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((value + 1, -value, value * 1000, *(n for n in NUMBERS if isinstance(n, int))))
    if isinstance(value, float):
        return chance.choice((value * 2, -value, value / 1e6, *(n for n in NUMBERS if isinstance(n, float))))
    return chance.choice(TEXTS) if isinstance(value, str) else junk(chance)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys: Any = tree if isinstance(tree, MutableMapping) else range(len(tree)) if isinstance(tree, list) else ()
    for key in list(keys):
        yield tree, key
        yield from places(tree[key])


def mutate_tree(chance: random.Random, tree: Any) -> Any:
    """Copy a JSON tree with a few values replaced, dropped, repeated, renamed or copied within it."""
    tree = copy.deepcopy(tree)
    for _ in range(rounds(chance)):
        known = list(places(tree))
        if not known:
            return junk(chance)
        holder, key = chance.choice(known)
        kind = chance.randrange(7)
        if kind < 2:
            holder[key] = like(chance, holder[key])
        elif kind == 2:
            holder[key] = junk(chance)
        elif kind == 3:
            del holder[key]
        elif kind == 4:
            other, at = chance.choice(known)
            if at in other if isinstance(other, MutableMapping) else at < len(other):
                holder[key] = copy.deepcopy(other[at])
        elif isinstance(holder, MutableSequence):
            holder[key:key] = [copy.deepcopy(holder[key])] * chance.choice((1, 2, 40))
        else:
            holder[chance.choice(TEXTS)] = copy.deepcopy(holder[key])
    return tree


def mutate_bytes(chance: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """Return the bytes with a few flipped, dropped, repeated, truncated, replaced by tokens or spliced with others."""
    out = bytearray(data)
    for _ in range(rounds(chance)):
        at = chance.randrange(len(out) + 1)
        to = min(len(out), at + chance.choice((1, 1, 2, 4, 8, 64, 1024)))
        kind = chance.randrange(8)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = chance.randrange(256)
        elif kind == 2:
            del out[at:to]
        elif kind == 3:
            out[at:at] = out[at:to] * chance.choice((1, 2, 50))
        elif kind == 4:
            del out[at:]
        elif kind == 5:
            out[at:at] = chance.choice(TOKENS)
        elif kind == 6:
            token = chance.choice(TOKENS)
            out[at : at + len(token)] = token
        elif other:
            start = chance.randrange(len(other))
            out[at:to] = other[start : start + chance.choice((8, 64, 1024))]
    return bytes(out)


def write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
