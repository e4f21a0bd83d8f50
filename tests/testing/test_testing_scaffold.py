"""A scaffolded plugin works as soon as it is installed, and broken plugins leave every other command working."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import warm

from dpspec.cli.templates import write_plugin
from dpspec.errors import UsageError

Environment = Callable[..., dict[str, str]]


def execute(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    if arguments[0] == "dpspec":
        return warm.dpspec(*arguments[1:], cwd=cwd, env=env)
    if arguments[0] == "pytest":
        return warm.pytest(*arguments[1:], cwd=cwd, env=env)
    return subprocess.run(
        [sys.executable, "-m", *arguments], env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    """What the command line writes."""
    folder = tmp_path_factory.mktemp("scaffold")
    done = execute("dpspec", "new", "plugin", "noisy-count", env=environment(), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "dpspec-noisy-count"


@pytest.fixture(scope="module")
def bounded(project: Path, environment: Environment) -> Path:
    options = ["--bounds-only", "--in", str(project.parent)]
    done = execute("dpspec", "new", "plugin", "plain-count", *options, env=environment(), cwd=project.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return project.parent / "dpspec-plain-count"


@pytest.fixture(scope="module")
def site(project: Path, bounded: Path, tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    """A folder into which both plugins were installed by pip, without a network."""
    pytest.importorskip("pip")
    target = tmp_path_factory.mktemp("site")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    both = [str(project), str(bounded)]
    done = execute("pip", "install", *options, "--target", str(target), *both, env=environment(), cwd=target)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.mark.ci
def test_a_bound_alone_needs_no_more_than_its_formula(site, bounded, environment, tmp_path):
    done = execute("pytest", "-q", "-p", "no:cacheprovider", str(bounded), env=environment(site), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    example = site / "dpspec_plain_count" / "example.yaml"
    done = execute("dpspec", "run", "-v", str(example), env=environment(site), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epsilon <= 1.5  at delta 1e-6, group_size 3" in done.stdout
    asked = ["--set", "audit={method: many-run}"]
    done = execute("dpspec", "validate", *asked, str(example), env=environment(site), cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "leave audit out" in done.stdout + done.stderr


#: Modules of broken plugins, whose reasons ``tests/registry`` has.
BROKEN = {
    "cannot-import": "import a_library_that_nobody_has\n",
    "misspelt": "import dpspec.contract as dps\nDPSPEC_API = 1\n@dps.hookimpl\ndef dpspec_mechanism(): return []\n",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two installed plugins that are broken."""
    folder = tmp_path_factory.mktemp("broken")
    for name, text in BROKEN.items():
        module = "odd_" + name.replace("-", "_")
        (folder / f"{module}.py").write_text(text)
        info = folder / f"dpspec_{module}-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dpspec-{name}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[dpspec]\n{name} = {module}\n")
    return folder


@pytest.mark.ci
def test_broken_plugins_leave_other_commands_working(site, broken, environment, tmp_path):
    example = str(site / "dpspec_noisy_count" / "example.yaml")
    env = environment(site, broken)
    for command in ("validate", "run"):
        done = execute("dpspec", command, example, env=env, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stdout + done.stderr)
    named = tmp_path / "needs.yaml"
    named.write_text(Path(example).read_text().replace("kind: noisy-count", "kind: misspelt"))
    done = execute("dpspec", "validate", str(named), env=env, cwd=tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr


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


def test_no_placeholder_is_left(project, bounded):
    for path in [*project.rglob("*"), *bounded.rglob("*")]:
        if path.is_file():
            assert "$" not in path.read_text().replace("$schema", ""), path
            assert "\r" not in path.read_text()
