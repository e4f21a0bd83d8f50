"""The system's random numbers, replaced by numbers that are the same each time the tests of a file run."""

import contextlib
import os
import random
import secrets
import zlib
from collections.abc import Iterator


class _Repeatable(random.Random):
    """In the place of ``random.SystemRandom``."""

    draws = random.Random(0)

    def __init__(self, *_: object) -> None:
        super().__init__(_Repeatable.draws.getrandbits(64))


@contextlib.contextmanager
def repeatable(name: str) -> Iterator[None]:
    """Recordings choose steps, records and directions by the system's generators, so that no training can know them.

    ``name`` and DPSPEC_TEST_CHANCE in the environment select the numbers: among many values of the latter, the share
    at which a test fails is its failure rate. Processes that a test starts without forking have the system's numbers.
    """
    before = random.SystemRandom, secrets.randbits, _Repeatable.draws
    draws = random.Random(zlib.crc32(f"{os.environ.get('DPSPEC_TEST_CHANCE', '')} {name}".encode()))
    random.SystemRandom, secrets.randbits, _Repeatable.draws = _Repeatable, draws.getrandbits, draws  # type: ignore
    try:
        yield
    finally:
        random.SystemRandom, secrets.randbits, _Repeatable.draws = before  # type: ignore[misc]
