"""Words of specs and results that version 0.3 renamed. Old words are accepted until version 0.4."""

from __future__ import annotations

from collections.abc import Mapping

from dpspec.contract.diagnostics import Diagnostic, Path
from dpspec.contract.frozen import Json

#: Renamed values of ``audit.expect``, which are the statuses of conformance.
STATUSES = {"conforms-within": "no-deviation-found"}

#: Renamed checks and assumptions.
ASSUMPTIONS = {
    "contribution": "sensitivity",
    "fresh-noise": "independent-noise",
    "noise-isotropy": "per-layer-noise",
    "public-constants": "data-independent-hyperparameters",
}

#: Renamed keys by their block.
KEYS = {
    "audit": {"twin": "canary_free_run"},
    "training": {"public_constants": "data_independent_hyperparameters"},
}


def rename(document: dict[str, Json]) -> list[Diagnostic]:
    """Replace the old words of a plain document in place. Returns a warning for each."""
    found: list[tuple[Path, str, str]] = []
    for block, keys in KEYS.items():
        inner = document.get(block)
        if not isinstance(inner, dict):
            continue
        for old, new in keys.items():
            if old in inner and new not in inner:
                found.append(((block, old), old, new))
                inner[new] = inner.pop(old)
        key, words = {"audit": ("expect", STATUSES), "training": ("assume", ASSUMPTIONS)}[block]
        if isinstance(inner.get(key), list):
            for place, word in enumerate(inner[key]):
                if isinstance(word, str) and word in words:
                    found.append(((block, key, place), word, words[word]))
                    inner[key][place] = words[word]
        elif isinstance(inner.get(key), str) and inner[key] in words:
            found.append(((block, key), inner[key], words[inner[key]]))
            inner[key] = words[inner[key]]
    return [
        Diagnostic(
            code="renamed-word",
            message=f"{old!r} is now called {new!r}",
            path=path,
            severity="warning",
            help=f"write {new}; dpspec 0.4 will reject {old}",
            at_key=path[-1] == old,
        )
        for path, old, new in found
    ]


def with_old_words(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return a document with the words of version 0.2, so that digests of equal specs stay equal."""
    found = dict(document)
    for block, keys in KEYS.items():
        if isinstance(found.get(block), Mapping):
            old = {new: old for old, new in keys.items()}
            found[block] = {old.get(key, key): value for key, value in found[block].items()}
    audit = found.get("audit")
    if isinstance(audit, Mapping) and audit.get("expect") in STATUSES.values():
        (word,) = (old for old, new in STATUSES.items() if new == audit["expect"])
        found["audit"] = {**audit, "expect": word}
    return found


def rename_in_result(data: Json) -> Json:
    """Return the JSON of a result of version 1 with the words of version 2."""
    if isinstance(data, list):
        return [rename_in_result(item) for item in data]
    if not isinstance(data, dict):
        return data
    found = {key: rename_in_result(value) for key, value in data.items()}
    for key, words in (("status", STATUSES), ("assumption", ASSUMPTIONS)):
        if isinstance(found.get(key), str):
            found[key] = words.get(found[key], found[key])
    for assumption in found["assumptions"] if isinstance(found.get("assumptions"), list) else ():
        if isinstance(assumption, dict) and isinstance(assumption.get("name"), str):
            assumption["name"] = ASSUMPTIONS.get(assumption["name"], assumption["name"])
    for key in ("sources", "assumes"):
        if isinstance(found.get(key), list):
            found[key] = [ASSUMPTIONS.get(word, word) if isinstance(word, str) else word for word in found[key]]
    if isinstance(found.get("document"), dict):
        rename(found["document"])
    return found
