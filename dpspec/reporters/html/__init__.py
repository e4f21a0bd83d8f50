"""A result as one self-contained HTML page: verdicts, intervals, figures with their tables, and the result itself."""

from __future__ import annotations

from dpspec.reporters.html.page import render

__all__ = ["render"]
