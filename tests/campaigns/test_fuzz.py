"""A few cases of the fuzz campaign, chosen by hypothesis; by hand: ``python tests/campaigns/fuzz.py``."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.forger.leaves import put
from support.fuzzing import TARGETS
from support.fuzzing.results import Results

SCRIPT = Path(__file__).parent / "fuzz.py"


@pytest.fixture(scope="module", params=sorted(TARGETS))
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = TARGETS[request.param]()
    made.warm(tmp_path_factory.mktemp("warm"))
    return made


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(chance=st.randoms(use_true_random=False))
def test_only_our_own_errors(target: Any, chance: random.Random, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("case")
    assert isinstance(target.feed(target.case(chance), folder), str)
    shutil.rmtree(folder)


WATCHED = """
import json, os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from support.fuzzing.watch import Watch
here = Path({here!r})
watch = Watch(here)
def spin():
    while True: sum(range(1000))
cases = {{
    "inside": lambda: (here / "a").write_text("x"),
    "outside": lambda: (here.parent / "owned").write_text("x"),
    "code": lambda: exec(compile("1", "/tmp/foreign.py", "exec")),
    "process": lambda: os.system("true"),
    "slow": spin,
    "memory": lambda: bytearray(1200 << 20).find(b"x"),
}}
found = {{}}
for name, case in cases.items():
    with watch.case() as seen:
        try:
            case()
        except BaseException:
            pass
    found[name] = [what.partition(":")[0] for what in seen]
print(json.dumps(found))
"""


@pytest.mark.ci
def test_the_watch_reports_forbidden_actions(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    script = WATCHED.format(tests=str(SCRIPT.parents[1]), here=str(here))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    found = {name: set(seen) for name, seen in json.loads(done.stdout).items()}
    assert found.pop("memory") >= {"memory"}  # on a busy machine it is slow too
    expected = {"outside": {"open"}, "code": {"exec"}, "process": {"os.system"}, "slow": {"slow"}, "inside": set()}
    assert found == expected


def test_the_campaign_prints_counts(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--target", "idx", "--count", "40", "--seed", "5"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("40 cases, seed 5, 0 findings")
    assert list(tmp_path.iterdir()) == []


#: Leaves and values on which reports of version 0.1.0 failed.
CLAIM, AUDIT = ("audits", 0, "document", "claims", 0), ("audits", 0)
LEAVES: list[tuple[tuple[str | int, ...], Any]] = [
    *(((*CLAIM, "group_size"), value) for value in (None, "x", {"x": 1})),
    *(((*CLAIM, "epsilon"), value) for value in ({"x": 1}, "\ud800", None)),
    ((*AUDIT, "document", "threat_model", "group_size"), 3),
    ((*AUDIT, "document", "threat_model"), None),
    ((*AUDIT, "series", 0, "plot", "y"), None),
    ((*AUDIT, "places"), {"": {"file": 3, "line": 1, "column": 1}}),
    (("created",), "\ud800"),
    ((*AUDIT, "digest"), "\ud800"),
    ((*AUDIT, "digest"), "\x1b[2J\x07\u202e"),
    ((*AUDIT, "verdicts", 0, "text"), "1" * 100_000),
    ((*AUDIT, "name"), "\x1b[2J ##vso[task.x]y"),
]


@pytest.mark.ci
def test_leaves_that_reports_failed_at(tmp_path: Path) -> None:
    results = Results()
    results.warm(tmp_path)
    for path, value in LEAVES:
        text = json.dumps(put(results.trees[2], path, value)).encode()
        for choice in range(len(results.reporters)):
            assert results.feed((text, choice), tmp_path) in ("refused", "shown", "verified")
