"""Installs plugins that misbehave, and looks at what becomes of the commands: ``python tests/campaigns/misdeeds.py``.

What each demands: a command that comes across the plugin names it and does not call it a bug of dpspec, ends within
seconds, and writes nothing to the terminal that a terminal obeys. Commands without need of it go on; where importing it
ends or stops the process, it is named, and ``--without-plugin`` leads out. A report on stdout holds nothing of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import warm
from support.misdeeds import honest
from support.misdeeds.calls import Misdeed
from support.misdeeds.deeds import misdeeds

#: Seconds after which a command hangs; many, as the machine may be busy.
PATIENCE = 300.0

#: Seconds after which one that never ends is interrupted, as a person would.
WATCHED = 8.0

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]|##vso\[|##teamcity\[|(?m:^\s*::)")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class Bench:
    """A folder with the plugin installed and the specs to try it with."""

    def __init__(self, root: Path, misdeed: Misdeed | None) -> None:
        self.place = root
        site = root / "site"
        info = site / "misdeed-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: misdeed\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text("[dpspec]\nmisdeed = misdeed_plugin\n", encoding="utf-8")
        texts = {"plugin": honest.PLUGIN, "code": honest.CODE}
        if misdeed is not None:
            texts[misdeed.module] += f"\n{misdeed.text}\n"
        for name, text in texts.items():
            (site / f"misdeed_{name}.py").write_text(text, encoding="utf-8")
        for name in ("coin", "trained", "canaries", "steps", "ordinary"):
            (root / f"{name}.yaml").write_text(getattr(honest, name.upper()), encoding="utf-8")
        path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(root), "OMP_NUM_THREADS": "1"}

    def command(self, *arguments: str, interrupted_after: float | None = None) -> Ended:
        """Run dpspec in a fork of a warm interpreter; with seconds, in a fresh one, and Ctrl-C after them."""
        parts = [part.format(place=self.place) for part in arguments]
        if interrupted_after is None:
            try:
                done = warm.dpspec_bytes(*parts, cwd=self.place, env=self._env, timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                return Ended(-signal.SIGKILL, "", "")
            return _ended(done.returncode, done.stdout, done.stderr)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dpspec", *parts],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=self._env, cwd=self.place,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=interrupted_after)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        return _ended(process.returncode, out, err)


def _ended(code: int, *written: bytes) -> Ended:
    return Ended(code, *(text.decode("utf-8", "surrogateescape") for text in written))


def tried(misdeed: Misdeed, result: str, root: Path) -> Iterator[str]:
    """What is wrong with how dpspec takes a misdeed; nothing where all is well."""
    bench = Bench(root, misdeed)
    (root / "result.json").write_text(result, encoding="utf-8")
    ended = bench.command(*misdeed.command, interrupted_after=WATCHED if misdeed.ends else None)
    told = ended.out + ended.err
    if found := _OBEYED.search(told):
        yield f"{found[0]!r} reaches the terminal: {told[max(0, found.start() - 60) : found.end() + 20]!r}"
    if "bug in dpspec" in told or ("Traceback" in told and not misdeed.ends):
        yield f"called a bug of dpspec: {told.strip()[:300]!r}"
    if ended.code in (70, -9):
        yield f"ends with {ended.code}: {told.strip()[-300:]!r}"
    named = "misdeed" in told or "code of a plugin" in told
    if not misdeed.harmless and not named:
        yield f"not named: {ended.code} {told.strip()[:300]!r}"
    if not misdeed.harmless and ended.code == 0 and misdeed.module == "code":
        yield f"ends with 0: {told.strip()[:200]!r}"
    if misdeed.ends:
        if "--without-plugin" not in told and ended.code != -11 and ended.code != -6:
            yield f"the way out is not said: {ended.code} {told.strip()[:300]!r}"
        others = bench.command("--without-plugin", "misdeed", "validate", "{place}/ordinary.yaml")
    else:
        others = bench.command("validate", "{place}/ordinary.yaml")
    if others.code != 0:
        yield f"another command ends with {others.code}: {others.err.strip()[:300]!r}"
    if misdeed.harmless and misdeed.module == "plugin":
        shown = bench.command("report", "{place}/result.json", "--format", "json")
        try:
            json.loads(shown.out)
        except ValueError:
            yield f"stdout is no report: {shown.code} {shown.out[:80]!r} {shown.err[-200:]!r}"


def campaign(chosen: Sequence[Misdeed], jobs: int = 2) -> Iterator[tuple[Misdeed, list[str]]]:
    """Try all of them, some at once; each with what is wrong."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is started in the background ignores it
    with tempfile.TemporaryDirectory(prefix="dpspec-misdeeds-") as folder:
        bench = Bench(Path(folder) / "honest", None)
        made = bench.command("run", "{place}/ordinary.yaml", "--report", "json={place}/result.json")
        if made.code != 0:
            raise SystemExit(f"an honest plugin is in the way:\n{made.err}")
        for name in ("coin", "trained", "canaries", "steps"):
            ended = bench.command("run", f"{{place}}/{name}.yaml", "--store", "{place}/store", "--executor", "misdeed")
            if ended.code not in (0, 1) or "bug" in ended.err:
                raise SystemExit(f"an honest plugin does not work:\n{ended.err}")
        result = (bench.place / "result.json").read_text(encoding="utf-8")

        def one(item: tuple[int, Misdeed]) -> tuple[Misdeed, list[str]]:
            return item[1], list(tried(item[1], result, Path(folder) / str(item[0])))

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(one, enumerate(chosen))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those whose name holds this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="only one in so many")
    asked = parser.parse_args()
    chosen = [misdeed for misdeed in misdeeds() if asked.only in misdeed.name][:: asked.every]
    bad = 0
    began = time.monotonic()
    for misdeed, wrong in campaign(chosen, asked.jobs):
        bad += bool(wrong)
        for what in wrong:
            print(f"{misdeed.name}: {what}", flush=True)
    print(f"{len(chosen)} misdeeds, {bad} taken badly, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
