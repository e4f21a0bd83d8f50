"""A scaffolded bound works as soon as it is installed, and broken plugins leave every other command working."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import warm
from support.installed import expose

from dpspec.cli.templates import write_plugin
from dpspec.errors import UsageError

Environment = Callable[..., dict[str, str]]


def execute(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return getattr(warm, arguments[0])(*arguments[1:], cwd=cwd, env=env)


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    """What the command line writes for a bound alone; ``tests/third_party`` follows the guide to a whole plugin."""
    folder = tmp_path_factory.mktemp("scaffold")
    options = ["--bounds-only", "--in", str(folder)]
    done = execute("dpspec", "new", "plugin", "plain-count", *options, env=environment(), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "dpspec-plain-count"


@pytest.mark.ci
def test_a_bound_alone_needs_no_more_than_its_formula(bounded, environment, tmp_path):
    expose(bounded, "dpspec-plain-count", "plain-count", "dpspec_plain_count")
    env = environment(bounded)
    done = execute("pytest", "-q", "-p", "no:cacheprovider", str(bounded), env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    example = bounded / "dpspec_plain_count" / "example.yaml"
    done = execute("dpspec", "run", "-v", str(example), env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epsilon <= 1.5  at delta 1e-6, group size 3" in done.stdout
    done = execute("dpspec", "validate", "--set", "audit={method: many-run}", str(example), env=env, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "leave audit out" in done.stdout + done.stderr


#: Modules of broken plugins, whose reasons ``tests/registry`` has.
BROKEN = {
    "cannot-import": "import a_library_that_nobody_has\n",
    "misspelt": "import dpspec.contract as dps\nDPSPEC_API = 1\n@dps.hookimpl\ndef dpspec_mechanism(): return []\n",
}


@pytest.mark.ci
def test_broken_plugins_leave_other_commands_working(environment, tmp_path):
    for name, text in BROKEN.items():
        module = "odd_" + name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(text)
        expose(tmp_path, f"dpspec-{name}", name, module)
    example = Path(__file__).parents[2] / "specs" / "bounds-only.yaml"
    named = tmp_path / "needs.yaml"
    named.write_text(example.read_text().replace("kind: group", "kind: misspelt"))
    for command, spec, code in (("validate", example, 0), ("run", example, 0), ("validate", named, 4)):
        done = execute("dpspec", command, str(spec), env=environment(tmp_path), cwd=tmp_path)
        assert done.returncode == code, (command, done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        *((name, "invalid plugin name") for name in ("", "Demo", "1demo", "de_mo", "a--b", "../up")),
        ("x" * 41, "at most 40 characters"),
        ("group", "a package 'dpspec_group' is already installed"),
    ],
)
def test_bad_names_are_refused(tmp_path, name, match):
    with pytest.raises(UsageError, match=re.escape(match)):
        write_plugin(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    written = write_plugin("twice", tmp_path)
    assert sorted(written) == sorted(path for path in tmp_path.rglob("*") if path.is_file())
    readme = tmp_path / "dpspec-twice" / "README.md"
    readme.write_text("mine")
    with pytest.raises(UsageError, match="dpspec-twice is already there; nothing was written"):
        write_plugin("twice", tmp_path)
    assert readme.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write_plugin("demo", tmp_path / "file")


def test_no_placeholder_is_left(bounded, tmp_path):
    write_plugin("demo", tmp_path)
    for path in [*bounded.rglob("*"), *tmp_path.rglob("*")]:
        if path.is_file() and path.suffix != ".pyc":
            assert "$" not in path.read_text().replace("$schema", ""), path
            assert "\r" not in path.read_text()
