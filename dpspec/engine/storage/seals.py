"""Seals of stored trials: who does not know a secret cannot make a record that those who know it believe.

A digest tells damage, not forgery: whoever writes a record can write its digest. A seal is the HMAC-SHA256 of that
digest, which covers key, evidence and the digests of all arrays (RFC 2104).
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from dpspec.errors import UsageError
from dpspec.regular_files import read_regular

#: Shorter secrets could be guessed; longer files are something else.
_LEAST, _MOST = 32, 4096

#: What a seal is of, so that nothing else that the secret may be used for is one.
_PURPOSE = b"dpspec/trial/v1\0"


def read_key(file: Path | None) -> bytes | None:
    """The secret in a file, line ends around it left out; None without a file. Raises ``UsageError`` for none."""
    if file is None:
        return None
    try:
        key = read_regular(file, _MOST).strip(b"\r\n")
    except OSError as error:
        raise UsageError(f"cannot read the key of --store-key, {file}: {error.strerror or error}") from None
    if len(key) < _LEAST:
        raise UsageError(f"the key in {file} has {len(key)} bytes; a secret of {_LEAST} or more is needed")
    return key


def seal_of(key: bytes, digest: str) -> str:
    """The seal of a record with this digest, in hexadecimal."""
    return hmac.new(key, _PURPOSE + digest.encode("ascii"), hashlib.sha256).hexdigest()


def is_sealed(key: bytes, digest: str, seal: object) -> bool:
    """Whether somebody who knows the key made the seal."""
    return isinstance(seal, str) and seal.isascii() and hmac.compare_digest(seal_of(key, digest), seal)
