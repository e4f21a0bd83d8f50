"""Getting out of a plugin that does not let dpspec begin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpspec.cli.app import main
from dpspec.registry import loader, plugin_watch


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dpspec]\ntheirs = their_module_of_tests\n")
    (tmp_path / "their_module_of_tests.py").write_text("raise SystemExit('gone')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(plugin_watch.VARIABLE, "")
    loader.load_registry.cache_clear()
    yield tmp_path
    loader.load_registry.cache_clear()


@pytest.mark.parametrize("name", ["theirs", "their-plugin", "Their_Plugin"])
def test_by_its_name_or_its_distributions(installed: Path, capsys, name: str) -> None:
    assert main(["--without-plugin", name, "plugins"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "left out by --without-plugin" in said
    assert "gone" not in said
    assert os.environ[plugin_watch.VARIABLE] == name


def test_by_the_environment(installed: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin_watch.VARIABLE, "nothing, theirs")
    assert main(["plugins"]) == 0
    assert "gone" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["thiers", "dpspec", "group", "builtin"])
def test_a_name_of_none_and_dpspecs_own_are_refused(installed: Path, capsys, name: str) -> None:
    assert main(["--without-plugin", name, "plugins"]) == 2
    assert "no plugin" in capsys.readouterr().err


def test_the_watch_names_who_is_at_work(monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    import time

    monkeypatch.setattr(plugin_watch, "PATIENCE", 0.01)
    with plugin_watch.watched("theirs", "their-plugin", "1.0"):
        time.sleep(0.3)
    said = capfd.readouterr().err
    assert "loading plugin 'theirs' of their-plugin 1.0 takes" in said
    assert "--without-plugin their-plugin" in said
    assert plugin_watch.at_work() == ""
    with pytest.raises(KeyboardInterrupt), plugin_watch.watched("theirs", "their-plugin", "1.0"):
        raise KeyboardInterrupt
    assert "their-plugin" in plugin_watch.at_work()
    with plugin_watch.watched("x", "y", "1"):
        pass
