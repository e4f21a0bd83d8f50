"""A command by hook is part of the program, cannot replace a command of dpspec, and the suite finds wrong ones."""

import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.votes_suite import OURS

import dpspec.contract as dps
from dpspec.cli.app import main
from dpspec.contract.commands import OWN_COMMANDS
from dpspec.language.load import load_specs
from dpspec.registry import loader
from dpspec.registry.loader import Candidate, Registry, build
from dpspec.testing import CommandSuite

ROOT = Path(__file__).parents[2]
TESTS = [name for name in dir(CommandSuite) if name.startswith("test_")]
RECORDING = Candidate(distribution="dpspec", version="0", plugin="recording", value="dpspec_recording")
GROUP = Candidate(distribution="dpspec", version="0", plugin="group", value="dpspec_group")
THEIRS = Candidate(distribution="dpspec-count", version="1.0", plugin="count", value="count_plugin")


def count(file: Path) -> int:
    """Count the claims of a spec."""
    typer.echo(file.read_text().count("kind: approx-dp"))
    return 5


def undescribed() -> None:
    pass


def unreadable(file: Path | int) -> None:
    """A parameter of a type that no command line has."""


def offering(*commands: dps.Command) -> Registry:
    """A registry with dpspec's own plugins, and one that offers these commands."""

    class Plugin:
        DPSPEC_API = 1

        @dps.hookimpl
        def dpspec_commands(self) -> Iterable[dps.Command]:
            return commands

    sys.modules["count_plugin"].plugin = Plugin()  # type: ignore[attr-defined]
    candidate = Candidate(**{**vars(THEIRS), "value": "count_plugin:plugin"})
    return build([OURS, RECORDING, candidate])


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    code = types.ModuleType("count_plugin")
    vars(code).update(count=count, undescribed=undescribed, unreadable=unreadable)
    monkeypatch.setitem(sys.modules, "count_plugin", code)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Any]]:
    """The program with the commands of a registry."""
    from dpspec.cli import app

    def run(registry: Registry, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(loader, "load_registry", lambda: registry)
        app._build.cache_clear()
        code = main(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    yield run
    app._build.cache_clear()


def command(function: str = "count_plugin:count", name: str = "count") -> dps.Command:
    return dps.Command(name=name, summary="Count the claims of a spec.", function=function)


def failures(registry: Registry, kind: str = "count") -> list[str]:
    """The failed requirements of the suite."""
    suite = type("Suite", (CommandSuite,), {"kind": kind, "registry": classmethod(lambda cls: registry)})()
    messages = []
    for name in TESTS:
        if name != "test_importing_the_descriptor_is_light":  # the plugin of these tests exists in this process only
            try:
                getattr(suite, name)()
            except AssertionError as error:
                messages.append(str(error))
    return messages


def test_a_command_of_a_plugin_runs_with_its_exit_code(program: Callable[..., Any], tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("claims: [{kind: approx-dp}, {kind: approx-dp}]")
    assert program(offering(command()), "count", str(spec)) == (5, "2\n", "")
    code, out, _ = program(offering(command()), "--help")
    assert code == 0
    assert "  count      Count the claims of a spec.\n" in out
    assert failures(offering(command())) == []


@pytest.mark.recorder
@pytest.mark.parametrize("name", [own.name for own in OWN_COMMANDS])
def test_a_command_of_dpspec_cannot_be_replaced(name: str, program: Callable[..., Any]) -> None:
    registry = offering(command(name=name))
    assert name not in registry.catalog.commands
    assert [broken.reason for broken in registry.catalog.broken] == [
        f"command {name!r}: dpspec has a command of this name"
    ]
    assert any("dpspec has a command of this name" in message for message in failures(registry, name))
    assert program(registry, name, "--help")[1].startswith(f"Usage: dpspec {name} ")


@pytest.mark.recorder
def test_a_command_of_a_plugin_of_dpspec_cannot_be_replaced(program: Callable[..., Any]) -> None:
    registry = offering(command(name="check"), command())
    assert registry.catalog.commands["check"].distribution == "dpspec"
    assert registry.catalog.commands["count"].distribution == "dpspec-count"
    assert "Compare a recorded training with a claim" in program(registry, "check", "--help")[1]
    assert any("which keeps it" in broken.reason for broken in registry.catalog.broken)


def test_a_command_without_code_fails_alone(program: Callable[..., Any]) -> None:
    registry = offering(command("count_plugin:absent"))
    code, out, _ = program(registry, "--help")
    assert code == 0
    assert "  count " in out
    code, _, err = program(registry, "count")
    assert code == 4
    assert "cannot load count_plugin:absent" in err


@pytest.mark.parametrize(
    ("function", "message"),
    [("undescribed", "describes nothing: write a docstring"), ("unreadable", "typer cannot read the parameters")],
)
def test_the_suite_finds_a_wrong_command(function: str, message: str) -> None:
    (failure,) = failures(offering(command(f"count_plugin:{function}")))
    assert message in failure


def test_a_missing_plugin_of_dpspec_is_named(program: Callable[..., Any]) -> None:
    for name in ("check", "rules"):
        code, out, err = program(build([OURS]), name)
        assert (code, out) == (4, "")
        assert f"`dpspec {name}` is a command of dpspec's plugin 'recording', which is not installed" in err
    broken = Candidate(**{**vars(RECORDING), "value": "dpspec_absent"})
    code, _, err = program(build([OURS, broken]), "check", "run")
    assert code == 4
    assert "'recording', which is broken: ModuleNotFoundError: No module named 'dpspec_absent'" in err


def test_the_page_on_commands_works_word_for_word(program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "plugins" / "command.md").read_text(encoding="utf-8")
    module = types.ModuleType("dpspec_count_claims")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(page.split("```python\n")[1].split("```")[0], vars(module))
    registry = build([OURS, GROUP, Candidate(**{**vars(THEIRS), "value": module.__name__})])
    spec = ROOT / "specs" / "bounds-only.yaml"
    claims = len(load_specs([spec], registry.catalog).specs[0].claims)
    assert program(registry, "count-claims", str(spec)) == (0, f"{claims} claims\n", "")
    assert program(registry, "count-claims", str(spec), "--least", "9")[0] == 1
    assert failures(registry, "count-claims") == []
