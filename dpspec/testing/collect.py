"""A pytest plugin that collects specs as tests: one test per claim, and one for conformance.

Enable it by name: ``pytest -p dpspec.testing.collect specs/``, or ``addopts = ["-p", "dpspec.testing.collect"]``.
It collects the files that ``dpspec run`` reads in a folder. The claims of a file form one family of tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dpspec.text import plain

if TYPE_CHECKING:
    from dpspec.engine.results.result import AuditResult


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the store and for runs without training."""
    group = parser.getgroup("dpspec")
    group.addoption("--dpspec-store", default=".dpspec/store", metavar="PATH", help="The folder of finished trials.")
    group.addoption("--dpspec-bounds-only", action="store_true", help="Train nothing: judge claims by theory alone.")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return a collector for a spec, None for other files."""
    from dpspec.language.reading.spec_files import is_spec

    if not is_spec(file_path):
        return None
    collector: pytest.Collector = SpecFile.from_parent(parent, path=file_path)
    return collector


class InvalidSpec(Exception):  # noqa: N818 - users see its text only
    """A spec that cannot be audited, with every diagnostic in its text."""


class SpecFile(pytest.File):
    """One spec file; audited once, when its first test runs."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test per claim and cell; raise :class:`InvalidSpec` if the file is invalid."""
        from dpspec.language.diagnostics import render
        from dpspec.language.load import load_specs
        from dpspec.registry.loader import load_catalog

        self._audits: dict[str, AuditResult] | None = None
        loaded = load_specs([self.path], load_catalog())
        if not loaded.ok:
            raise InvalidSpec(render(loaded.diagnostics, sources=loaded.sources))
        self._loaded = loaded
        for spec in loaded.specs:
            for claim in spec.claims:
                yield ClaimItem.from_parent(self, name=f"{spec.name}::{claim.id}", audit=spec.name, claim=claim.id)
            yield ConformanceItem.from_parent(self, name=f"{spec.name}::conformance", audit=spec.name)

    def audited(self, name: str) -> AuditResult:
        """The audit of one spec of the file."""
        from dpspec.engine.running.runner import run
        from dpspec.engine.storage.trial_store import Store
        from dpspec.errors import SpecError
        from dpspec.language.diagnostics import render
        from dpspec.registry.loader import load_catalog

        if self._audits is None:
            try:
                result = run(
                    self._loaded.specs,
                    load_catalog(),
                    store=Store(Path(self.config.getoption("--dpspec-store"))),
                    train=not self.config.getoption("--dpspec-bounds-only"),
                )
            except SpecError as error:
                raise InvalidSpec(render(error.diagnostics, sources=self._loaded.sources)) from None
            self._audits = {audit.name: audit for audit in result.audits}
        return self._audits[name]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show diagnostics without a traceback."""
        return str(excinfo.value) if isinstance(excinfo.value, InvalidSpec) else super().repr_failure(excinfo)


class NotAsExpected(Exception):  # noqa: N818 - a verdict, not an error
    """A claim or the conformance differs from the expected outcome."""


class _Item(pytest.Item):
    """A test of one spec; failures show their text without a traceback."""

    def __init__(self, *, audit: str, **given: Any) -> None:
        super().__init__(**given)
        self.audit = audit

    def audited(self) -> AuditResult:
        """The audit of this test's spec."""
        assert isinstance(self.parent, SpecFile)
        return self.parent.audited(self.audit)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the text of a verdict without a traceback."""
        known = isinstance(excinfo.value, NotAsExpected | InvalidSpec)
        return str(excinfo.value) if known else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The spec file, without a line, and the name of the test."""
        return self.path, None, self.name


class ClaimItem(_Item):
    """Fails if a claim's verdict is not the expected one."""

    def __init__(self, *, claim: str, **given: Any) -> None:
        super().__init__(**given)
        self.claim = claim

    def runtest(self) -> None:
        """Raise :class:`NotAsExpected` if the verdict is not expected."""
        from dpspec.reporters import labels

        audit = self.audited()
        (verdict,) = [verdict for verdict in audit.verdicts if verdict.claim == self.claim]
        if not verdict.expected:
            raise NotAsExpected(plain(labels.verdict_line(audit, verdict)))


class ConformanceItem(_Item):
    """Fails if the run deviates from its declaration or lacks trials; skipped if nothing ran."""

    def runtest(self) -> None:
        """Raise :class:`NotAsExpected` if the conformance is not expected."""
        from dpspec.reporters import labels

        audit = self.audited()
        found = audit.conformance
        if not audit.complete:
            raise NotAsExpected(labels.missing_trials(audit))
        if not found.expected:
            raise NotAsExpected(plain(labels.conformance_line(audit)))
        if found.status == "not-run":
            pytest.skip(plain(found.reason))
