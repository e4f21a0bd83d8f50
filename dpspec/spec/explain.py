"""``dpspec explain CODE``: what a diagnostic means, an example of it, and how to mend it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from dpspec.spec.codes import CODES, Code
from dpspec.spec.render import WIDTH
from dpspec.spec.words import did_you_mean

__all__ = ["CODES", "Code", "explain", "nearest"]


def explain(code: str, codes: Mapping[str, Code] = CODES) -> str | None:
    """The explanation of a diagnostic's code.

    None where the table does not have it: a plugin may emit codes of its own, which its documentation explains.
    """
    found = codes.get(code)
    if found is None:
        return None
    example = "\n".join(f"    {line}".rstrip() for line in found.example.strip("\n").splitlines())
    meaning = textwrap.fill(found.meaning, WIDTH, break_on_hyphens=False)
    mend = textwrap.fill(f"To mend it: {found.mend}", WIDTH, break_on_hyphens=False)
    return f"{code}: {found.summary}\n\n{meaning}\n\nFor example:\n\n{example}\n\n{mend}\n"


def nearest(code: str) -> str | None:
    """The code that was probably meant."""
    return did_you_mean(code, CODES)
