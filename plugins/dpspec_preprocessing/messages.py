"""Diagnostics in few words: what is refused, and what is only said."""

from __future__ import annotations

import dpspec.contract as dps


def refused(path: dps.Path, message: str, help: str, code: str = "unsupported") -> dps.Diagnostic:
    """An error; ``help`` says what to do instead."""
    return dps.Diagnostic(code=code, message=message, path=path, help=help)


def warned(path: dps.Path, message: str, help: str | None = None) -> dps.Diagnostic:
    """A warning: the spec runs, and shows less than it seems."""
    return dps.Diagnostic(code="unsupported", message=message, path=path, help=help, severity="warning")
