"""Loads and runs a mechanism's example spec, with a store of its own that is removed at exit."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dpspec.contract import Spec
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Event, TrialFinished
from dpspec.engine.preparing import prepare
from dpspec.engine.results.result import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.diagnostics.render import render
from dpspec.language.load import load_specs
from dpspec.registry.foreign_code import describe


@dataclass(frozen=True)
class Executed:
    """A run of the example: what it came to, where its trials are, and how many were trained."""

    specs: tuple[Spec, ...]
    result: Result
    store: Store
    trained: int


@dataclass
class Laboratory:
    """One mechanism's example spec on the bench. ``overrides`` are applied to every load, as ``--set`` would."""

    example: str
    catalog: Catalog
    overrides: tuple[str, ...] = ()
    folder: Path = field(default_factory=lambda: _temporary())
    _first: Executed | None = None
    _failed: bool = False

    def load(self, *overrides: str) -> tuple[Spec, ...]:
        """The example's specs, one per cell; an assertion fails with every diagnostic where there is an error."""
        path = self.folder / "example.yaml"
        path.write_text(self.example, encoding="utf-8")
        loaded = load_specs([path], self.catalog, [*self.overrides, *overrides])
        errors = [d for d in loaded.diagnostics if d.severity == "error"]
        if errors or not loaded.specs:
            raise AssertionError(f"the example is not a valid spec:\n{render(loaded.diagnostics)}")
        return loaded.specs

    def run(self, specs: Sequence[Spec], store: Store | None = None, *, train: bool = True) -> Executed:
        """Run specs on the CPU, in a fresh store unless one is given."""
        store = store or Store(Path(tempfile.mkdtemp(dir=self.folder)))
        trained: list[Event] = []

        def listen(event: Event) -> None:
            if isinstance(event, TrialFinished):
                trained.append(event)

        with in_words("the run"):
            result = run(specs, self.catalog, store=store, device="cpu", listeners=[listen], train=train)
        return Executed(tuple(specs), result, store, len(trained))

    @property
    def first(self) -> Executed:
        """The first run of the whole example; the tests of a suite share it, and only the first tells why it fails."""
        if self._failed:
            raise AssertionError("the example does not run to its end: another test of this suite says why")
        if self._first is None:
            self._failed = True
            self._first = self.run(self.load())
            self._failed = False
        return self._first


@contextmanager
def in_words(step: str) -> Iterator[None]:
    """Make an assertion of whatever is raised inside: which step of the audit it was, what it says, and where.

    step: how it is called where the traceback names no step.
    """
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        names = [f.name for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent not in _OURS]
        step = next((name for name in names if name in _STEPS), step)
        raise AssertionError(f"{step} raises {describe(error)}") from error


_STEPS = ("check", "bound", "plan", "trial_inputs", "trials", "conclude")

#: Whose functions are called like steps, and are none.
_OURS = (Path(__file__).parent, Path(prepare.__file__).parents[1])


def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dpspec-testing-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
