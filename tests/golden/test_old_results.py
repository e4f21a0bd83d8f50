"""Results of version 0.1.0 are read, shown and verified, and changed verdicts are reported one by one.

The corpus is what 0.1.0 wrote of the plugins' own examples, and of a chain whose bound it computed with a wrong radius.
Rules change between versions: what holds here of every version is how ``verify`` tells it.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dpspec.cli.app import main
from dpspec.contract import FrozenMap
from dpspec.engine import differences
from dpspec.engine.verify import verify
from dpspec.registry.loader import load_catalog
from dpspec.reporters import markdown
from dpspec.reporters import page as html
from dpspec.results import codec

CORPUS = Path(__file__).parent / "results-0.1.0"
NAMES = sorted(path.stem for path in CORPUS.glob("*.json"))

Document = dict[str, Any]


def document(name: str) -> Document:
    read: Document = json.loads((CORPUS / f"{name}.json").read_text(encoding="utf-8"))
    return read


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of dpspec that is not the one that wrote them."""
    monkeypatch.setattr(differences, "environment", lambda catalog: FrozenMap({"dpspec": "99.0"}))


def verified(found: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    capsys.readouterr()
    code = main(["verify", str(path), "--store", str(tmp_path / "none")])
    return code, capsys.readouterr().out


def test_the_corpus_is_of_every_plugin() -> None:
    kinds = {document(name)["audits"][0]["document"]["mechanism"]["kind"] for name in NAMES}
    assert kinds == {"group", "modelmix", "per-instance", "preprocessing", "rero"}


@pytest.mark.parametrize("name", NAMES)
def test_they_are_read_and_shown(name: str) -> None:
    result = codec.load((CORPUS / f"{name}.json").read_text(encoding="utf-8"))
    assert result.environment["dpspec"] == "0.1.0"
    assert codec.load(codec.dump(result)) == result
    for shown in (markdown.render(result), html.render(result)):
        assert all(verdict.claim in shown for verdict in result.audits[0].verdicts)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("later")
def test_every_changed_verdict_is_reported_in_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = codec.load((CORPUS / f"{name}.json").read_text(encoding="utf-8"))
    found = verify(result, load_catalog(), directory=str(tmp_path))
    monkeypatch.setattr("dpspec.engine.verify.verify", lambda *given, **options: found)
    differing = [one for one in found if one.differs]
    others = {one.what: one.recomputed for one in differing if one.what.endswith("].verdict")}
    refused = [one for one in differing if one.what == "audit"]
    code, out = verified(document(name), tmp_path, capsys)
    (audit,) = result.audits
    assert "recorded by dpspec 0.1.0 (here 99.0): differences may come from other rules, or from an edit" in out
    for i, verdict in enumerate(audit.verdicts):
        line = f"{audit.name}: claim {verdict.claim}: recorded {verdict.verdict}, would be "
        now = others.get(f"verdicts[{i}].verdict")
        assert (f"{line}{now} now" in out) if now else (line not in out)
    assert (f"{audit.name}: recorded a result, cannot be made now: " in out) == bool(refused)
    if others or refused:
        assert code == 1
    else:
        assert code == (1 if list(differences.changed(result, differing)) else 7 if found else 0)


@pytest.mark.usefixtures("later")
def test_a_verdict_that_does_not_follow_is_told_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As 0.1.0 would have judged by a rule that is no more."""
    old = document("group")
    verdict = next(v for v in old["audits"][0]["verdicts"] if v["claim"] == "too-good")
    verdict.update(verdict="proved", expected=False, upper=0.005)
    code, out = verified(old, tmp_path, capsys)
    assert code == 1
    assert re.search("group-example: claim too-good: recorded proved, would be (open|refuted) now: ", out)
    assert "    recorded: " not in out


@pytest.mark.usefixtures("later")
def test_a_number_that_does_not_follow_changes_no_verdict_and_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = document("group")
    old["audits"][0]["notes"] = [*old["audits"][0]["notes"], "all is well"]
    code, out = verified(old, tmp_path, capsys)
    assert code in (1, 7)
    assert "differ without changing a verdict: " in out
    assert "notes 1" in out


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda a: a["verdicts"].append(a["verdicts"][0]), "verdicts"),
        (lambda a: a["verdicts"][0].update(claim="another"), "verdicts[0].claim"),
        (lambda a: a.update(name="another"), "name"),
        (lambda a: a["trials"].append(a["trials"][0]), "trials"),
    ],
)
def test_what_no_rule_decides_is_an_edit(
    edit: Any, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = document("group")
    edit(old["audits"][0])
    code, out = verified(old, tmp_path, capsys)
    assert code == 1
    assert f": {named}: recorded " in out


def test_only_what_is_installed_in_another_version_is_named() -> None:
    result = codec.load((CORPUS / "group.json").read_text(encoding="utf-8"))

    def named(**installed: object) -> tuple[str, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(differences, "environment", lambda catalog: FrozenMap(installed))
            return differences.other_versions(result, load_catalog())

    assert named(dpspec="0.1.0") == named() == ()
    assert named(dpspec="0.2.0") == ("dpspec 0.1.0 (here 0.2.0)",)
    assert named(dpspec="0.1.0", plugins={"group": "dpspec 0.1.0", "other": "else 3"}) == ()
