"""The whole invocation in one sentence: all as expected, or the culprits by name.

Text that a spec may have brought in is returned as it is: escaping is the format's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Result, Verdict
from dpspec.reporters import labels, matrices
from dpspec.text import shortened

#: So many names are said in a sentence.
_NAMED = 5

#: Where even one name is too long for a line, it is cut to the first of these that fits.
_CUT = (48, 32, 20)


@dataclass(frozen=True)
class _Said:
    """Names with what is said before them (``begin``), and the same as a number of them."""

    begin: str
    names: tuple[str, ...]
    counted: str

    def text(self, most: int, longest: int | None = None) -> str:
        """The first ``most`` names, and how many more there are."""
        shown = [name if longest is None else shortened(name, longest) for name in self.names[:most]]
        return f"{self.begin}{', '.join(shown)}{_more(len(self.names) - most)}"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def tally(result: Result, *, width: int | None = None) -> str:
    """``2 audits, 5 claims: all as expected``, or what is not, by name.

    width: in so many characters, by naming fewer and counting the rest. Where not one name has room, numbers alone
    are told, which may pass a width below 90.
    """
    verdicts = [(audit, verdict) for audit in result.audits for verdict in audit.verdicts]
    head = f"{len(result.parts)} results, each judged by itself; " if result.parts else ""
    everything = f"{labels.count(len(result.audits), 'audit')}, {labels.count(len(verdicts), 'claim')}"
    said = list(_said(result, len(verdicts)))
    ends = [] if result.complete else ["INCOMPLETE, trials are missing"]
    if not failed(result):
        if not said and not ends:
            return _as_expected(result, f"{head}{everything}", width)
        head += f"{everything}; "
    tries = [(most, None) for most in range(_NAMED, 0, -1)] + [(1, longest) for longest in _CUT]
    for most, longest in tries:
        text = f"{head}{'; '.join([*(one.text(most, longest) for one in said), *ends])}"
        if width is None or len(text) <= width:
            return text
    return f"{head}{'; '.join([*(one.counted for one in said), *(['INCOMPLETE'] if ends else [])])}"


def failed(result: Result) -> bool:
    """Whether something is not as expected that missing trials cannot mend."""
    return any(
        not (audit.conformance.expected or labels.untested(audit))
        or any(not verdict.expected and not labels.pending(audit, verdict) for verdict in audit.verdicts)
        for audit in result.audits
    )


def _as_expected(result: Result, everything: str, width: int | None) -> str:
    """That all is as expected; of what was made to deviate, that it does."""
    made = [audit.name for audit in result.audits if audit.conformance.status == "deviates"]
    if not made:
        return f"{everything}: all as expected"
    deviate = f"{'deviates' if len(made) == 1 else 'deviate'} on purpose"
    for most in (*range(_NAMED, 0, -1), 0):
        names = f"{', '.join(made[:most])}{_more(len(made) - most)}" if most else labels.count(len(made), "audit")
        text = f"{everything}: as expected; {names} {deviate}"
        if width is None or len(text) <= width:
            break
    return text


def _said(result: Result, claims: int) -> Iterator[_Said]:
    """Claims that failed, audits of which something else ran, and claims that are not decided yet."""
    wrong = _named(result, lambda audit, verdict: not verdict.expected and not labels.pending(audit, verdict))
    later = _named(result, labels.pending)
    strange = [audit for audit in result.audits if not (audit.conformance.expected or labels.untested(audit))]
    failed = sum(
        not verdict.expected and not labels.pending(audit, verdict)
        for audit in result.audits
        for verdict in audit.verdicts
    )
    if wrong:
        counted = f"FAILED {failed} of {labels.count(claims, 'claim')}"
        yield _Said(f"{counted}: ", tuple(wrong), counted)
    if strange:
        begin = "" if wrong else "FAILED "
        number = f"{begin}conformance of {labels.count(len(strange), 'audit')}"
        yield _Said(begin, tuple(_strange(audit) for audit in strange), number)
    if later:
        yield _Said("not yet decided: ", tuple(later), f"{labels.count(len(later), 'name')} not yet decided")


def _named(result: Result, of: Callable[[AuditResult, Verdict], bool]) -> list[str]:
    """The claims of which something is true: each by its audit; of several cells of a matrix, once for all of them."""
    within = {number: matrix for matrix in result.matrices for number in matrix.numbers}
    names: list[str] = []
    told: set[tuple[int, str]] = set()
    for number, audit in enumerate(result.audits):
        matrix = within.get(number)
        for verdict in audit.verdicts:
            if not of(audit, verdict):
                continue
            if matrix is None:
                names.append(f"{audit.name}.{verdict.claim}")
                continue
            if (id(matrix), verdict.claim) in told:
                continue
            told.add((id(matrix), verdict.claim))
            held = [one for one in matrix.audits if (v := matrices.verdict_of(one, verdict.claim)) and of(one, v)]
            if len(held) == 1:
                names.append(f"{matrix.name} ({matrices.cell_title(matrix, audit)}).{verdict.claim}")
            else:
                names.append(f"{matrix.name}.{verdict.claim} in {len(held)} of {len(matrix.audits)} cells")
    return names


def _strange(audit: AuditResult) -> str:
    """What is wrong with what ran: ``app deviates (noise-scale 0.1 for 1)``, by the check that speaks most against."""
    status = audit.conformance.status
    if status != "deviates":
        outcomes = {"checks-missing": "lacks planned checks", "not-run": "was not tested"}
        return f"{audit.name} {outcomes.get(status, labels.conformance_label(status))}"
    worst = min(audit.checks, key=lambda check: check.p_value, default=None)
    if worst is None:
        return f"{audit.name} deviates"
    size = ""
    if worst.declared is not None and worst.measured is not None:
        size = f" {decimals.nearest(worst.measured, digits=2)} for {decimals.nearest(worst.declared, digits=2)}"
    return f"{audit.name} {status} ({worst.assumption}{size})"
