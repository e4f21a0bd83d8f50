"""Every file of specs/invalid has the messages in its ``.expected.txt``.

To write the expected texts again, run this file with DPSPEC_UPDATE_GOLDEN=1 set, and read the difference.
"""

import os
from pathlib import Path

import pytest

from dpspec.cli.app import main
from dpspec.language.diagnostics import CODES

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "specs" / "invalid").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.family
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_each_says_exactly_what_is_expected(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["validate", str(path.relative_to(ROOT))])
    out, err = capsys.readouterr()
    if os.environ.get("DPSPEC_UPDATE_GOLDEN"):
        path.with_suffix(".expected.txt").write_text(out, encoding="utf-8")
    assert out == path.with_suffix(".expected.txt").read_text(encoding="utf-8")
    assert err == ""
    assert code == (4 if path.stem in ("unknown-kind", "unmet-requirement") else 3)
    assert f"[{path.stem}]" in out


@pytest.mark.recorder  # a message lists all kinds
def test_all_at_once_exit_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *(str(path.relative_to(ROOT)) for path in FILES)]) == 3
    out = capsys.readouterr().out
    for path in FILES:
        assert path.with_suffix(".expected.txt").read_text(encoding="utf-8").strip() in out


def test_there_is_one_for_every_code_that_a_file_alone_can_show() -> None:
    assert {path.stem for path in FILES} == {
        name for name, code in CODES.items() if code.stage in ("spec", "check")
    } - {"not-allowed"}
