"""Forges results and pages: every field of them, alone and with those that belong to it, and asks ``verify``.

``verify`` may object (1), refuse to read it (2 to 4), or say that it could not recompute (7). It may end with 0 only
for what it says itself that it does not verify (``dpspec.engine.differences``), or for what changes
nothing.
"""
