"""The pytest plugin runs in tests of a project in a temporary folder."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support import warm
from support.recordings import Recordings

ROOT = Path(__file__).parents[2]
PLUGIN = "dpspec.integrations.pytest_plugin"

SPEC = (ROOT / "specs" / "bounds-only.yaml").read_text(encoding="utf-8")

MARKED = """
import pytest

@pytest.mark.dpspec({arguments})
def test_claim():
    pass
"""


def outcome(folder: Path, test: str, *options: str) -> str:
    """The output of pytest on one test file, with the plugin by its module: an installation may be older."""
    (folder / "test_project.py").write_text(test, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n", encoding="utf-8")
    return warm.pytest("-p", "no:dpspec", "-p", PLUGIN, "-p", "no:cacheprovider", "-vv", *options, cwd=folder).stdout


@pytest.mark.ci
def test_each_claim_is_a_test_and_a_failing_one_prints_verdict_and_reason(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "a.yaml").write_text(SPEC, encoding="utf-8")
    weak = SPEC.replace("name: bounds-only", "name: weak").replace("epsilon: 3.0", "epsilon: 1.0")
    (tmp_path / "specs" / "b.yaml").write_text(weak, encoding="utf-8")
    printed = outcome(tmp_path, MARKED.format(arguments='"specs/*.yaml"'))
    assert "test_claim[bounds-only-one-record] PASSED" in printed
    assert "test_claim[weak-one-record] FAILED" in printed
    assert "weak, claim one-record: refuted: epsilon <= 1 at delta = 1e-6; at most 2.956 (certified); at" in printed
    assert "1 failed, 5 passed" in printed


@pytest.mark.ci
def test_options_of_the_marker_apply_to_the_specs(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC, encoding="utf-8")
    options = '"a.yaml", overrides=["mechanism.noise_multiplier=0.8"], train=False'
    printed = outcome(tmp_path, MARKED.format(arguments=options))
    assert "3 failed" in printed


def test_a_wrong_marker_is_an_error_of_collection(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC, encoding="utf-8")
    (tmp_path / "wrong.yaml").write_text("dpspec: 1\nnaem: x\n", encoding="utf-8")
    messages = {
        '"b.yaml"': "pytest.mark.dpspec: no spec matches 'b.yaml' in ",
        '"a.yaml", delta=1': "pytest.mark.dpspec: unknown option 'delta'; options: device, executor, ",
        "": "pytest.mark.dpspec: name spec files",
        '"wrong.yaml"': "wrong.yaml:2",
        '"a.yaml", overrides="x"': "--set needs PATH=VALUE",
    }
    for number, arguments in enumerate(messages):
        (tmp_path / f"test_wrong_{number}.py").write_text(MARKED.format(arguments=arguments), encoding="utf-8")
    printed = outcome(tmp_path, "")
    assert [message for message in messages.values() if message not in printed] == []
    assert "Traceback" not in printed
    assert "5 errors" in printed


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_recorded_training_passes_or_fails_with_its_report(recordings: Recordings, tmp_path: Path) -> None:
    recordings.copy("flat", tmp_path / "run")
    calls = "\n".join(
        f"def test_{name}(dpspec_check):\n    assert dpspec_check({run!r}, epsilon={epsilon}, delta=1e-5).proved\n"
        for name, run, epsilon in (("sound", "run", 100), ("weak", "run", 0.5), ("missing", "absent", 8))
    )
    printed = outcome(tmp_path, calls)
    assert "test_sound PASSED" in printed
    assert "REFUTED  epsilon <= 0.5 at delta = 1e-5" in printed
    assert "absent is not a folder; dpspec.record writes one" in printed
    assert "2 failed, 1 passed" in printed


def test_pytest_starts_without_the_libraries_of_dpspec() -> None:
    code = f"""
import pytest, sys
before = set(sys.modules)
import {PLUGIN}
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["dpspec", "dpspec.integrations", PLUGIN, "dpspec.lazy_names", "dpspec.version"])


def test_the_distribution_registers_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"dpspec": PLUGIN}


@pytest.mark.ci
def test_a_spec_may_use_the_plugins_of_its_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dpspec]\nplugins = ["parts.py"]\n')
    part = '@dpspec.model("own-net")\ndef net(facts): return torch.nn.Linear(facts.features, facts.classes)\n'
    (tmp_path / "parts.py").write_text(f"import dpspec\nimport torch\n\n\n{part}")
    (tmp_path / "a.yaml").write_text(f"{SPEC}\nmodel: {{kind: own-net}}\n", encoding="utf-8")
    test = MARKED.format(arguments='"a.yaml", train=False')
    assert "PASSED" in outcome(tmp_path, test)
    (tmp_path / "parts.py").write_text("1 / 0\n")
    assert "parts.py:1: ZeroDivisionError: division by zero (plugin named by pyproject.toml)" in outcome(tmp_path, test)
