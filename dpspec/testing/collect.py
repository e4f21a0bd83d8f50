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
    group.addoption("--dpspec-bounds-only", action="store_true", help="Train nothing: judge claims by theory only.")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return a collector for a spec, None for other files."""
    from dpspec.language.load import is_spec

    if not is_spec(file_path):
        return None
    collector: pytest.Collector = SpecFile.from_parent(parent, path=file_path)
    return collector


class SpecFile(pytest.File):
    """One spec file; audited once, when its first test runs."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test per claim and cell."""
        from dpspec.language.diagnostics import render
        from dpspec.language.load import load_specs
        from dpspec.registry.loader import load_catalog

        self._audits: dict[str, AuditResult] | None = None
        loaded = load_specs([self.path], load_catalog())
        if not loaded.ok:
            raise self.CollectError(render(loaded.diagnostics, sources=loaded.sources))
        self._loaded = loaded
        for spec in loaded.specs:
            for claim in spec.claims:
                yield SpecItem.from_parent(self, name=f"{spec.name}::{claim.id}", audit=spec.name, claim=claim.id)
            yield SpecItem.from_parent(self, name=f"{spec.name}::conformance", audit=spec.name)

    def audited(self, name: str) -> AuditResult:
        """The audit of one spec of the file."""
        from dpspec.engine.running.runner import run
        from dpspec.engine.storage.trial_store import Store
        from dpspec.errors import SpecError
        from dpspec.language.diagnostics import render
        from dpspec.registry.loader import load_catalog

        if self._audits is None:
            store = Store(Path(self.config.getoption("--dpspec-store")))
            train = not self.config.getoption("--dpspec-bounds-only")
            try:
                result = run(self._loaded.specs, load_catalog(), store=store, train=train)
            except SpecError as error:
                pytest.fail(render(error.diagnostics, sources=self._loaded.sources), pytrace=False)
            self._audits = {audit.name: audit for audit in result.audits}
        return self._audits[name]


class SpecItem(pytest.Item):
    """A test of one claim; or, without a claim, of conformance, skipped if nothing ran."""

    def __init__(self, *, audit: str, claim: str | None = None, **given: Any) -> None:
        super().__init__(**given)
        self.audit, self.claim = audit, claim

    def runtest(self) -> None:
        """Fail if the verdict or the conformance is not expected, or if trials are missing."""
        from dpspec.reporters import labels

        assert isinstance(self.parent, SpecFile)
        audit = self.parent.audited(self.audit)
        if self.claim is not None:
            (verdict,) = [verdict for verdict in audit.verdicts if verdict.claim == self.claim]
            if not verdict.expected:
                pytest.fail(plain(labels.verdict_line(audit, verdict)), pytrace=False)
            return
        if not audit.complete:
            pytest.fail(labels.missing_trials(audit), pytrace=False)
        if not audit.conformance.expected:
            pytest.fail(plain(labels.conformance_line(audit)), pytrace=False)
        if audit.conformance.status == "not-run":
            pytest.skip(plain(audit.conformance.reason))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The spec file, without a line, and the name of the test."""
        return self.path, None, self.name
