"""The system's random numbers, replaced by numbers that are the same each time the tests of a file run."""

import contextlib
import os
import random
import secrets
import zlib
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def repeatable(name: str) -> Iterator[None]:
    """Recordings choose steps, records and directions by the system's generators, so that no training can know them.

    ``name`` and DPSPEC_TEST_CHANCE in the environment select the numbers: among many values of the latter, the share
    at which a test fails is its failure rate. Processes that a test starts without forking have the system's numbers.
    """
    draws = random.Random(zlib.crc32(f"{os.environ.get('DPSPEC_TEST_CHANCE', '')} {name}".encode()))

    class Repeatable(random.Random):
        def __init__(self, *_: object) -> None:
            super().__init__(draws.getrandbits(64))

    with contextlib.ExitStack() as changes:
        changes.enter_context(mock.patch.object(random, "SystemRandom", Repeatable))
        changes.enter_context(mock.patch.object(secrets, "randbits", draws.getrandbits))
        yield
