"""Consistent edits of several fields, by an attacker who knows the structure of a result."""

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from support.forger.leaves import WORDS, Edit, Path, others, put, sample, walk

LEFT_OUT = "It depends on a data-dependent number, which this report omits."

#: The description of an edit, and the new values by path.
Changes = Iterator[tuple[str, dict[Path, Any]]]


def pairs(document: Any, chance: random.Random, most: int) -> Iterator[Edit]:
    for what, changes in _all(document, chance, most):
        edited = document
        for path, value in changes.items():
            edited = put(edited, path, value)
        yield Edit(what, tuple(changes), edited)


def _all(document: Any, chance: random.Random, most: int) -> Changes:
    for number, audit in enumerate(document["audits"]):
        at: Path = ("audits", number)
        yield from _verdicts(audit, at)
        yield from _findings(audit, at, chance, most)
        yield from _trials(audit, at, chance, most)
        yield from _claims(audit, at)
    places: dict[Any, list[Path]] = defaultdict(list)
    for path, value in walk(document["audits"], ("audits",)):
        if isinstance(value, float) or (isinstance(value, str) and any(value in group for group in WORDS)):
            places[value].append(path)
    for value, paths in sample(list(places.items()), chance, 8 * most):
        yield f"{value!r} everywhere", dict.fromkeys(paths, chance.choice(others(value)))
    for version in ("0.0.1", "9.9.9"):  # as if the rules had changed
        for number, audit in enumerate(document["audits"]):
            for i, _ in enumerate(audit["verdicts"]):
                here: Path = ("audits", number, "verdicts", i)
                changes = {("environment", "dpspec"): version, (*here, "verdict"): "supported", (*here, "upper"): 0.001}
                yield f"a verdict of dpspec {version}", changes


def _verdicts(audit: Any, at: Path) -> Changes:
    """Change a verdict with its dependent fields, alone and as if it depended on an omitted value."""
    for i, verdict in enumerate(audit["verdicts"]):
        here = (*at, "verdicts", i)
        for name in WORDS[0]:
            if name == verdict["verdict"]:
                continue
            changes: dict[Path, Any] = {(*here, "verdict"): name, (*here, "expected"): True}
            yield f"a verdict becomes {name} and expected", changes
            yield f"a verdict becomes {name} and all that is expected", {**changes, (*here, "expect"): [name]}
            hidden = {
                (*here, "verdict"): name,
                (*here, "expected"): name in verdict["expect"],
                (*here, "reason"): LEFT_OUT,
                (*here, "left_out"): True,
                **{(*here, key): None for key in ("upper", "upper_finding", "p_value")},
            }
            yield f"a verdict becomes {name}, for a number that is omitted", hidden
            for left_out in ({"per-record": 1}, {**audit["left_out"], "data-dependent": 1}):
                counted = {**hidden, (*at, "left_out"): left_out}
                yield f"a verdict becomes {name}, for a number that was omitted", counted
                open_end = {key: value for key, value in counted.items() if key[-1] in ("verdict", "left_out")}
                yield f"a verdict becomes {name}, and a number was omitted", open_end
        if verdict["upper"] is not None:
            claimed = verdict["claimed"] or 1.0
            changes = {(*here, key): claimed * 0.5 for key in ("upper", "provable")}
            if verdict["upper_finding"] is not None:
                changes[(*at, "findings", verdict["upper_finding"], "value")] = claimed * 0.5
            changes |= {(*here, "verdict"): "proved", (*here, "expected"): True}
            yield "a verdict's bound is lower, and so is its finding", changes
        if verdict["kind"] == "metric":
            changes = {(*here, "verdict"): "supported", (*here, "lower"): 0.99, (*here, "reason"): LEFT_OUT}
            changes |= {(*here, "left_out"): True}
            yield "a metric becomes supported", changes


def _findings(audit: Any, at: Path, chance: random.Random, most: int) -> Changes:
    findings = audit["findings"]
    for i, finding in sample(list(enumerate(findings)), chance, most):
        for privacy in ("per-record", "data-dependent"):
            left_out = {(*at, "left_out"): {**audit["left_out"], privacy: audit["left_out"].get(privacy, 0) + 1}}
            yield f"a finding becomes {privacy}", {(*at, "findings", i, "privacy"): privacy, **left_out}
            fewer = findings[:i] + findings[i + 1 :]
            yield f"a finding is omitted as {privacy}", {(*at, "findings"): fewer, **left_out}
        proof = {**finding, "rigor": "certified", "bound": "upper", "value": 0.001, "lower": None}
        added: dict[Path, Any] = {(*at, "findings"): [*findings, proof]}
        yield "a certified finding is added", added
        for j, verdict in enumerate(audit["verdicts"]):
            verdict = {**verdict, "verdict": "proved", "expected": True, "upper": 0.001, "provable": 0.001}
            proved = {**added, (*at, "verdicts", j): {**verdict, "upper_finding": len(findings)}}
            yield "a certified finding is added and proves a claim", proved


def _trials(audit: Any, at: Path, chance: random.Random, most: int) -> Changes:
    """Change measured numbers, with the fields that follow directly."""
    for i, trial in sample(list(enumerate(audit["trials"])), chance, most):
        here = (*at, "trials", i, "evidence")
        leaf = [(path, value) for path, value in walk(trial["evidence"]) if isinstance(value, int | float)]
        for path, value in chance.sample(leaf, min(most, len(leaf))):
            yield "a number that was measured", {(*here, *path): chance.choice(others(value))}
    for i, check in sample(list(enumerate(audit["checks"])), chance, most):
        status = "deviates" if check["p_value"] >= 0.5 else "no-deviation-found"
        passes: dict[Path, Any] = {(*at, "checks", i, "p_value"): 1.0 if check["p_value"] < 0.5 else 0.0}
        passes |= {(*at, "conformance", "status"): status, (*at, "conformance", "expected"): True}
        yield "a check and the conformance", passes
        fewer = audit["checks"][:i] + audit["checks"][i + 1 :]
        yield "a check is omitted", {(*at, "checks"): fewer, (*at, "left_out"): {"data-dependent": 1}}
    if audit["trials"]:
        none = {(*at, key): [] for key in ("trials", "evidence", "checks")}
        yield "trials, evidence and checks are gone", none
        yield "there were never trials", {**none, (*at, "planned_trials"): 0}


def _claims(audit: Any, at: Path) -> Changes:
    for i, claim in enumerate(audit["document"]["claims"]):
        for key in [key for key, value in claim.items() if isinstance(value, float)]:
            value, verdict = claim[key] * 0.25, audit["verdicts"][i]
            text = verdict["text"].replace(f"{claim[key]:g}", f"{value:g}")
            changes: dict[Path, Any] = {(*at, "document", "claims", i, key): value, (*at, "verdicts", i, "text"): text}
            if verdict["claimed"] == claim[key]:
                changes[(*at, "verdicts", i, "claimed")] = value
            yield f"a claim's {key} is stricter", changes
    last = len(audit["verdicts"]) - 1
    fewer = {(*at, "document", "claims"): audit["document"]["claims"][:last]}
    yield "a claim is gone, with its verdict", {**fewer, (*at, "verdicts"): audit["verdicts"][:last]}
    yield "the data becomes public", {(*at, "document", "data", "public"): True, (*at, "left_out"): {}}
