"""A result as JUnit XML, which every continuous-integration system reads: a suite per audit, a case per claim."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpspec.engine.joined import apart
from dpspec.engine.redact import redact
from dpspec.engine.result import AuditResult, Result
from dpspec.reporters import words
from dpspec.reporters.escape import plain

if TYPE_CHECKING:
    from junitparser import TestCase


def render(result: Result, *, internal: bool = False) -> str:
    """The result as JUnit XML text; data-dependent and per-record values only where ``internal`` asks for them.

    A case fails where a claim, or the conformance, did not come out as the spec expects: a control that is refuted as
    it should be passes. Missing trials are an error; what they would decide, and a conformance that nobody tested, is
    skipped.
    """
    from junitparser import JUnitXml, TestSuite

    if not internal:
        result = redact(result)
    document = JUnitXml("dpspec")
    for part in apart(result):
        for audit in part.audits:
            suite = TestSuite(plain(audit.name))
            suite.timestamp = part.created
            for case in _cases(audit):
                suite.add_testcase(case)
            suite.time = audit.seconds
            document.add_testsuite(suite)
    text: bytes = document.tostring()  # type: ignore[no-untyped-call]
    return text.decode("utf-8") + "\n"


def _cases(audit: AuditResult) -> Iterator[TestCase]:
    from junitparser import Error, Failure, Skipped, TestCase

    name = plain(audit.name)
    for verdict in audit.verdicts:
        case = TestCase(plain(verdict.claim), name)
        if words.pending(audit, verdict):
            case.result = [Skipped(plain(words.verdict_line(audit, verdict)))]
        elif not verdict.expected:
            case.result = [Failure(plain(words.verdict_line(audit, verdict)), verdict.verdict)]
        case.system_out = plain(words.verdict_line(audit, verdict))
        yield case
    found = audit.conformance
    case = TestCase("conformance", name)
    if not found.expected and not words.untested(audit):
        case.result = [Failure(plain(words.conformance_line(audit)), found.status)]
    elif found.status == "not-run":
        case.result = [Skipped(plain(found.reason))]
    yield case
    if not audit.complete:
        case = TestCase("trials", name)
        case.result = [Error(words.missing_trials(audit), "incomplete")]
        yield case
