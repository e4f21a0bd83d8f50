"""A result as JSON of the published schema ``dpspec/result/v1``: what ``verify``, ``diff`` and ``report`` read."""

from __future__ import annotations

from dpspec.engine.codec import dump
from dpspec.engine.redact import redact
from dpspec.engine.result import Result


def render(result: Result, *, internal: bool = False) -> str:
    """The result as JSON text; data-dependent and per-record values only where ``internal`` asks for them."""
    return dump(result if internal else redact(result))
