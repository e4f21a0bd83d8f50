"""Bounds and plans of earlier runs, kept for the user who made them, so that they are not computed again.

A bound proves claims, and nothing about it shows that it was made up. So what is kept is no store: nobody else may
write it, nobody shares it, and no result rests on it for whoever asks again, since ``dpspec verify`` computes every
bound anew.

*Who may write it.* Folder and files belong to the user of this process and to nobody else (modes 0700 and 0600, looked
at with every reading, links refused). Whoever can write there can replace the code of dpspec as well. Where a system
cannot say that, nothing is kept; nor in continuous integration (the variable ``CI``), where folders are restored from
elsewhere.

*What it is kept under.* The whole resolved spec with the inputs of its trials, the public facts, and all that computes:
the bytes of every file of dpspec and of the plugins that ship with it, the versions of Python and of the numeric
libraries, and the kind of processor. Files that changed while the process ran, or just before, may not be what it
computes with: then nothing is read or kept.

*What is kept.* Only what follows from these: a bound that asks its context for rows, a model or files is computed in
every run, and so is that of a mechanism that another distribution offers, whose code may read whatever it likes, and
that of a recorded run. Values that speak of the data are therefore never among them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from dpspec.contract import Context, Finding, Json, Plan, Series
from dpspec.contract.audit import NO_TRIALS
from dpspec.contract.canonical import digest
from dpspec.engine.preparing.prepare import Prepared
from dpspec.engine.preparing.trial_keys import unknown
from dpspec.engine.results.codec import decode, encode
from dpspec.engine.storage.origins import version_of
from dpspec.errors import ResultError
from dpspec.language.selections import SELECTION
from dpspec.registry.discover import normalise
from dpspec.registry.sources import own_code

#: A folder, or ``off``.
VARIABLE = "DPSPEC_KEPT_BOUNDS"

#: What is larger is not kept, or read; of more files the oldest go.
MOST_BYTES, MOST_FILES = 1 << 22, 1_000

#: What a bound may ask its context for and still follow from the spec and public facts.
_PUBLIC = frozenset({"facts", "progress", "cancelled", "map", "seed"})

_LIBRARIES = ("dpspec", "numpy", "scipy", "scikit-learn", "torch")

#: Code that was changed after this, or within a minute before, may not be the code that this process has imported.
_BEGAN = time.time() - 60.0


class AskedContext:
    """A context that remembers whether it was asked for more than what is public."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.asked_for_more = False

    def __getattr__(self, name: str) -> Any:
        if name not in _PUBLIC:
            self.asked_for_more = True
        return getattr(self._context, name)


class KeptBounds:
    """What was computed before, in a folder of the user's own. used: how many audits' bounds were taken from it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()  # workers may work in another one
        self.used = 0

    def bounds(self, prepared: Prepared, context: Context) -> list[Finding | Series]:
        """The audit's bounds, computed where they are not kept; raises as the audit does."""
        key = _key("bounds", prepared)
        kept: tuple[Finding | Series, ...] | None = self._read(key, tuple[Finding | Series, ...])
        if kept is not None:
            self.used += 1
            return list(kept)
        asked = AskedContext(context)
        found = tuple(prepared.audit.bound(prepared.spec, cast(Context, asked)))
        if not asked.asked_for_more:
            self._write(key, found, tuple[Finding | Series, ...])
        return list(found)

    def plan(self, prepared: Prepared) -> Plan:
        """The audit's plan, made where it is not kept; raises as the audit does."""
        if prepared.spec.audit is None:
            return NO_TRIALS
        key = _key("plan", prepared)
        kept: Plan | None = self._read(key, Plan)
        if kept is not None:
            return kept
        made = prepared.plan()
        self._write(key, made, Plan)
        return made

    def _read(self, key: str | None, hint: Any) -> Any:
        """The value under a key, where it is the user's own and whole; None otherwise."""
        if key is None:
            return None
        try:
            if not _is_own(os.lstat(self._folder), stat.S_ISDIR):
                return None
            handle = os.open(self._folder / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(handle, "rb") as file:
                about = os.fstat(handle)
                if not _is_own(about, stat.S_ISREG) or about.st_size > MOST_BYTES:
                    return None
                whole, _, content = file.read(MOST_BYTES).partition(b"\n")
        except OSError:
            return None
        if hashlib.sha256(content).hexdigest().encode() != whole:
            return None
        with suppress(ValueError, RecursionError, ResultError):
            return decode(hint, json.loads(content), "kept")
        return None

    def _write(self, key: str | None, value: Any, hint: Any) -> None:
        """Keep a value that reads back the same to the last digit; where nothing can be written, nothing is kept."""
        text = json.dumps(_plain(value))
        content = text.encode("ascii")
        if key is None or len(content) > MOST_BYTES - 100 or own_code(before=_BEGAN) is None:
            return
        with suppress(OSError, ResultError):
            if json.dumps(_plain(decode(hint, json.loads(text), "kept"))) != text:
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_own(os.lstat(self._folder), stat.S_ISDIR):
                return
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")  # its mode is 0600
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
                os.replace(name, self._folder / key)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name)
                raise
            self._thin_out()

    def _thin_out(self) -> None:
        """Remove the oldest files where there are too many."""
        files = [entry for entry in os.scandir(self._folder) if entry.is_file(follow_symlinks=False)]
        if len(files) > MOST_FILES:
            by_age = sorted(files, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime)
            for entry in by_age[: len(files) - MOST_FILES * 3 // 4]:
                os.unlink(entry.path)


def kept_bounds(environ: Mapping[str, str] = os.environ) -> KeptBounds | None:
    """The bounds kept for this user, as the environment says; None where none are.

    ``DPSPEC_KEPT_BOUNDS`` names the folder, or is ``off``; without it, ``dpspec/bounds`` in the user's cache folder,
    and nothing in continuous integration.
    """
    chosen = environ.get(VARIABLE, "")
    if chosen == "off" or not hasattr(os, "geteuid") or (not chosen and environ.get("CI")):
        return None
    if chosen:
        return KeptBounds(Path(chosen))
    try:
        return KeptBounds(Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpspec" / "bounds")
    except RuntimeError:  # a user without a home
        return None


def _key(what: str, prepared: Prepared) -> str | None:
    """What bounds or a plan are kept under; None where more may decide them than can be named. Raises ``DataError``."""
    _, mechanism = prepared.offers["mechanism"]
    kind, training = prepared.spec.mechanism.kind, prepared.spec.training.kind
    if normalise(mechanism.distribution) != "dpspec" or training == "recorded" or kind == SELECTION:
        return None  # of a selection, mechanisms of its cells may be anybody's
    code = own_code(before=_BEGAN)
    if code is None or any(unknown(offered) for _, offered in prepared.offers.values()):
        return None
    spec = prepared.spec
    identity: dict[str, Json] = {
        "what": what,
        "document": spec.document,
        "cell": spec.cell,
        "inputs": prepared.audit.trial_inputs(spec) if spec.audit is not None else None,
        "facts": encode(prepared.facts),
        "makers": prepared.makers,
        **computing(code),
    }
    return digest(identity)


def computing(code: str | None) -> dict[str, Json]:
    """All that computes a bound: the digest of dpspec's files, libraries, Python and the kind of processor."""
    return {
        "code": code,
        "versions": {library: version_of(library) for library in _LIBRARIES},
        "python": [platform.python_implementation(), platform.python_version(), platform.machine()],
    }


def _is_own(about: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Whether a folder or file is this user's, and nobody else's to read or write."""
    return kind(about.st_mode) and about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o077


def _plain(value: Any) -> Json:
    """A finding, a series or a plan as plain JSON; infinities stay numbers."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
