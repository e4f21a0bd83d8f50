"""Record and check leaking trainings: each is flagged, or the headline names the assumption that it breaks.

    python tests/campaigns/unprivate_recordings.py [WORDS]

Prints one line per script whose name contains WORDS: the exit code of ``dpspec check --epsilon 100`` (1 with a caution
too), the expectation, the violated or open channels, the assumptions of the proof. Exits with 1 if a leak is neither
flagged in the expected channel nor named.
"""

import collections
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from campaigns.leaks import SCRIPTS
from campaigns.trainings import Run, checked

from dpspec.errors import NothingToRunError


def judge(script: Run) -> tuple[int, set[str], tuple[str, ...]]:
    """Return the exit code, the violated or open channels as ``STATUS CHANNEL``, and the assumptions of the proof.

    ``refused recording`` means no recorded step, ``deviating run`` a deviation from the accountant alone.
    """
    try:
        found = checked(script)
    except NothingToRunError as error:
        return int(error.exit_code), {"refused recording"}, ()
    flagged = {f"{one.status} {one.name}" for one in found.channels if one.status in ("violated", "open")}
    if found.conformance.status == "deviates" and not flagged:
        flagged.add("deviating run")
    assumed = found.audit.recording.assumes if found.audit.recording is not None else ()
    return int(found.exit_code), flagged, tuple(assumed)


def main(words: str = "") -> int:
    torch.set_num_threads(1)
    missed, counts = [], collections.Counter[str]()
    for name, expected, where, script in SCRIPTS:
        if words not in name:
            continue
        code, flagged, assumed = judge(script)
        named = expected == "assumes" and not flagged and where in assumed
        caught = code != 0 and f"{expected} {where}" in flagged
        counts["named" if named else "caught" if caught else "missed"] += 1
        missed += [] if named or caught else [name]
        shown = ", ".join(sorted(flagged)) or f"assumes {', '.join(assumed)}"
        print(f"{code} {'ok    ' if named or caught else 'MISSED'} {name} [{expected} {where}]: {shown}", flush=True)
    print(f"{sum(counts.values())} scripts: {counts['caught']} caught, {counts['named']} named, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
