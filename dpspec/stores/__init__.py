"""Storage of trials: a folder, or an object store through fsspec.

A record consists of a few files under one key, which never change. Readers see a whole record or nothing. Methods raise
``OSError``, or ``UsageError`` if the storage is unreachable.
"""
