"""Forges every field of results and pages, alone and with those that belong to it, and runs ``verify``.

``verify`` may object (1), refuse the file (2 to 4), or report that it could not recompute (7). It may pass (0) only
edits of unverified values (``dpspec.engine.differences``) and edits that change nothing.
"""
