"""What commands cost around the numbers: CPU seconds of whole processes. Run by hand:

    python tests/benchmarks/commands.py [--rounds N] [--audits N]

Every command is a process on one thread with compiled modules. Commands take turns, and the minimum over the rounds
counts. Machines differ and are noisy, so read the ratios: to ``python -c pass``, and to the import of scipy.special.
The quickstart has seed 7, nothing else is random. The many audits differ in their noise multiplier, 0.9 to 1.9; each
has two group sizes and claims and is its own spec, so that the page draws three figures for each.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]

SPEC = """\
dpspec: 1
name: noise-{number}
mechanism:
  kind: group
  noise_multiplier: {noise}
  clip_norm: 1.0
  sampling: {{scheme: poisson, rate: 0.01}}
  steps: 2000
data: {{kind: declared, records: 50000, features: 3072, classes: 10}}
threat_model: {{adjacency: add-remove, group_size: [1, 2]}}
claims:
  - {{id: one-record, kind: approx-dp, epsilon: 4.0, delta: 1e-6}}
  - {{id: pair, kind: approx-dp, epsilon: 9.0, delta: 1e-6, group_size: 2}}
"""


class Measured:
    """Processes in a folder, and the CPU seconds that they took."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}",
            "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
            "OMP_NUM_THREADS": "1",
            "DPSPEC_KEPT_BOUNDS": "off",
        }
        self.least: dict[str, float] = {}

    def python(self, name: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> None:
        """Run the interpreter, and keep the time under a name where it is the least."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in codes:
            sys.exit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.least[name] = min(seconds, self.least.get(name, seconds))

    def dpspec(self, name: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> None:
        self.python(name, "-m", "dpspec", *arguments, codes=codes)


def prepare(measured: Measured, audits: int) -> None:
    """Specs, a trained quickstart, and compiled modules: what the rounds begin with."""
    for name in ("bounds-only", "quickstart"):
        text = (ROOT / "specs" / f"{name}.yaml").read_text("utf-8")
        (measured.folder / f"{name}.yaml").write_text(text, "utf-8")
    many = measured.folder / "many"
    many.mkdir()
    for i in range(audits):
        text = SPEC.format(number=i, noise=f"{0.9 + i / audits:.4f}")
        (many / f"noise-{i:03}.yaml").write_text(text, "utf-8")
    measured.dpspec("", "run", "quickstart.yaml", "--store", "store", "--report", "json=quickstart.json")


def commands(measured: Measured) -> list[Callable[[], None]]:
    """The rows of the table, in their order."""
    bounds = ("run", "bounds-only.yaml", "--store", "store")
    quickstart = ("run", "quickstart.yaml", "--store", "store")
    return [
        lambda: measured.python("python -c pass", "-c", "pass"),
        lambda: measured.python("import scipy.special", "-c", "import scipy.special"),
        lambda: measured.dpspec("--version", "--version"),
        lambda: measured.dpspec("validate quickstart", "validate", "quickstart.yaml"),
        lambda: measured.dpspec("plan quickstart", "plan", "quickstart.yaml"),
        lambda: measured.dpspec("run bounds-only", *bounds),
        lambda: measured.dpspec("run quickstart, trials stored", *quickstart),
        lambda: measured.dpspec("... with a page", *quickstart, "--report", "html=quickstart.html"),
        lambda: measured.dpspec("verify of its result", "verify", "quickstart.json"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--audits", type=int, default=200, help="number of audits of one run and on one page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        side = Measured(Path(name))
        prepare(side, options.audits)
        rows = commands(side)
        for number in range(options.rounds):
            for run in rows:
                run()
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        side.least.pop("")
        side.dpspec(f"{options.audits} audits", "run", "many", "--report", "json=many.json", codes=(0, 1))
        side.least[f"{options.audits} audits, each"] = side.least[f"{options.audits} audits"] / options.audits
        page = f"{options.audits} audits as a page"
        side.dpspec(page, "report", "many.json", "--format", "html", "-o", "many.html")
        print(f"{'':<34}{'s':>8}{'/ pass':>8}{'/ scipy':>8}")
        for row, seconds in side.least.items():
            ratios = (seconds / side.least["python -c pass"], seconds / side.least["import scipy.special"])
            print(f"{row:<34}{seconds:>8.2f}{ratios[0]:>8.0f}{ratios[1]:>8.1f}", flush=True)
        print(f"the page of {options.audits} audits: {(side.folder / 'many.html').stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
