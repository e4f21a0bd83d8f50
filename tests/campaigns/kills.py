"""SIGKILL at random moments of every mechanism's run, and of the recorder: ``python tests/campaigns/kills.py``.

A run is killed at a random amount of processor time, so that a busy machine shifts no moment, and the same command is
run again until it ends: its result must be that of a run that nothing happened to, byte for byte but for times and
places, and so must every stored trial. Only kills that ended a run in its middle are counted.

A recording does not go on where it was killed, as the training that it looks on does not. What it leaves must be a
beginning of the undisturbed recording, byte for byte under a clock that stands still, and be read up to its last step;
recorded again into another folder the script must leave the same bytes as undisturbed.

Runs are forks of this process, which has imported what they need: needs Linux, and OMP_NUM_THREADS=1 for kills to be
spread evenly.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.forger.specs import KINDS, spec_of
from support.victim import outcome
from support.warm import import_everything

#: What makes the small specs train for a second or two.
LONGER: dict[str, tuple[str, ...]] = {
    "group": ("mechanism.steps=40", "audit.runs=4"),
    "modelmix": ("mechanism.steps=40", "audit.runs=4"),
    "per-instance": ("mechanism.steps=12", "audit.runs=4"),
    "preprocessing": ("audit.runs=8", "audit.repeats=100"),
    "rero": ("mechanism.steps=40", "audit.runs=40", "audit.shard_runs=10"),
}

#: Steps of the training that is recorded.
STEPS = 3000

RECORDER = "recorder"


class FaultError(Exception):
    """What came out is not what should have."""


def forked(body: Callable[[], object], cwd: Path) -> int:
    """Start ``body`` in a fork of its own group, with its output in ``output.txt`` of ``cwd``; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(cwd)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        body()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def seconds_of(pid: int) -> float:
    """The processor time that a child has used; 0 where it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def killed(pid: int, after: float) -> bool:
    """SIGKILL to a child and its group after some processor time; False where it ended before."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        if seconds_of(pid) >= after:
            with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            after = float("inf")
        time.sleep(0.001)


def waited(pid: int) -> tuple[int, float]:
    """How a child ended, and the processor time that it took."""
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


class Run:
    """``dpspec run`` of a small spec of one mechanism."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind, self.root = kind, root
        root.mkdir()
        (root / "audit.yaml").write_text(spec_of(kind, trained=True), encoding="utf-8")
        whole = root / "whole"
        self.code, self.seconds = waited(self.start(whole))
        if self.code not in (0, 1):
            raise FaultError(f"undisturbed, it ends with {self.code}: {said(whole)}")
        self.whole = self.found(whole)

    def start(self, place: Path) -> int:
        """Start the run, with its store and its report in a folder."""
        place.mkdir(exist_ok=True)
        changes = [part for change in LONGER[self.kind] for part in ("--set", change)]
        spec, store, report = self.root / "audit.yaml", place / "store", place / "result.json"
        arguments = ["run", str(spec), *changes, "--store", str(store), "--report", f"json={report}"]

        def body() -> None:
            sys.argv = ["dpspec", *arguments]
            runpy.run_module("dpspec", run_name="__main__", alter_sys=True)

        return forked(body, place)

    def found(self, place: Path) -> tuple[str, dict[str, bytes]]:
        """What the audit came to, and the stored trials without who made them when."""
        result = json.dumps(outcome(place / "result.json"), sort_keys=True)
        kept: dict[str, bytes] = {}
        for file in sorted((place / "store" / "trials").rglob("*")):
            if file.is_file():
                kept[str(file.relative_to(place))] = _trial(file) if file.name == "record.json" else file.read_bytes()
        return result, kept

    def try_kill(self, place: Path, after: float) -> str | None:
        """Kill a run, and run it again; what was there to go on from, None where the run had ended before."""
        if not killed(self.start(place), after):
            return None
        store = place / "store"
        trials = len(list((store / "trials").glob("*/*/record.json")))
        unfinished = any(path.is_file() for path in (store / "unfinished").rglob("*"))
        code, _ = waited(self.start(place))
        if code != self.code:
            raise FaultError(f"killed after {after:.2f} s, it ends with {code}: {said(place)}")
        if self.found(place) != self.whole:
            raise FaultError(f"killed after {after:.2f} s, it comes to something else")
        if any(path.is_file() for path in (store / "unfinished").rglob("*")):
            raise FaultError(f"killed after {after:.2f} s, it leaves unfinished states behind")
        return "between trials" if trials and not unfinished else "in a trial" if unfinished else "before any was kept"


def _trial(file: Path) -> bytes:
    """A record without when and where it was made, and the digest of that."""
    body = json.loads(file.read_bytes())
    for name in ("recorded", "digest"):
        body.pop(name)
    return json.dumps(body, sort_keys=True).encode()


class Recording:
    """A loop of one's own that is recorded, under a clock that stands still."""

    kind = RECORDER

    def __init__(self, root: Path, steps: int) -> None:
        self.root, self.steps = root, steps
        root.mkdir()
        code, self.seconds = waited(self.start(root / "whole"))
        if code:
            raise FaultError(f"undisturbed, it ends with {code}: {said(root / 'whole')}")
        self.whole = self.found(root / "whole")

    def start(self, place: Path, name: str = "run") -> int:
        """Start the training, recorded into a folder of ``place``."""
        place.mkdir(exist_ok=True)
        return forked(lambda: train(place / name, self.steps), place)

    def found(self, place: Path, name: str = "run") -> list[str]:
        """The recorded steps, without the noise along directions, which are secret in each recording."""
        import numpy as np

        from dpspec.errors import DpspecError
        from dpspec.recording.folder.run_folder import RunFolder

        try:
            folder = RunFolder.open(place / name)
            records = [step for step in folder.steps() if not isinstance(step, dict)]
            steps = [dataclasses.replace(step, directions=np.zeros(0)) for step in records]
            return [repr(pair) for pair in zip(steps, folder.internal(), strict=False)]
        except (DpspecError, OSError):
            return []

    def try_kill(self, place: Path, after: float) -> str | None:
        """Kill a recording, read what is left, and record again; None where it had ended before."""
        if not killed(self.start(place), after):
            return None
        left = self.found(place)
        if left != self.whole[: len(left)]:
            raise FaultError(f"killed after {after:.2f} s, the recorded steps are not the first of the whole")
        code, _ = waited(self.start(place, "again"))
        if code or self.found(place, "again") != self.whole or len(self.whole) != self.steps:
            raise FaultError(f"killed after {after:.2f} s and recorded again, it has other steps (exit {code})")
        steps = len(left)
        return "with steps" if steps else "without a step"


def train(folder: Path, steps: int) -> None:
    """A small private loop, every step of which is told; nothing of it depends on the time."""
    import torch

    import dpspec

    time.monotonic = lambda: 1000.0
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"noise_multiplier": 2.0, "clip_norm": 0.5, "rate": 0.25, "records": 40}
    with dpspec.record(folder, model=model, optimizer=optimizer, **given) as run:
        for _ in range(steps):
            members = torch.nonzero(torch.rand(40) < 0.25).reshape(-1)
            run.sampled(members)
            run.clipped(torch.full((len(members),), 0.5))
            total, noise = 0.1 * len(members) * torch.ones(27), torch.randn(27)
            run.summed(total)
            run.noised(noise)
            for parameter, part in zip(model.parameters(), (total + noise).split([24, 3]), strict=True):
                parameter.grad = part.reshape(parameter.shape) / 10.0
            optimizer.step()
            run.stepped()


def said(place: Path) -> str:
    """The end of what a child wrote."""
    return (place / "output.txt").read_text(encoding="utf-8", errors="replace")[-400:]


def campaign(target: Run | Recording, times: int, chance: random.Random) -> tuple[dict[str, int], list[str]]:
    """Kill until so many kills have ended a run in its middle: what they met, and what was wrong."""
    met: dict[str, int] = {}
    wrong: list[str] = []
    late = 0
    while sum(met.values()) + len(wrong) < times and late < 3 * times:
        number = sum(met.values()) + len(wrong) + late
        place = target.root / f"killed-{number}"
        try:
            state = target.try_kill(place, chance.uniform(0.0, target.seconds))
        except FaultError as fault:
            wrong.append(str(fault))
            continue
        shutil.rmtree(place)
        if state is None:
            late += 1
        else:
            met[state] = met.get(state, 0) + 1
    if sum(met.values()) + len(wrong) < times:
        wrong.append(f"{late} runs had ended before they were killed")
    return met, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; ends with 1 where something is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, RECORDER], choices=[*KINDS, RECORDER])
    parser.add_argument("--times", type=int, default=30, help="kills in the middle of each")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of what is recorded")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    import_everything()
    gc.freeze()
    failed = False
    with tempfile.TemporaryDirectory(prefix="dpspec-kills-") as folder:
        for kind in asked.kinds:
            root = Path(folder) / kind
            target = Recording(root, asked.steps) if kind == RECORDER else Run(kind, root)
            met, wrong = campaign(target, asked.times, random.Random(f"{asked.seed} {kind}"))
            print(f"{kind}: {target.seconds:.1f} s undisturbed; killed {met}; {len(wrong)} wrong", flush=True)
            for what in wrong:
                print(f"  {what}", flush=True)
            failed = failed or bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
