"""Canonical recordings, each made once in a run of the tests and shared by its workers.

Tests that judge, render or command a recording read one by the fixture ``recordings``, and copy it before they change
it. A test trains by itself if it needs another script, fault or option, or the training.
"""

import contextlib
import fcntl
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from support import opacus_training, planted_loop
from support.chance import repeatable
from support.opacus_training import Training
from support.plain_loop import plain_loop


def _ghost_by_hand(folder: Path) -> None:
    opacus_training.recorded(folder, opacus_training.two_passes, clipping="ghost")


def _leaking_canaries(folder: Path) -> None:
    run, model, _ = planted_loop.train(folder, fault="no-noise", canaries=300)
    run.score(model, planted_loop.loss)


#: By name, a function that makes the recording. Those of Opacus sample 300 records at rate 0.1, with clip norm 1.
MAKERS: dict[str, Callable[[Path], object]] = {
    # 40 steps of noise 1.1, without a fault
    "flat": lambda folder: Training(epochs=4).run(folder),
    "adamw": lambda folder: Training(epochs=4, optimizer="adamw", physical=16).run(folder),
    "adaptive": lambda folder: Training(epochs=4, clipping="adaptive").run(folder),
    # ghost clipping whose script makes the two passes: single contributions are not observed
    "ghost by hand": _ghost_by_hand,
    # three epochs of noise 2 that the accountant counts as Poisson samples
    "shuffled": lambda folder: Training(poisson=False, epochs=3, noise=2.0).run(folder),
    "no noise": lambda folder: Training(noise=0.0).run(folder),
    # 20 reported steps of a custom loop
    "custom loop": plain_loop,
    # noise that a custom loop reports and does not add, refuted by 300 canaries
    "leaking canaries": _leaking_canaries,
}


def _digest(folder: Path) -> str:
    """The digest of the names and contents of the files of a recording."""
    found = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(file.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


class Recordings:
    """The folders of the canonical recordings by name, which tests must not change."""

    def __init__(self, folder: Path, *, repeats: bool) -> None:
        """repeats: whether the recordings of each run of the tests draw the same random numbers."""
        self._folder, self._repeats = folder, repeats
        self._digests: dict[Path, str] = {}
        folder.mkdir(exist_ok=True)

    def __getitem__(self, name: str) -> Path:
        folder = self._folder / name.replace(" ", "-")
        with (self._folder / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                self._make(name, folder)
        if folder not in self._digests:
            self._digests[folder] = _digest(folder)
        return folder

    def _make(self, name: str, folder: Path) -> None:
        unfinished = self._folder / f"{folder.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        chance = repeatable(name) if self._repeats else contextlib.nullcontext()
        with chance, torch.random.fork_rng():
            MAKERS[name](unfinished)
        unfinished.rename(folder)

    def require_unchanged(self) -> None:
        """Fail if a test has changed a recording since this process read it first."""
        changed = [folder.name for folder, digest in self._digests.items() if _digest(folder) != digest]
        assert not changed, f"a test changed {changed}, which other tests read: it must copy them"

    def copy(self, name: str, folder: Path) -> Path:
        """Return a copy that a test may change."""
        return Path(shutil.copytree(self[name], folder))
