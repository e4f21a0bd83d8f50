"""Reports of a command that ended without a result: JUnit, SARIF, GitHub annotations and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dpspec.contract import Diagnostic, Json, format_path
from dpspec.errors import ExitCode, Span
from dpspec.language.compose import OVERRIDES_FILE
from dpspec.reporters import blocks
from dpspec.reporters.blocks import Document, Section, Sentence, Text, items
from dpspec.reporters.ci import junit, sarif, sarif_result, workflow_command
from dpspec.reporters.markdown import write
from dpspec.reporters.words import count
from dpspec.text import plain
from dpspec.version import VERSION


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The end of a command without a result: its exit code, the message, and the diagnostics of specs."""

    exit_code: ExitCode
    message: str
    diagnostics: Sequence[Diagnostic] = ()

    @property
    def headline(self) -> str:
        errors = sum(diagnostic.severity == "error" for diagnostic in self.diagnostics)
        reason = f"{count(errors, 'error')} in the specs" if errors else self.message
        return f"no verdict (exit {self.exit_code:d}): {reason}"


def _in_file(diagnostic: Diagnostic) -> Span | None:
    """The span in a file; values of ``--set`` are in none."""
    span = diagnostic.span
    return None if span is None or span.file == OVERRIDES_FILE else span


def _text(diagnostic: Diagnostic) -> str:
    return f"{diagnostic.message}; {diagnostic.help}" if diagnostic.help else diagnostic.message


def _place(diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    return format_path(diagnostic.path) if span is None else f"{span.file}:{span.line}:{span.column}"


def _github(failure: Failure) -> str:
    lines = []
    for diagnostic in failure.diagnostics:
        span, title = _in_file(diagnostic), f"{diagnostic.severity}[{diagnostic.code}]"
        location = {} if span is None else {"file": span.file, "line": str(span.line), "col": str(span.column)}
        lines.append(workflow_command(diagnostic.severity, _text(diagnostic), title=title, **location))
    lines.append(workflow_command("error", failure.headline, title="dpspec"))
    return "\n".join(lines) + "\n"


def _junit(failure: Failure) -> str:
    from junitparser import Error, TestCase, TestSuite

    errors = [diagnostic for diagnostic in failure.diagnostics if diagnostic.severity == "error"]
    problems = [(_place(error), _text(error), error.code) for error in errors]
    suite = TestSuite("dpspec")
    for name, text, kind in problems or [("run", failure.message, failure.exit_code.name.lower())]:
        case = TestCase(plain(name), "dpspec")
        case.result = [Error(plain(text), plain(kind))]
        suite.add_testcase(case)
    return junit([suite])


def _sarif(failure: Failure) -> str:
    codes = list(dict.fromkeys(diagnostic.code for diagnostic in failure.diagnostics))
    results: list[Json] = []
    notifications: list[Json] = [{"level": "error", "message": {"text": plain(failure.headline)}}]
    for diagnostic in failure.diagnostics:
        text, level, span = _text(diagnostic), diagnostic.severity, _in_file(diagnostic)
        if span is None:  # code scanning rejects a result without a location
            notifications.append({"level": level, "message": {"text": plain(text)}})
            continue
        results.append(sarif_result(diagnostic.code, codes, level, text, span.file, span.line, span.column))
    rules: list[Json] = [
        {"id": f"dpspec/{code}", "help": {"text": f"See `dpspec explain {code}`."}} for code in map(plain, codes)
    ]
    invocation: Json = {
        "executionSuccessful": False,
        "exitCode": int(failure.exit_code),
        "toolExecutionNotifications": notifications,
    }
    return sarif(VERSION, rules, invocation, results)


def _markdown(failure: Failure) -> str:
    problems: list[Text] = [
        (blocks.Span(diagnostic.severity, "strong"), f" [{diagnostic.code}] {_place(diagnostic)}: {_text(diagnostic)}")
        for diagnostic in failure.diagnostics
    ]
    headline = Sentence((blocks.Span(failure.headline, "strong"),))
    return write(Document((Section("dpspec", (headline, items(*problems)), level=1),)))


#: The formats that report a failure. Other formats hold results only.
FORMATS: Mapping[str, Callable[[Failure], str]] = {
    "github": _github,
    "junit": _junit,
    "sarif": _sarif,
    "markdown": _markdown,
}
