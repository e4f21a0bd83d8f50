"""What commands cost around the numbers: CPU seconds of whole processes. Run by hand:

    python tests/benchmarks/commands.py [--rounds N] [--audits N]

Every command is a process on one thread with compiled modules. Commands take turns, and the minimum over the rounds
counts. Machines differ and are noisy, so read the ratios: to ``python -c pass``, and to the import of scipy.special.
The quickstart has seed 7, nothing else is random. The many audits are a matrix over noise multipliers from 0.9 to 1.9,
each with two group sizes and claims.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

SPEC = """\
dpspec: 1
name: many
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.01}, steps: 2000}
data: {kind: declared, records: 50000, features: 3072, classes: 10}
threat_model: {adjacency: add-remove, group_size: [1, 2]}
claims:
  - {id: one-record, kind: approx-dp, epsilon: 4.0, delta: 1e-6}
  - {id: pair, kind: approx-dp, epsilon: 9.0, delta: 1e-6, group_size: 2}
"""

QUICKSTART = ("-m", "dpspec", "run", "quickstart.yaml", "--store", "store")

#: Arguments of the interpreter, by the row of the table.
ROWS = {
    "python -c pass": ("-c", "pass"),
    "import scipy.special": ("-c", "import scipy.special"),
    "--version": ("-m", "dpspec", "--version"),
    "validate quickstart": ("-m", "dpspec", "validate", "quickstart.yaml"),
    "plan quickstart": ("-m", "dpspec", "plan", "quickstart.yaml"),
    "run bounds-only": ("-m", "dpspec", "run", "bounds-only.yaml", "--store", "store"),
    "run quickstart, trials stored": QUICKSTART,
    "... with a page": (*QUICKSTART, "--report", "html=quickstart.html"),
    "verify of its result": ("-m", "dpspec", "verify", "quickstart.json"),
}


def seconds_of(folder: Path, arguments: tuple[str, ...]) -> float:
    """CPU seconds of the interpreter with some arguments."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}",
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
        "OMP_NUM_THREADS": "1",
        "DPSPEC_KEPT_BOUNDS": "off",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--audits", type=int, default=200, help="number of audits of one run and on one page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for spec in ("bounds-only", "quickstart"):
            (folder / f"{spec}.yaml").write_text((ROOT / "specs" / f"{spec}.yaml").read_text("utf-8"), "utf-8")
        noises = [round(0.9 + i / options.audits, 4) for i in range(options.audits)]
        (folder / "many.yaml").write_text(f"{SPEC}matrix: {{mechanism.noise_multiplier: {noises}}}\n", "utf-8")
        seconds_of(folder, (*QUICKSTART, "--report", "json=quickstart.json"))
        rounds = [{row: seconds_of(folder, given) for row, given in ROWS.items()} for _ in range(options.rounds)]
        least = {row: min(one[row] for one in rounds) for row in ROWS}
        many = f"{options.audits} audits"
        least[many] = seconds_of(folder, ("-m", "dpspec", "run", "many.yaml", "--report", "json=many.json"))
        report = ("-m", "dpspec", "report", "many.json", "--format", "html", "-o", "many.html")
        least[f"{many} as a page"] = seconds_of(folder, report)
        print(f"{'':<34}{'s':>8}{'/ pass':>8}{'/ scipy':>8}")
        for row, seconds in least.items():
            ratios = (seconds / least["python -c pass"], seconds / least["import scipy.special"])
            print(f"{row:<34}{seconds:>8.2f}{ratios[0]:>8.0f}{ratios[1]:>8.1f}")
        print(f"the page of {many}: {(folder / 'many.html').stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
