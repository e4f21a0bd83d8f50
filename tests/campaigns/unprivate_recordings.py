"""Trainings that leak, each recorded and checked: each is flagged, or the headline names the assumption that it breaks.

    python tests/campaigns/unprivate_recordings.py [--only WORDS]

One line per script: the exit code of ``dpspec check --epsilon 100``, the expectation, the channels that are violated or
open, the assumptions of the proof. Exits with 1 if a leak is neither flagged in the expected channel nor named.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from leaks import SCRIPTS
from support.checked_runs import Question, check_run
from trainings import Run

from dpspec.errors import NothingToRunError


def judge(script: Run) -> tuple[int, set[str], tuple[str, ...]]:
    """The exit code, the channels as ``STATUS CHANNEL`` that are violated or open, and the assumptions of the proof.

    A recording that ended before its first step is ``refused recording``.
    """
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(scratch) / "run"
        script(folder)
        try:
            found = check_run(folder, Question(delta=1e-5, epsilon=100.0))
        except NothingToRunError as error:
            return int(error.exit_code), {"refused recording"}, ()
        flagged = {f"{one.status} {one.name}" for one in found.channels if one.status in ("violated", "open")}
        assumed = found.audit.recording.assumes if found.audit.recording is not None else ()
        return int(found.exit_code), flagged, tuple(assumed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="words that the name of a script contains")
    chosen = parser.parse_args().only
    torch.set_num_threads(1)
    missed, counts = [], collections.Counter[str]()
    for name, expected, where, script in SCRIPTS:
        if chosen not in name:
            continue
        code, flagged, assumed = judge(script)
        named = expected == "assumes" and code == 0 and where in assumed
        caught = code != 0 and f"{expected} {where}" in flagged
        counts["named" if named else "caught" if caught else "missed"] += 1
        missed += [] if named or caught else [name]
        words = ", ".join(sorted(flagged)) or f"assumes {', '.join(assumed)}"
        print(f"{code} {'ok    ' if named or caught else 'MISSED'} {name} [{expected} {where}]: {words}", flush=True)
    print(f"{sum(counts.values())} scripts: {counts['caught']} caught, {counts['named']} named, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
