"""How values, keys and choices are written in messages, and what a person probably meant."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import Json

_LONGEST = 40


def visible(text: str) -> str:
    """The text with every character that a terminal would not show, or would obey, written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clipped(text: str, longest: int = _LONGEST) -> str:
    """The beginning of a long text, made visible."""
    return visible(text if len(text) <= longest else text[: longest - 3] + "...")


def quoted(text: str) -> str:
    """A key or a choice as messages quote it."""
    return f"'{clipped(text)}'"


def shown(value: Json) -> str:
    """A value as messages show it: ``1.5``, ``text "eight"``, ``a list``, ``nothing``."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str):
        return f'text "{clipped(value)}"'
    return "a map" if hasattr(value, "keys") else "a list"


def number(value: float) -> str:
    """A number as one would write it in a spec: ``1e-6``, not ``1e-06``."""
    return repr(value).replace("e-0", "e-").replace("e+", "e").replace("e0", "e")


def choice(value: Json) -> str:
    """One of several allowed values."""
    return visible(value) if isinstance(value, str) else shown(value)


def listed(values: Iterable[Json]) -> str:
    """Allowed values, in their own order, separated by commas."""
    return ", ".join(choice(v) for v in values)


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a person who wrote ``word`` probably meant; of equals the first. None where none is near."""
    # Long words are no slips of the pen, and comparing them takes quadratic time.
    if not 0 < len(word) <= _LONGEST:
        return None
    best, best_score = None, 0.6
    for candidate in candidates:
        score = _likeness(_folded(word), _folded(candidate))
        if score > best_score:
            best, best_score = candidate, score
    return best


def _likeness(word: str, candidate: str) -> float:
    """1 for equal words; a part of the candidate counts for a little less than the whole."""
    from difflib import SequenceMatcher

    def ratio(other: str) -> float:
        return SequenceMatcher(None, word, other, autojunk=False).ratio()

    parts = [p for p in candidate.split("_") if len(p) >= 3]
    begun = [candidate[: len(word)]] if len(word) >= 3 else []
    return max([ratio(candidate), *(0.9 * ratio(p) for p in parts + begun)])


def _folded(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")
