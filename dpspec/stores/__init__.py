"""Storage of trials: a folder, or an object store through fsspec.

A record consists of a few files under one key. Readers see a whole record or nothing. Records never change; they are
quarantined or removed as a whole. A storage does not interpret their content. Its methods raise ``OSError``, or
``UsageError`` if it is unreachable.
"""
