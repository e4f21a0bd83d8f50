"""Audit the private trainings that libraries ship as examples, from checkouts that you point at.

    python tests/campaigns/official.py --checkout opacus=DIR --checkout dp-transformers=DIR [--only WORD] [--out FOLDER]

Nothing of the examples is part of this project. ``official_examples.py`` lists them with a commit, substitutions, and
stand-ins for downloads (``stand_ins/``). Each runs alone and under ``dpspec record``, and ``dpspec check`` judges its
recordings by the epsilon that it prints. A finding is another verdict than the listed one, or a missing caution.
docs/explanation/official-examples.md has the results.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from official_examples import EXAMPLES, PROJECTS, REFUSED, Example, with_faults

STAND_INS = Path(__file__).with_name("stand_ins")


@dataclass(frozen=True)
class Ended:
    """An ended process. seconds: of processors."""

    code: int
    text: str
    seconds: float


def run(command: Sequence[object], folder: Path, environment: Mapping[str, str]) -> Ended:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=dict(environment), capture_output=True, text=True, timeout=3000
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ended(done.returncode, done.stdout + done.stderr, seconds)


def prepare(example: Example, checkout: Path, folder: Path) -> Path:
    """Write the files of the script's folder at the commit, with the substitutions; return the script."""
    commit, source = PROJECTS[example.project].commit, Path(example.script)
    git, under = ["git", "-C", str(checkout)], [f"{source.parent}/", *example.modules]
    listed = [*git, "ls-tree", "-r", "--name-only", commit, *under]
    for name in subprocess.run(listed, capture_output=True, check=True, text=True).stdout.splitlines():
        shown = subprocess.run([*git, "show", f"{commit}:{name}"], capture_output=True, check=True)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(shown.stdout)
    script = folder / source
    text = script.read_text(encoding="utf-8")
    if source.suffix == ".ipynb":
        cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        lines = [line.rstrip("\n") for cell in cells for line in (*cell, "")]
        text, script = "\n".join(line for line in lines if line[:1] not in "%!" or not line), script.with_suffix(".py")
    for old, new, _ in example.substitutions:
        if old not in text:
            raise SystemExit(f"{example.script} has no {old!r} at {commit}")
        text = text.replace(old, new)
    script.write_text(text, encoding="utf-8")
    for name, content in example.files.items():
        path = script.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return script


def audit(name: str, example: Example, checkout: Path, folder: Path) -> bool:
    """Run, record and check an example; print its row of the table. Returns whether all is as expected.

    An example with a planted fault runs recorded only.
    """
    script = prepare(example, checkout, folder)
    path = [str(STAND_INS / name) for name in example.stand_ins]
    path += [str((folder / name).parent) for name in example.modules]
    path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    environment = {
        **os.environ,
        **example.environment,
        "PYTHONPATH": os.pathsep.join(path),
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
    }
    command = [*(example.entry or [script.name]), *example.arguments]
    alone = None if name not in EXAMPLES else run([sys.executable, *command], script.parent, environment)
    if example.records_itself:
        environment |= {"DPSPEC_RECORD": str(script.parent.parent / "recorded"), "DPSPEC_CLIENT": "1"}
        recorded = run([sys.executable, *command], script.parent, environment)
    else:
        options = ["--out", "../recorded", *(["--client"] if example.client else [])]
        recorded = run([sys.executable, "-m", "dpspec", "record", *options, *command], script.parent, environment)
    if alone is not None:
        (folder / "alone.txt").write_text(alone.text, encoding="utf-8")
    (folder / "recorded.txt").write_text(recorded.text, encoding="utf-8")
    printed = re.findall(example.printed, recorded.text)
    epsilon = example.epsilon or (float(printed[-1]) + 0.005 if printed else 0.0)  # the example rounds
    claim = ("--epsilon", repr(epsilon), "--delta", repr(example.delta), *example.check)
    as_expected = recorded.code == 0 and (alone is None or alone.code == 0)
    results = [
        judged(run_folder, claim, folder, environment)
        for run_folder in sorted((script.parent.parent / "recorded").glob("*"))
    ]
    if example.verdict == REFUSED:
        as_expected &= not results and re.search(example.words, " ".join(recorded.text.split())) is not None
    else:
        as_expected &= bool(results)
    for result in results:
        as_expected &= result.verdict == example.verdict
        as_expected &= example.verdict == "deviates" or set(result.rules) == set(example.rules)
        as_expected &= re.search(example.words, result.text) is not None
    print(
        f"{'ok   ' if as_expected else 'OTHER'} {name}: "
        f"{'' if alone is None else f'exit {alone.code} and {alone.seconds:.0f} s alone, '}"
        f"exit {recorded.code} and {recorded.seconds:.0f} s recorded; printed {printed[-1] if printed else '-'}; "
        f"{'; '.join(map(str, results)) or 'nothing is recorded'}",
        flush=True,
    )
    return as_expected


@dataclass(frozen=True)
class Judged:
    """What a check says. upper: the certified epsilon. rules: the cautions."""

    verdict: str
    upper: float | None
    rules: tuple[str, ...]
    ran: str
    text: str

    def __str__(self) -> str:
        certified = "-" if self.upper is None else f"{self.upper:.4g}"
        return f"{self.verdict}, certified {certified}, rules {', '.join(self.rules) or 'none'}; {self.ran}"


def judged(run_folder: Path, claim: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Judged:
    """The check of a recording; its output and result stay in ``folder``."""
    result = folder / f"result-{run_folder.name}.json"
    checked = run(
        [sys.executable, "-m", "dpspec", "check", run_folder, *claim, "-v", "--report", f"json={result}"],
        folder,
        environment,
    )
    (folder / f"check-{run_folder.name}.txt").write_text(checked.text, encoding="utf-8")
    (found,) = json.loads(result.read_text(encoding="utf-8"))["audits"]
    (verdict,) = found["verdicts"]
    deviates = found["conformance"]["status"] == "deviates"
    return Judged(
        verdict="deviates" if deviates else verdict["verdict"],
        upper=None if verdict["upper"] is None else float(verdict["upper"]),
        rules=tuple(rule["name"] for rule in found["recording"]["rules"]),
        ran=found["recording"]["ran"],
        text=" ".join(checked.text.split()),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", action="append", default=[], metavar="PROJECT=DIR", help="a clone of a project")
    parser.add_argument("--only", default="", help="only examples whose name contains this")
    parser.add_argument("--out", type=Path, help="keep all outputs in this folder")
    parser.add_argument("--faults", action="store_true", help="also examples with planted faults")
    given = parser.parse_args()
    checkouts = {name: Path(folder) for name, _, folder in (entry.partition("=") for entry in given.checkout)}
    out = given.out or Path(tempfile.mkdtemp(prefix="dpspec-official-"))
    as_expected = True
    examples = {**EXAMPLES, **(with_faults() if given.faults else {})}
    for name, example in examples.items():
        if given.only not in name or example.project not in checkouts:
            continue
        folder = out / re.sub(r"\W+", "-", name)
        folder.mkdir(parents=True)
        as_expected &= audit(name, example, checkouts[example.project].absolute(), folder.absolute())
    return not as_expected


if __name__ == "__main__":
    sys.exit(main())
