"""Parameters that make no sense are refused at their place, in a file as on the command line; no noise is a warning."""

from __future__ import annotations

import json
import re

import pytest

SPEC = """\
dpspec: 1
name: bad
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.01}
  steps: 10
data: {kind: declared, records: 100}
threat_model:
  group_size: [1, 4]
claims:
  - {id: one, kind: approx-dp, epsilon: 3.0, delta: 1e-6}
  - {id: four, kind: approx-dp, epsilon: 9.0, delta: 1e-6, group_size: 4}
"""

#: What is written for what, the line and column that are told, the code, and the message.
BAD = [
    ("rate: 0.01", "rate: 0", 7, 37, "out-of-range", "rate must be above 0, got 0"),
    ("noise_multiplier: 1.0", "noise_multiplier: 1e400", 5, 21, "bad-number", "1e400 is too large"),
    ("clip_norm: 1.0", "clip_norm: 1e-40", 6, 14, "out-of-range", "clip_norm must be at least 1e-30, got 1e-40"),
    ("[1, 4]", "[1, 0, 4]", 11, 19, "out-of-range", "group_size[1] must be at least 1, got 0"),
    ("[1, 4]", "[1, 4, 101]", 11, 15, "group-too-large", "a group of 101 records does not fit into 100"),
    ("records: 100", "records: 3", 11, 15, "group-too-large", "a group of 4 records does not fit into 3"),
    ("poisson, rate: 0.01", "fixed, batch_size: 97", 7, 41, "bad-value", "exceeds the 96 records"),
]


def case(item) -> str:
    return re.sub(r"[^\w.,-]+", "-", item[1])


@pytest.mark.parametrize("item", BAD, ids=case)
@pytest.mark.parametrize("command", ["validate", "run", "calibrate"])
def test_in_a_file(dpspec, tmp_path, command, item):
    old, new, line, column, code, message = item
    text = SPEC.replace(old, new, 1)
    assert text != SPEC
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    more = ["--vary", "claims.one.epsilon"] if command == "calibrate" else []
    ended = dpspec(command, path, *more)
    assert ended.code == 3
    told = ended.out if command == "validate" else ended.err
    assert f"{path}:{line}:{column}: error[{code}]: " in told
    assert message in told
    if command != "validate":
        assert ended.out == ""


@pytest.mark.parametrize("at", ["mechanism.noise_multiplier=0", "mechanism.noise_multiplier=0.0"])
def test_no_noise_is_a_warning_and_gives_an_infinite_epsilon(dpspec, tmp_path, at):
    path = tmp_path / "none.yaml"
    path.write_text(SPEC, encoding="utf-8")
    ended = dpspec("validate", path, "--set", at)
    assert ended.code == 0
    assert "--set:1:28: warning[no-noise]: without noise epsilon is infinite" in ended.out
    result = tmp_path / "none.json"
    ended = dpspec("run", path, "--set", at, "--report", f"json={result}")
    assert ended.code == 1
    assert "warning[no-noise]" in ended.err
    assert ended.out.count("OPEN ") == 2
    assert "no finite upper bound is proved" in " ".join(ended.out.split())
    (audit,) = json.loads(result.read_text(encoding="utf-8"))["audits"]
    assert {f["value"] for f in audit["findings"]} == {"inf"}
    assert dpspec("verify", result).code == 0


def test_training_without_noise_is_attacked_like_any_other(dpspec, tmp_path):
    from dpspec.registry.loader import load_catalog

    path = tmp_path / "none.yaml"
    path.write_text(load_catalog().mechanisms["group"].provider.example, encoding="utf-8")
    ended = dpspec("run", path, "--set", "mechanism.noise_multiplier=0", "--set", "mechanism.steps=5")
    assert ended.code == 1, ended.err
    assert "1 of 1 trials to train" in ended.err
    assert "PROVED" not in ended.out
    assert "NO DEVIATION FOUND" in ended.out
