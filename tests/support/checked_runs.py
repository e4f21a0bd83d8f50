"""The result of ``dpspec check`` for tests, with the recording and its costs."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any

from dpspec.cli.app import main
from dpspec.contract import Assumption, Check, Facts
from dpspec.contract.executed import ExecutedPhase
from dpspec.contract.findings import Channel
from dpspec.contract.results import AuditResult, Conformance, Result
from dpspec.errors import ExitCode
from dpspec.json_records import write
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog
from dpspec.reporters import terminal
from dpspec.results import codec
from dpspec_recording.judge import check
from dpspec_recording.judge.bounds import ScheduleBounds, ScheduleEpsilon
from dpspec_recording.judge.canaries import CanaryBound, canary_bound
from dpspec_recording.judge.executed_run import RecordedRuns, observe
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.judge.run_claim import RunClaim as Question
from dpspec_recording.outcomes.issue import checks_of

__all__ = ["CheckedRun", "Question", "audit_by_spec", "check_run", "checked", "run_page"]


def check_run(path: Path, question: Question) -> CheckedRun:
    """The result of ``dpspec check`` and its inputs."""
    return CheckedRun(path=path, question=question, result=check.check_run(path, question))


def checked(path: Path, **question: Any) -> CheckedRun:
    """Return the result of ``dpspec check`` with these options."""
    return check_run(path, Question(**question))


def run_page(checked: CheckedRun, width: int, *, every: bool = False) -> str:
    """Return the text that ``dpspec check`` prints."""
    return (terminal.render if every else terminal.render_brief)(checked.result, width=width)


def audit_by_spec(folder: Path, *, access: str = "", training: str = "") -> tuple[int, dict[str, Any]]:
    """Return the exit code and the audit of the spec of a recorded run, after ``verify`` passes.

    access, training: further lines of the spec before its adjacency and in its training.
    """
    with contextlib.chdir(folder.parent):
        assert main(["new", "spec", "found", "--from", folder.name]) == 0
        spec = Path("found.yaml").read_text()
        spec = spec.replace("  adjacency:", f"{access}  adjacency:").replace("training:\n", f"training:\n{training}")
        Path("found.yaml").write_text(spec)
        code = main(["run", "found.yaml", "--report", "json=result.json"])
        assert main(["verify", "result.json"]) == 0
        (audit,) = codec.load(Path("result.json").read_text()).audits
    return code, write(audit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """A recording, the question and the result."""

    path: Path
    question: Question
    result: Result

    @property
    def audit(self) -> AuditResult:
        (audit,) = self.result.audits
        return audit

    @property
    def verdict(self) -> str | None:
        """None without a claim."""
        return self.audit.verdicts[0].verdict if self.audit.verdicts else None

    @property
    def reason(self) -> str:
        return self.audit.verdicts[0].reason if self.audit.verdicts else ""

    @property
    def conformance(self) -> Conformance:
        return self.audit.conformance

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.audit.checks

    @property
    def channels(self) -> tuple[Channel, ...]:
        return self.audit.recording.channels

    @property
    def phases(self) -> tuple[ExecutedPhase, ...]:
        return self.audit.recording.phases

    @property
    def told(self) -> Any:
        """The figure of the script's own accountant: its method, delta and epsilon; None without one."""
        return self.audit.recording.facts["accountant"]

    @property
    def cautions(self) -> tuple[str, ...]:
        return self.audit.recording.cautions

    @property
    def exit_code(self) -> ExitCode:
        return self.result.exit_code

    @property
    def fine(self) -> bool:
        return self.verdict in (None, "proved") and self.conformance.status == "no-deviation-found"

    @property
    def rejected(self) -> set[str]:
        return {name for one in self.checks if one.p_value <= 1e-9 for name in one.tests}

    @cached_property
    def tests(self) -> tuple[Check, ...]:
        """The outcomes of which the checks consist, without the names of their faults and those of a declaration."""
        return checks_of(observe(self.path)[1])

    @property
    def status(self) -> tuple[str | None, str]:
        return self.verdict, self.conformance.status

    def channel(self, name: str) -> Channel:
        return next(one for one in self.channels if one.name == name)

    def assumption(self, name: str) -> Assumption:
        return next(one for one in self.assumptions if one.name == name)

    @property
    def doubts(self) -> str:
        """The texts of the open assumptions."""
        return "; ".join(one.text for one in self.assumptions if one.status == "unchecked")

    @cached_property
    def run(self) -> RecordedRun:
        return observe(self.path)[0]

    @cached_property
    def costs(self) -> dict[int, ScheduleEpsilon]:
        of = self.question
        schedule = ScheduleBounds(self.run)
        return {size: schedule.epsilon(of.adjacency, of.delta, size) for size in of.group_sizes}

    @cached_property
    def canaries(self) -> CanaryBound | None:
        return canary_bound(ScheduleBounds(self.run), self.question.delta)

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        spec = from_document(check.document_of(self.path, self.question), load_catalog())
        found = RecordedRuns.read(spec, Facts(records=1, features=1, classes=2, shape=(1,)))
        return tuple(dataclasses.replace(one, settled=False) for one in found.assumptions)
