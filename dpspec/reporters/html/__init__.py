"""A result as a self-contained HTML page."""

from __future__ import annotations

from dpspec.reporters.html.page import render

__all__ = ["render"]
