"""Files of specs that fail during a run, such as at a row of their data, while the others go on."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dpspec.contract import Spec
from dpspec.engine.storage.stored_trials import AuditState
from dpspec.errors import SpecError
from dpspec.language.yaml_source import source_file

#: Receives the name of a file of specs and its error.
FailureListener: TypeAlias = Callable[[str, SpecError], None]


def file_or_name(spec: Spec) -> str:
    """The file of a spec, or its name if it has none."""
    return source_file(spec.origin) or spec.name


class Failures:
    """The failed files of a run. A file fails as a whole: claims over a matrix need each of its cells."""

    def __init__(self, specs: Sequence[Spec] = (), on_failure: FailureListener | None = None) -> None:
        """Without ``on_failure``, and if no file is left, an error ends the run."""
        self._remaining = {file_or_name(spec) for spec in specs}
        self._failed: set[str] = set()
        self._on_failure = on_failure

    def include(self, spec: Spec) -> bool:
        """Whether the file of a spec has failed."""
        return file_or_name(spec) in self._failed

    def add(self, spec: Spec, error: SpecError) -> None:
        """Report an error of the work on a spec, once for its file. Raises the error if it ends the run."""
        file = file_or_name(spec)
        self._remaining.discard(file)
        if self._on_failure is None or not self._remaining:
            raise error
        if file not in self._failed:
            self._failed.add(file)
            self._on_failure(file, error)

    def without_failed(self, audits: Sequence[AuditState]) -> list[AuditState]:
        return [audit for audit in audits if not self.include(audit.prepared.spec)]
