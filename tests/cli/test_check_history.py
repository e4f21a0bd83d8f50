"""``dpspec check --history``: exit codes, the headline, and options that do not apply."""

import json
from pathlib import Path

import pytest

STATE = {"history": [[1.1, 0.01, 1000]], "mechanism": "rdp"}


@pytest.mark.family
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--epsilon", 1.6), 0, "PROVED        claim: epsilon <= 1.6 at delta = 1e-5; at most"),
        (("--epsilon", 1.5), 1, "Certified: epsilon >= 1.515, above the claimed 1.5"),
        (("--delta", 1e-6), 5, "Nothing is claimed: epsilon <= 1.754 at delta 1e-6"),
    ],
)
def test_the_verdict_of_a_declared_history(dpspec, tmp_path: Path, arguments, code: int, text: str) -> None:
    (tmp_path / "opacus.json").write_text(json.dumps(STATE), encoding="utf-8")
    done = dpspec("check", "--history", "opacus.json", *arguments)
    assert (done.code, done.err) == (code, "")
    lines = done.out.splitlines()
    assert lines[0] == "Declared, not observed: 1,000 releases in a history of Opacus' accountant rdp."
    assert max(map(len, lines)) <= 80
    assert text in done.out
    assert "above the certified interval" in " ".join(done.out.split())


@pytest.mark.family
@pytest.mark.parametrize(
    ("arguments", "code"), [((), 5), (("--epsilon", 1.6), 0), (("--epsilon", 1.5), 1), (("--group-size", 2), 5)]
)
def test_every_report_has_the_exit_code_of_the_command(dpspec, tmp_path: Path, arguments, code: int) -> None:
    (tmp_path / "opacus.json").write_text(json.dumps(STATE), encoding="utf-8")
    reports = [word for name in ("json", "sarif", "csv") for word in ("--report", f"{name}=result.{name}")]
    assert dpspec("check", "--history", "opacus.json", *arguments, *reports).code == code
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["exit_code"], result["passed"]) == (code, code == 0)
    sarif = json.loads((tmp_path / "result.sarif").read_text(encoding="utf-8"))
    assert sarif["runs"][0]["invocations"][0]["exitCode"] == code
    rows = (tmp_path / "result.csv").read_text(encoding="utf-8").splitlines()
    assert {row.rpartition(",")[2] for row in rows[1:]} <= {str(code)}  # without a claim there is no row
    assert dpspec("verify", "result.json").code == 0


@pytest.mark.parametrize(("epsilon", "code", "says"), [(1.6, 0, "1 audit, 1 claim: all"), (1.5, 1, "FAILED 1 of 1")])
def test_quiet_prints_one_line(dpspec, tmp_path: Path, epsilon: float, code: int, says: str) -> None:
    (tmp_path / "opacus.json").write_text(json.dumps(STATE), encoding="utf-8")
    done = dpspec("check", "--history", "opacus.json", "--epsilon", epsilon, "-q")
    assert (done.code, done.err, len(done.out.splitlines())) == (code, "", 1)
    assert done.out.startswith(says)
    assert dpspec("check", "--history", "opacus.json", "-q", "-v").code == 2


def test_the_result_is_verified(dpspec, tmp_path: Path) -> None:
    (tmp_path / "opacus.json").write_text(json.dumps(STATE), encoding="utf-8")
    done = dpspec("check", "--history", "opacus.json", "--epsilon", 1.6, "--report", "json=result.json")
    assert done.code == 0
    assert dpspec("verify", "result.json").code == 0
    assert "Declared, not observed" in (tmp_path / "result.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "error: RUN is missing: give the folder that dpspec.record wrote, or --history FILE"),
        (("run", "--history", "a.json"), 2, "error: RUN does not apply to --history"),
        (("--history", "a.json", "--assume", "one-record"), 2, "error: --assume does not apply to --history"),
        (("--history", "absent.json"), 2, "error: cannot read absent.json"),
        (("--history", "b.json", "--epsilon", -1), 2, "error: --epsilon must be finite and not negative"),
        (("--history", "a.json"), 3, "error: a.json: history[0][1]: rate must be a number from 1e-30 to 1"),
        (("run", "--adjacency", "replace-one"), 2, "error: --adjacency must be zero-out or add-remove"),
        (("b.json",), 2, "error: b.json is not a folder; dpspec.record writes one; check --history FILE reads"),
        (("c.yaml",), 2, "error: c.yaml is not a folder; dpspec.record writes one; dpspec run audits a spec"),
    ],
)
def test_errors_are_located(dpspec, tmp_path: Path, arguments, code: int, message: str) -> None:
    (tmp_path / "a.json").write_text('{"history": [[1.1, 2, 3]], "mechanism": "rdp"}', encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps(STATE), encoding="utf-8")
    (tmp_path / "c.yaml").touch()
    done = dpspec("check", *arguments)
    assert done.code == code
    assert message in done.err
