"""Run ``verify`` on every edit of a subject, and report edits that pass and must not."""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dpspec.engine.differences import UNVERIFIED
from dpspec.reporters.read_results import extract, without_result
from dpspec.results import codec
from dpspec.results.differing import TOLERANCE
from support.forger.bench import Bench, Subject
from support.forger.leaves import Edit, items, leaves, pattern, walk
from support.forger.pages import pages
from support.forger.pairs import pairs

#: Numbers that only the store confirms. Without it, consistent edits of these and derived numbers pass.
_MEASURED = re.compile(r"audits\.\*\.trials\.\*\.evidence\..*")

#: Parts that reports may omit, also of trials in the store: evidence that depends on the data, and versions.
OMITTED = (r"audits\.\*\.trials\.\*\.evidence\.internal", r"audits\.\*\.trials\.\*\.recorded")

#: Further patterns whose edits may pass, and the reason why that misleads no reader.
HARMLESS = {
    r"audits(\.\*)?": "an audit that is removed or moved, if no other verdict depends on it",
    r"audits\.\*\.trials\.\*\.evidence\..*": "without the store: a measured number that no other number depends on",
    r"audits\.\*\.trials\.\*\.arrays.*": "without the store: the digest of an array that is not at hand",
    r"audits\.\*\.places(\..*)?": "the lines of claims in files that are not at hand",
    r"audits\.\*\.document": "a description that is not there",
}


@dataclass
class Outcome:
    """The number of edits by ending, the passed fields, and the wrong endings."""

    counts: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def edits_of(subject: Subject, chance: random.Random, most: int, values: int) -> Iterator[Edit]:
    """Yield every kind of edit of a result. Edits of specs need bounds-only results, because bounds take time."""
    document = subject.document
    spec = "bounds only" in subject.name
    for edit in (*leaves(document, chance, most, values), *items(document, chance, most)):
        if spec or not all("document" in path[:3] for path in edit.paths):
            yield edit
    yield from pairs(document, chance, most)


def forge(bench: Bench, subject: Subject, edits: Iterable[Edit]) -> Outcome:
    outcome = Outcome()
    for edit in _passed(bench, subject, edits, outcome):
        if _changed(subject.text, codec.dump(codec.load(edit.text))):
            places = [pattern(path) for path in edit.paths]
            outcome.passed.update(places)
            measured = subject.store == "nowhere" and any(_MEASURED.fullmatch(place) for place in places)
            followed = measured and edit.what.endswith("everywhere")
            if not all(allowed(place, subject) for place in places) and not followed:
                outcome.wrong.append(f"{subject.name}: {_shown(edit)} passed")
    return outcome


def forge_pages(bench: Bench, subject: Subject, chance: random.Random, most: int) -> Outcome:
    """Verify every edit of a page.

    An edit may pass if it moves a line by an invisible amount, or changes unverified values of the embedded result.
    """
    outcome = Outcome()
    for edit in _passed(bench, subject, pages(subject.text, chance, most), outcome):
        if not _unverified_alone(edit.text, subject):
            outcome.wrong.append(f"{subject.name}: {edit.what} passed")
    return outcome


def _passed(bench: Bench, subject: Subject, edits: Iterable[Edit], outcome: Outcome) -> Iterator[Edit]:
    """Yield the edits that pass ``verify``. Count all endings; an unknown one is wrong."""
    with bench.remembering():
        before, output = bench.ends(subject.text, subject.store)
        if before not in ("passed", "not recomputed"):
            outcome.wrong.append(f"{subject.name}: unedited, it {before}: {output}")
        for edit in edits:
            ended, output = bench.ends(edit.text, subject.store)
            outcome.counts[ended] += 1
            if ended == "passed":
                yield edit
            elif ended.startswith("ended"):
                outcome.wrong.append(f"{subject.name}: {_shown(edit)} {ended}: {output[-300:]}")


def _unverified_alone(page: str, subject: Subject) -> bool:
    """Whether a page differs only in rounding, or in unverified values of the embedded result."""
    edited, due = extract(page), extract(subject.text)
    if without_result(page.replace(edited, "")) != without_result(subject.text.replace(due, "")):
        return False
    return all(allowed(place, subject) for place in _changed(due, edited))


def _changed(before: str, after: str) -> list[str]:
    """The patterns of values that differ by more than the rounding that ``verify`` allows to other machines."""
    old, new = (dict(walk(json.loads(text))) for text in (before, after))
    paths = [*old, *(path for path in new if path not in old)]
    return [pattern(path) for path in paths if not _equal(old.get(path), new.get(path))]


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE)
    return one == other or (isinstance(one, dict | list) and isinstance(other, dict | list))


def allowed(place: str, subject: Subject) -> bool:
    known = [*(one.replace(".", r"\.").replace("*", r"[^ ]+") for one in UNVERIFIED), *OMITTED]
    if subject.store == "nowhere" or ".trials." not in place:
        known += HARMLESS
    return any(re.fullmatch(one, place) for one in known)


def _shown(edit: Edit) -> str:
    return f"{edit.what} at {', '.join('.'.join(map(str, path)) for path in edit.paths[:6])}"
