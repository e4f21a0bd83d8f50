"""Edits of several fields that belong together, as somebody would make them who knows how a result is put together."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from support.forger.leaves import WORDS, Edit, Path, others, put, walk

LEFT_OUT = "It depends on a data-dependent number, which this report omits."


def several(document: Any, what: str, changes: dict[Path, Any]) -> Edit:
    for path, value in changes.items():
        document = put(document, path, value)
    return Edit(what, tuple(changes), document)


def pairs(document: Any, chance: random.Random, most: int) -> Iterator[Edit]:
    """Everything below, for every audit."""
    for number, audit in enumerate(document["audits"]):
        at: Path = ("audits", number)
        yield from _verdicts(document, audit, at)
        yield from _findings(document, audit, at, chance, most)
        yield from _trials(document, audit, at, chance, most)
        yield from _claims(document, audit, at)
    yield from _everywhere(document, chance, 8 * most)
    yield from _recorded_elsewhere(document)


def _verdicts(document: Any, audit: Any, at: Path) -> Iterator[Edit]:
    """Another verdict with all that it would say, alone and as one that depends on an omitted value."""
    for i, verdict in enumerate(audit["verdicts"]):
        here = (*at, "verdicts", i)
        for name in WORDS[0]:
            if name == verdict["verdict"]:
                continue
            changes: dict[Path, Any] = {(*here, "verdict"): name, (*here, "expected"): True}
            yield several(document, f"a verdict becomes {name} and expected", changes)
            changes[(*here, "expect")] = [name]
            yield several(document, f"a verdict becomes {name} and all that is expected", changes)
            hidden = {
                (*here, "verdict"): name,
                (*here, "expected"): name in verdict["expect"],
                (*here, "reason"): LEFT_OUT,
                (*here, "upper"): None,
                (*here, "upper_finding"): None,
                (*here, "p_value"): None,
            }
            yield several(document, f"a verdict becomes {name}, for a number that is left out", hidden)
            for left_out in ({"per-record": 1}, {**audit["left_out"], "data-dependent": 1}):
                counted = {**hidden, (*at, "left_out"): left_out}
                yield several(document, f"a verdict becomes {name}, for a number that was left out", counted)
                open_end = {key: value for key, value in counted.items() if key[-1] in ("verdict", "left_out")}
                yield several(document, f"a verdict becomes {name}, and something was left out", open_end)
        if verdict["upper"] is not None:
            claimed = verdict["claimed"] or 1.0
            changes = {(*here, key): claimed * 0.5 for key in ("upper", "provable")}
            if verdict["upper_finding"] is not None:
                changes[(*at, "findings", verdict["upper_finding"], "value")] = claimed * 0.5
            changes |= {(*here, "verdict"): "proved", (*here, "expected"): True}
            yield several(document, "a verdict's bound is lower, and so is its finding", changes)
        if verdict["kind"] == "metric":
            changes = {(*here, "verdict"): "supported", (*here, "lower"): 0.99, (*here, "reason"): LEFT_OUT}
            yield several(document, "a metric becomes supported", changes)


def _findings(document: Any, audit: Any, at: Path, chance: random.Random, most: int) -> Iterator[Edit]:
    for i, finding in _some(audit["findings"], chance, most):
        here = (*at, "findings", i)
        for privacy in ("per-record", "data-dependent"):
            number = audit["left_out"].get(privacy, 0) + 1
            left_out = {**audit["left_out"], privacy: number}
            tagged: dict[Path, Any] = {(*here, "privacy"): privacy, (*at, "left_out"): left_out}
            yield several(document, f"a finding becomes {privacy}", tagged)
            fewer = audit["findings"][:i] + audit["findings"][i + 1 :]
            gone: dict[Path, Any] = {(*at, "findings"): fewer, (*at, "left_out"): left_out}
            yield several(document, f"a finding is left out as {privacy}", gone)
        proof = {**finding, "rigor": "certified", "bound": "upper", "value": 0.001, "lower": None}
        added: dict[Path, Any] = {(*at, "findings"): [*audit["findings"], proof]}
        yield several(document, "a certified finding is added", added)
        for j, verdict in enumerate(audit["verdicts"]):
            verdict = {**verdict, "verdict": "proved", "expected": True, "upper": 0.001, "provable": 0.001}
            verdict["upper_finding"] = len(audit["findings"])
            proved = {**added, (*at, "verdicts", j): verdict}
            yield several(document, "a certified finding is added and proves a claim", proved)


def _trials(document: Any, audit: Any, at: Path, chance: random.Random, most: int) -> Iterator[Edit]:
    """What trials measured, with what follows from it at once."""
    for i, trial in _some(audit["trials"], chance, most):
        here = (*at, "trials", i, "evidence")
        leaf = [(path, value) for path, value in walk(trial["evidence"]) if isinstance(value, int | float)]
        for path, value in chance.sample(leaf, min(most, len(leaf))):
            yield several(document, "a number that was measured", {(*here, *path): chance.choice(others(value))})
    for i, check in _some(audit["checks"], chance, most):
        passes: dict[Path, Any] = {(*at, "checks", i, "p_value"): 1.0 if check["p_value"] < 0.5 else 0.0}
        status = "deviates" if check["p_value"] >= 0.5 else "no-deviation-found"
        passes |= {(*at, "conformance", "status"): status, (*at, "conformance", "expected"): True}
        yield several(document, "a check and the conformance", passes)
        fewer = audit["checks"][:i] + audit["checks"][i + 1 :]
        yield several(
            document, "a check is left out", {(*at, "checks"): fewer, (*at, "left_out"): {"data-dependent": 1}}
        )
    if audit["trials"]:
        none = {(*at, key): [] for key in ("trials", "evidence", "checks")}
        yield several(document, "trials, evidence and checks are gone", none)
        yield several(document, "there were never trials", {**none, (*at, "planned_trials"): 0})


def _claims(document: Any, audit: Any, at: Path) -> Iterator[Edit]:
    for i, claim in enumerate(audit["document"]["claims"]):
        numbers = [key for key, value in claim.items() if isinstance(value, float)]
        for key in numbers:
            value = claim[key] * 0.25
            verdict = audit["verdicts"][i]
            text = verdict["text"].replace(f"{claim[key]:g}", f"{value:g}")
            changes: dict[Path, Any] = {(*at, "document", "claims", i, key): value, (*at, "verdicts", i, "text"): text}
            if verdict["claimed"] == claim[key]:
                changes[(*at, "verdicts", i, "claimed")] = value
            yield several(document, f"a claim's {key} is stricter", changes)
    last = len(audit["verdicts"]) - 1
    fewer: dict[Path, Any] = {
        (*at, "document", "claims"): audit["document"]["claims"][:last],
        (*at, "verdicts"): audit["verdicts"][:last],
    }
    yield several(document, "a claim is gone, with its verdict", fewer)
    public: dict[Path, Any] = {(*at, "document", "data", "public"): True, (*at, "left_out"): {}}
    yield several(document, "the data becomes public", public)


def _everywhere(document: Any, chance: random.Random, most: int) -> Iterator[Edit]:
    """One number, or one word, replaced wherever it stands: in numbers and in the texts that tell them."""
    places: dict[Any, list[Path]] = defaultdict(list)
    for path, value in walk(document["audits"], ("audits",)):
        if isinstance(value, float) or (isinstance(value, str) and any(value in group for group in WORDS)):
            places[value].append(path)
    for _, (value, paths) in _some(list(places.items()), chance, most):
        other = chance.choice(others(value))
        yield several(document, f"{value!r} everywhere", dict.fromkeys(paths, other))


def _recorded_elsewhere(document: Any) -> Iterator[Edit]:
    """Another version is named, so that differences could be those of rules."""
    for version in ("0.0.1", "9.9.9"):
        for number, audit in enumerate(document["audits"]):
            for i, _ in enumerate(audit["verdicts"]):
                here: Path = ("audits", number, "verdicts", i)
                changes = {("environment", "dpspec"): version, (*here, "verdict"): "supported", (*here, "upper"): 0.001}
                yield several(document, f"a verdict of dpspec {version}", changes)


def _some(found: list[Any], chance: random.Random, most: int) -> list[tuple[int, Any]]:
    numbered = list(enumerate(found))
    return numbered if len(numbered) <= most else chance.sample(numbered, most)
