"""Run ``dpspec verify`` on forged files."""

import contextlib
import dataclasses
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from dpspec.cli.app import main
from dpspec.contract.frozen import canonical_json
from dpspec.engine import verify
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.registry.loader import load_catalog
from dpspec.reporters import page
from dpspec.results import codec
from dpspec.results.redact import redact
from support import specs
from support.forger.specs import MATRIX, TRAINED, spec_of

#: The exit codes of ``verify``, and their meaning.
ENDINGS = {0: "passed", 1: "objected", 2: "refused", 3: "refused", 4: "refused", 7: "not recomputed"}


@dataclasses.dataclass(frozen=True)
class Subject:
    name: str
    text: str
    store: str = "nowhere"

    @property
    def document(self) -> Any:
        return json.loads(self.text)


class Bench:
    """A folder for results and their verification, with cached bounds and conclusions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Any, Any] = {}
        self._page = ("", "")

    def result(self, kind: str, *, trained: bool, public: bool = True, matrix: bool = False) -> Any:
        path = self.folder / f"{kind}-{trained}-{public}-{matrix}.yaml"
        text = spec_of(kind, trained=trained, public=public) + (MATRIX if matrix else "")
        path.write_text(text, encoding="utf-8")
        return run(specs.loaded(path), load_catalog(), store=Store(self.folder / "store"), device="cpu")

    def subjects(self, kind: str) -> Iterator[Subject]:
        """Yield results of a plugin: bounds only, and if it trains, for internal use or not, with store or without."""
        store = str(self.folder / "store")
        yield Subject(f"{kind}, bounds only", codec.dump(self.result(kind, trained=False)))
        for public in (True, False) if kind in TRAINED else ():
            trained = self.result(kind, trained=True, public=public)
            of = f"{kind}, {'public' if public else 'private'} data"
            for shown, name in ((redact(trained), of), (trained, f"{of}, internal")):
                yield Subject(name, codec.dump(shown))
                yield Subject(f"{name}, with the store", codec.dump(shown), store)
        if kind == "group":
            yield Subject(f"{kind}, two cells", codec.dump(self.result(kind, trained=False, matrix=True)))

    def pages(self, kind: str) -> Iterator[Subject]:
        if kind not in TRAINED:
            yield Subject(f"{kind}, a page", page.render(self.result(kind, trained=False)))
            return
        trained = self.result(kind, trained=True, public=False)
        yield Subject(f"{kind}, a page with the store", page.render(trained), str(self.folder / "store"))
        yield Subject(f"{kind}, a page for internal use", page.render(trained, internal=True))

    def ends(self, text: str, store: str) -> tuple[str, str]:
        path = self.folder / "forged"
        path.write_text(text, encoding="utf-8")
        out = io.StringIO()
        # A result without its store is verified with the default one, which the folder lacks.
        named = ["--store", store] if store != "nowhere" else []
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(["verify", str(path), *named])
        return ENDINGS.get(code, f"ended with {code}"), out.getvalue()

    @contextlib.contextmanager
    def remembering(self) -> Iterator[None]:
        """Cache bounds, plans and conclusions by spec, facts and trials, and the page of the last result."""
        prepare, render = verify.prepare, page.render

        def prepared(*given: Any, **options: Any) -> Any:
            made = prepare(*given, **options)
            return dataclasses.replace(made, audit=_Remembering(made.audit, self._known))

        def rendered(result: Any, *, internal: bool = False) -> str:
            key = f"{internal}{codec.dump(result)}"
            if self._page[0] != key:
                self._page = key, render(result, internal=internal)
            return self._page[1]

        with mock.patch.object(verify, "prepare", prepared), mock.patch.object(page, "render", rendered):
            yield


class _Remembering:
    def __init__(self, audit: Any, known: dict[Any, Any]) -> None:
        self._audit, self._known = audit, known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._audit, name)

    def bound(self, spec: Any, context: Any) -> Any:
        return self._once("bound", spec, context.facts, lambda: list(self._audit.bound(spec, context)))

    def plan(self, spec: Any, facts: Any) -> Any:
        return self._once("plan", spec, facts, lambda: self._audit.plan(spec, facts))

    def conclude(self, spec: Any, trials: Any) -> Any:
        made = [(trial.index, canonical_json(trial.evidence), sorted(trial.arrays)) for trial in trials]
        return self._once("conclude", spec, made, lambda: list(self._audit.conclude(spec, trials)))

    def _once(self, question: str, spec: Any, given: Any, make: Callable[[], Any]) -> Any:
        key = (question, canonical_json(spec.document), spec.name, repr(given))
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]
