"""Interrupt audits and recordings, and run them again.

    python tests/campaigns/faults.py [FAULT ...] [--times 10] [--seed 1]

After a fault the same command runs again. It must train only the missing trials, print no traceback, and reproduce the
result and the stored trials of an undisturbed run, byte for byte except for times and paths. Kills come after a random
amount of processor time, which does not depend on the load of the machine. Only kills within a run count.

A killed recording cannot resume. Under a fixed clock its folder must be a prefix of the undisturbed recording, and a
second recording must have the same bytes.

Runs are forks of this process after its imports: needs Linux, and OMP_NUM_THREADS=1 to spread the kills evenly. Root
mounts a full disk; other users get a limit on file sizes.
"""

import argparse
import contextlib
import gc
import json
import os
import random
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.forger.specs import spec_of
from support.plain_loop import plain_loop
from support.record_files import record_files, unbundle
from support.warm import import_everything

from dpspec.engine.storage.bundle_file import read_bundle
from dpspec.stores import BUNDLE, RECORD

#: Overrides that make the small specs train for a second or two.
LONGER: dict[str, tuple[str, ...]] = {
    "group": ("mechanism.steps=40", "audit.runs=4"),
    "modelmix": ("mechanism.steps=40", "audit.runs=4"),
    "per-instance": ("mechanism.steps=12", "audit.runs=4"),
    "preprocessing": ("audit.runs=8", "audit.repeats=100"),
    "rero": ("mechanism.steps=40", "audit.runs=40", "audit.shard_runs=10"),
}

RECORDER = "recorder"

#: A shell shows both as 130. The second is an end before dpspec handles the signal.
INTERRUPTED = (130, -signal.SIGINT)

#: A local cluster needs no token.
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class FaultError(Exception):
    """The outcome differs from that of an undisturbed run."""


class NotTriedError(Exception):
    """The reason why a fault cannot be tried on this machine."""


def forked(body: Callable[[], object], place: Path) -> int:
    """Fork ``body`` into a new process group in ``place``, log to ``output.txt``, and return the process id."""
    place.mkdir(exist_ok=True)
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(place)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
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


def hurt(pid: int, how: signal.Signals) -> None:
    """Send a signal to a child and its group, unless they have ended."""
    for send in (os.killpg, os.kill):  # a new child is still in our group
        with contextlib.suppress(ProcessLookupError):
            send(pid, how)


def waited(pid: int) -> tuple[int, float]:
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def killed(pid: int, after: float) -> bool:
    """Kill a child and its group after some processor time; return False if it ended before."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        with contextlib.suppress(OSError):
            if time.clock_gettime((~pid << 3) | 2) >= after:  # the processor time of another process
                hurt(pid, signal.SIGKILL)
                after = float("inf")
        time.sleep(0.001)


def said(place: Path) -> str:
    return (place / "output.txt").read_text(encoding="utf-8", errors="replace")


def outcome(path: Path) -> str:
    result = json.loads(path.read_text(encoding="utf-8"))
    for audit in result["audits"]:
        audit.pop("seconds")
        audit.pop("stored_trials")
        for trial in audit["trials"]:
            trial.pop("recorded")
    return json.dumps([result["audits"], result["confidence"], result["notes"]], sort_keys=True)


class Run:
    def __init__(self, kind: str, root: Path) -> None:
        self.kind, self.root = kind, root
        root.mkdir()
        (root / "audit.yaml").write_text(spec_of(kind, trained=True), encoding="utf-8")
        code, self.seconds = waited(self.start(root / "whole"))
        if code not in (0, 1):
            raise FaultError(f"undisturbed, it ends with {code}: {said(root / 'whole')[-400:]}")
        self.code, self.whole, self.trials = code, self.found(root / "whole"), len(self.stored(root / "whole"))

    def start(self, place: Path, *options: str, fresh: bool = False, before: Callable[[], object] = int) -> int:
        """Start the run in a folder, if ``fresh`` in a new interpreter, after a call of ``before``."""
        changes = [part for change in LONGER[self.kind] for part in ("--set", change)]
        arguments = ["run", str(self.root / "audit.yaml"), *changes, "--store", "store", "--report", "json=result.json"]

        def body() -> None:
            before()
            sys.argv = ["dpspec", *arguments, *options]
            if fresh:
                os.execv(sys.executable, [sys.executable, "-m", *sys.argv])
            runpy.run_module("dpspec", run_name="__main__", alter_sys=True)

        return forked(body, place)

    def stored(self, place: Path) -> set[str]:
        """The keys of the stored trials."""
        return {key for key, name in record_files(place / "store") if name == RECORD}

    def found(self, place: Path) -> tuple[str, dict[str, bytes]]:
        """Return the result, and the stored trials without ``recorded`` and the digest."""
        kept = {}
        for (key, name), content in record_files(place / "store").items():
            kept[f"{key}/{name}"] = content
            if name == RECORD:
                body = {k: v for k, v in json.loads(content).items() if k not in ("recorded", "digest")}
                kept[f"{key}/{name}"] = json.dumps(body, sort_keys=True).encode()
        return outcome(place / "result.json"), kept

    def settle(self, place: Path, what: str, missing: int | None = None) -> None:
        missing = self.trials - len(self.stored(place)) if missing is None else missing
        code, _ = waited(self.start(place))
        trained = sum(int(n) for n in re.findall(r": (\d+) of \d+ trials to train", said(place)))
        if code != self.code:
            raise FaultError(f"{what}: run again, it ends with {code}: {said(place)[-400:]}")
        if trained != missing:
            raise FaultError(f"{what}: run again, it makes {trained} trials, {missing} were missing")
        if self.found(place) != self.whole:
            raise FaultError(f"{what}: run again, its result or its trials differ")
        if any(path.is_file() for path in (place / "store" / "unfinished").rglob("*")):
            raise FaultError(f"{what}: run again, it leaves unfinished states behind")

    def ended(self, place: Path, pid: int, what: str, *codes: int) -> str:
        code, _ = waited(pid)
        text = said(place)
        if code not in codes or any(bad in text for bad in ("Traceback", "bug in dpspec", "Exception ignored")):
            raise FaultError(f"{what}: exit {code}, expected {codes}: {text[-500:]}")
        errors = [line for line in text.splitlines() if line.startswith("error") or "Interrupted" in line]
        return f"exit {code}, {' '.join(errors[-1:])[:60]}"

    def kill(self, place: Path, chance: random.Random) -> str | None:
        """Kill a run and return the state that it resumes from; None if it had ended before."""
        after = chance.uniform(0.0, self.seconds)
        if not killed(self.start(place), after):
            return None
        trials, unfinished = self.stored(place), (place / "store" / "unfinished").rglob("*")
        state = "in a trial" if any(map(Path.is_file, unfinished)) else "between trials" if trials else "at the start"
        self.settle(place, f"killed after {after:.2f} s")
        return state


class Recording:
    """The recording of a script's training loop, under a fixed clock."""

    def __init__(self, kind: str, root: Path, steps: int) -> None:
        self.kind, self.root, self.steps = kind, root, steps
        root.mkdir()
        code, self.seconds = waited(self.start(root / "whole"))
        self.whole = self.found(root / "whole")
        if code or len(self.whole) != steps:
            raise FaultError(f"undisturbed, it ends with {code}: {said(root / 'whole')[-400:]}")

    def start(self, place: Path, name: str = "run") -> int:
        def body() -> None:
            time.monotonic = lambda: 1000.0
            plain_loop(place / name, self.steps)

        return forked(body, place)

    def found(self, place: Path, name: str = "run") -> list[str]:
        """Return the recorded steps, without the noise along the secret directions of each recording."""
        import numpy as np

        from dpspec.errors import DpspecError
        from dpspec_recording.folder.events import PublicStep
        from dpspec_recording.folder.reader import RunFolder
        from dpspec_recording.observers.all import OBSERVERS

        try:
            folder = RunFolder.open(place / name, OBSERVERS)
            records = [step for step in folder.steps() if isinstance(step, PublicStep)]
            import msgspec

            steps = [msgspec.structs.replace(step, directions=np.zeros(0)) for step in records]
            return [repr(pair) for pair in zip(steps, folder.internal(), strict=False)]
        except (DpspecError, OSError):
            return []

    def kill(self, place: Path, chance: random.Random) -> str | None:
        """Kill a recording, read the rest, and record again; None if it had ended before."""
        after = chance.uniform(0.0, self.seconds)
        if not killed(self.start(place), after):
            return None
        left = self.found(place)
        if left != self.whole[: len(left)]:
            raise FaultError(f"killed after {after:.2f} s, the recorded steps are not the first of the whole")
        code, _ = waited(self.start(place, "again"))
        if code or self.found(place, "again") != self.whole:
            raise FaultError(f"killed after {after:.2f} s and recorded again, it has other steps (exit {code})")
        return "with steps" if left else "without a step"


def ctrl_c_twice(run: Run, place: Path, chance: random.Random) -> str:
    """Send SIGINT to a new interpreter at a random moment, and again within 0.3 s."""
    pid = run.start(place, fresh=True)
    time.sleep(chance.uniform(0.3, 4.0 + run.seconds))
    hurt(pid, signal.SIGINT)
    time.sleep(chance.uniform(0.0, 0.3))
    hurt(pid, signal.SIGINT)
    ended = run.ended(place, pid, "Ctrl-C twice", run.code, *INTERRUPTED)
    run.settle(place, "Ctrl-C twice")
    return ended


def terminated(*options: str) -> "Fault":
    """Return a fault that sends SIGTERM to all processes of a run with ``options`` at a random moment."""

    def terminate(run: Run, place: Path, chance: random.Random) -> str:
        pid = run.start(place, *options)
        time.sleep(chance.uniform(0.0, (3.0 if options else 1.0) * run.seconds))
        try:
            os.killpg(pid, signal.SIGTERM)
        except ProcessLookupError:
            os.kill(pid, signal.SIGTERM)
        ended = run.ended(place, pid, "SIGTERM", run.code, 6, 143, -signal.SIGTERM).partition(",")[0]
        states = any(path.is_file() for path in (place / "store" / "unfinished").rglob("*"))
        run.settle(place, "SIGTERM")
        resumed = "resumed at step" in said(place)
        if resumed != states:
            raise FaultError(f"SIGTERM: {states} states saved, and a trial resumed: {resumed}")
        return f"{ended}{', resumed' if resumed else ''}"

    return terminate


def disk_full(run: Run, place: Path, chance: random.Random) -> str:
    """Run out of disk space in a trial, and run again with enough space."""
    store = place / "store"
    store.mkdir(parents=True)
    size = sum(path.stat().st_size for path in (run.root / "whole" / "store").rglob("*") if path.is_file())
    with mounted(store, f"size={max(16, size * 3 // 5 // 1024)}k") as mount:
        limit = size // run.trials // 2
        before = int if mount else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        ended = run.ended(place, run.start(place, fresh=not mount, before=before), "disk full", 2)
        if mount:
            mount("size=64m")
        run.settle(place, "disk full")
    return ended


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[Callable[[str], None] | None]:
    """Mount a disk at ``place`` and yield a function that changes its options; None if the user may not mount."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    try:
        yield lambda changed: subprocess.run(["mount", "-o", f"remount,{changed}", place], check=True) and None
    finally:
        subprocess.run(["umount", place], check=False)


def damaged_store(run: Run, place: Path, chance: random.Random) -> str:
    """Truncate, empty or delete a bundle or a file of one stored trial, or flip one of its bits."""
    shutil.copytree(run.root / "whole", place)
    if chance.random() < 0.5:
        unbundle(place / "store")
    file = chance.choice([path for path in sorted((place / "store" / "trials").rglob("*")) if path.is_file()])
    content, at = bytearray(file.read_bytes()), chance.randrange(file.stat().st_size)
    how = chance.choice(("truncated", "empty", "deleted", "changed in one bit"))
    missing = 1
    if file.suffix == BUNDLE:
        lost = range(at, len(content)) if how == "truncated" else range(at, at + 1)
        parts = {key: [*files.values()] for key, files in read_bundle(file).records.items()}
        head = min(start for places in parts.values() for start, _ in places)
        hit = [any(start < lost.stop and lost.start < start + size for start, size in p) for p in parts.values()]
        missing = sum(hit) if at >= head and how not in ("empty", "deleted") else len(parts)
    if how == "deleted":
        file.unlink()
    else:
        content[at] ^= 1 << chance.randrange(8)
        file.write_bytes({"truncated": content[:at], "empty": b"", "changed in one bit": content}[how])
    run.settle(place, f"{file.name} is {how}", missing=missing)
    return how


def ray_head_killed(run: Run, place: Path, chance: random.Random) -> str:
    """Kill every process of the head of a Ray cluster with two CPUs."""
    ray = Path(sys.executable).with_name("ray")
    if not ray.is_file():
        raise NotTriedError("Ray is not installed")
    folder, port = tempfile.mkdtemp(prefix="ray-"), 20000 + os.getpid() % 20000
    start = [str(ray), "start", "--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    started = subprocess.run(
        [*start, f"--temp-dir={folder}"], env={**os.environ, **RAY}, capture_output=True, text=True
    )
    if started.returncode:
        raise NotTriedError(f"no Ray cluster starts here: {started.stderr.strip().splitlines()[-1]}")

    def kill_head() -> int:
        listed = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True).stdout
        heads = [int(line.split()[0]) for line in listed.splitlines() if folder in line]
        for number in heads:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return len(heads)

    try:
        options = ("--executor", "ray", "--ray-address", f"127.0.0.1:{port}")
        pid = run.start(place, *options, fresh=True, before=lambda: os.environ.update(RAY))
        deadline = time.monotonic() + 120.0
        while not run.stored(place) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not kill_head():
            raise FaultError("the cluster has no head process")
        ended = run.ended(place, pid, "Ray's head killed", run.code, 6)
    finally:
        kill_head()
        shutil.rmtree(folder, ignore_errors=True)
    run.settle(place, "Ray's head killed")
    return ended


Fault = Callable[[Any, Path, random.Random], str | None]

#: Each fault, its targets, and whether it is repeated at several random moments.
FAULTS: dict[str, tuple[Fault, tuple[str, ...], bool]] = {
    "kill": (lambda target, place, chance: target.kill(place, chance), (*LONGER, RECORDER), True),
    "ctrl-c": (ctrl_c_twice, ("group",), True),
    "sigterm": (terminated(), ("group", "modelmix"), True),
    "sigterm-workers": (terminated("--workers", "2"), ("group",), True),
    "full": (disk_full, ("group",), False),
    "damaged": (damaged_store, tuple(LONGER), True),
    "ray-head": (ray_head_killed, ("group",), False),
}


def campaign(
    fault: Fault, target: Run | Recording, times: int, chance: random.Random
) -> tuple[Counter[str], list[str]]:
    met: Counter[str] = Counter()
    wrong: list[str] = []
    late = 0
    while met.total() + len(wrong) < times:
        place = target.root / f"hurt-{met.total() + len(wrong) + late}"
        try:
            state = fault(target, place, chance)
        except FaultError as error:
            wrong.append(str(error))
            continue
        shutil.rmtree(place)
        met.update([state] if state is not None else [])
        late += state is None
        if late >= 3 * times:
            wrong.append(f"{late} runs had ended before they were hit")
            break
    return met, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"some of: {', '.join(FAULTS)}; all otherwise")
    parser.add_argument("--kinds", nargs="*", default=[*LONGER, RECORDER], choices=[*LONGER, RECORDER])
    parser.add_argument("--times", type=int, default=10, help="the number of interrupted runs per fault")
    parser.add_argument("--steps", type=int, default=3000, help="steps of the recording")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"no fault is called {', '.join(sorted(unknown))}")
    import_everything()
    gc.freeze()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="dpspec-faults-") as folder:
        targets: dict[str, Run | Recording] = {}
        for name in options.faults or FAULTS:
            fault, kinds, repeated = FAULTS[name]
            for kind in [kind for kind in options.kinds if kind in kinds]:
                if kind not in targets:
                    root = Path(folder) / kind
                    targets[kind] = Recording(kind, root, options.steps) if kind == RECORDER else Run(kind, root)
                chance = random.Random(f"{options.seed} {name} {kind}")
                try:
                    met, wrong = campaign(fault, targets[kind], options.times if repeated else 1, chance)
                except NotTriedError as reason:
                    print(f"{name}, {kind}: not tried: {reason}", flush=True)
                    continue
                print(f"{name}, {kind}: {dict(met)}; {len(wrong)} wrong", flush=True)
                for what in wrong:
                    print(f"  {what}", flush=True)
                failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
