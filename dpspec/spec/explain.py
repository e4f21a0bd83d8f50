"""``dpspec explain CODE``: what a diagnostic means, an example of it, and how to mend it."""

from __future__ import annotations

from collections.abc import Mapping

from dpspec.spec.codes import CODES, Code
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
    return f"{code}: {found.summary}\n\n{found.meaning}\n\nFor example:\n\n{example}\n\nTo mend it: {found.mend}\n"


def nearest(code: str) -> str | None:
    """The code that was probably meant."""
    return did_you_mean(code, CODES)
