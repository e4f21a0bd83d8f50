"""Forged files before ``dpspec verify``, and what it says of them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from support.forger.specs import MATRIX, spec_of

#: What ``verify`` may end with, and what that is.
ENDINGS = {0: "passed", 1: "objected", 2: "refused", 3: "refused", 4: "refused", 7: "not recomputed"}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A result to be forged, and what it may be verified with."""

    name: str
    text: str
    store: str = "nowhere"

    @property
    def document(self) -> Any:
        return json.loads(self.text)


class Bench:
    """A folder where results are made and verified. Bounds and conclusions of the same spec are computed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Any, Any] = {}
        self._rendered: dict[str, str] = {}

    def result(self, kind: str, *, trained: bool, public: bool = True, matrix: bool = False) -> Any:
        """A result of a plugin, made here; its trials are in a store of their own."""
        from dpspec.engine.running.runner import run
        from dpspec.engine.storage.trial_store import Store
        from dpspec.language.load import load_specs
        from dpspec.registry.loader import load_catalog

        path = self.folder / f"{kind}-{trained}-{public}-{matrix}.yaml"
        text = spec_of(kind, trained=trained, public=public) + (MATRIX if matrix else "")
        path.write_text(text, encoding="utf-8")
        loaded = load_specs([path], load_catalog())
        assert loaded.ok, loaded.diagnostics
        return run(loaded.specs, load_catalog(), store=Store(self.folder / "store"), device="cpu")

    def subjects(self, kind: str) -> Iterator[Subject]:
        """Results of a plugin: bounds only, trained, for internal use or not, with their store or without."""
        from dpspec.engine.redact import redact
        from dpspec.engine.results import codec

        store = str(self.folder / "store")
        bounds = self.result(kind, trained=False)
        yield Subject(f"{kind}, bounds only", codec.dump(bounds))
        for public in (True, False):
            trained = self.result(kind, trained=True, public=public)
            of = f"{kind}, {'public' if public else 'private'} data"
            for shown, name in ((redact(trained), of), (trained, f"{of}, internal")):
                yield Subject(name, codec.dump(shown))
                yield Subject(f"{name}, with the store", codec.dump(shown), store)
        if kind == "group":
            cells = self.result(kind, trained=False, matrix=True)
            yield Subject(f"{kind}, two cells", codec.dump(cells))

    def pages(self, kind: str) -> Iterator[Subject]:
        """Pages of a trained result of a plugin."""
        from dpspec.reporters import page as html

        trained = self.result(kind, trained=True, public=False)
        store = str(self.folder / "store")
        yield Subject(f"{kind}, a page with the store", html.render(trained), store)
        yield Subject(f"{kind}, a page for internal use", html.render(trained, internal=True))

    def ends(self, text: str, store: str) -> tuple[str, str]:
        """What ``dpspec verify`` makes of a file, and what it prints."""
        from dpspec.cli.app import main

        path = self.folder / "forged"
        path.write_text(text, encoding="utf-8")
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(["verify", str(path), "--store", store])
        return ENDINGS.get(code, f"ended with {code}"), out.getvalue()

    @contextlib.contextmanager
    def remembering(self) -> Iterator[None]:
        """What follows from equal specs, facts and trials alone is made once, and so are pages of equal results."""
        from dpspec.engine import verify as recompute
        from dpspec.reporters import page as edited

        prepare, render = recompute.prepare, edited.render

        def prepared(*given: Any, **options: Any) -> Any:
            made = prepare(*given, **options)
            return dataclasses.replace(made, audit=_Remembering(made.audit, self._known))

        def rendered(result: Any, *, internal: bool = False) -> str:
            from dpspec.engine.results import codec

            key = f"{internal}{codec.dump(result)}"
            if key not in self._rendered:
                self._rendered = {**dict(list(self._rendered.items())[-8:]), key: render(result, internal=internal)}
            return self._rendered[key]

        with mock.patch.object(recompute, "prepare", prepared), mock.patch.object(edited, "render", rendered):
            yield


class _Remembering:
    """An audit that answers a question once."""

    def __init__(self, audit: Any, known: dict[Any, Any]) -> None:
        self._audit, self._known = audit, known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._audit, name)

    def bound(self, spec: Any, context: Any) -> Any:
        key = ("bound", _key(spec), repr(context.facts))
        return self._once(key, lambda: list(self._audit.bound(spec, context)))

    def plan(self, spec: Any, facts: Any) -> Any:
        return self._once(("plan", _key(spec), repr(facts)), lambda: self._audit.plan(spec, facts))

    def conclude(self, spec: Any, trials: Any) -> Any:
        from dpspec.contract.frozen import canonical_json

        made = [(trial.index, canonical_json(trial.evidence), sorted(trial.arrays)) for trial in trials]
        key = ("conclude", _key(spec), repr(made))
        return self._once(key, lambda: list(self._audit.conclude(spec, trials)))

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


def _key(spec: Any) -> str:
    from dpspec.contract.frozen import canonical_json

    return canonical_json(spec.document) + spec.name
