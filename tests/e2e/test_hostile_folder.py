"""A stranger's checkout is the current folder: nothing in it is imported, by no process that any way in starts."""

import os
import shutil
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

ACTION = Path(__file__).parents[2] / ".github" / "actions" / "dpspec" / "audit.sh"

#: Nine cells.
SPEC = """\
dpspec: 1
name: a
mechanism: {kind: group, noise_multiplier: 3.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 2}
data: {kind: synthetic, records: 100, features: 8, classes: 2}
model: {kind: linear}
claims: [{id: one, kind: approx-dp, epsilon: 20.0, delta: 1e-5}]
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 16}, runs: 1}
matrix: {audit.seed: [1, 2, 3, 4, 5, 6, 7, 8, 9]}
"""

#: Modules that dpspec might import: the standard library, its dependencies, and itself.
NAMES = sorted(
    {
        *(set(sys.stdlib_module_names) - set(sys.builtin_module_names)),
        *("numpy", "scipy", "torch", "yaml", "jsonschema", "typer", "click", "rich", "fsspec", "pluggy", "sklearn"),
        *("threadpoolctl", "mpmath", "packaging", "junitparser", "markupsafe", "opacus", "pyarrow", "PIL"),
        *("dpspec", "dpspec_group", "dpspec_rero", "dpspec_modelmix", "dpspec_per_instance", "dpspec_preprocessing"),
        *("usercustomize", "sitecustomize", "readline", "ray", "evil"),
    }
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a spec, and a module of every name that leaves a word when it is run."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "a.yaml").write_text(SPEC, encoding="utf-8")
    (folder / "pair.yaml").write_text(SPEC.replace(", 3, 4, 5, 6, 7, 8, 9", ""), encoding="utf-8")
    (folder / "matplotlibrc").write_text("backend: module://evil\ntext.usetex: True\n", encoding="utf-8")
    for name in NAMES:
        said = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + ' ')"
        (folder / f"{name}.py").write_text(f"{said}\nraise ImportError('of a stranger')\n", encoding="utf-8")
    return folder


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The console script, as it is installed."""
    script = tmp_path / "bin" / "dpspec"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom dpspec.__main__ import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


def run(checkout: Path, *command: object, codes: tuple[int, ...] = (0,), **environment: str) -> None:
    store = checkout.parent / "store"
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    env = {**known, "DPSPEC_STORE": str(store), "OMP_NUM_THREADS": "1", **environment}
    words = [str(word).replace("STORE", str(store)) for word in command]
    ended = subprocess.run(words, cwd=checkout, env=env, capture_output=True, text=True, timeout=300, check=False)
    ran = checkout.parent / "ran"
    assert not ran.exists(), ran.read_text("utf-8")
    assert ended.returncode in codes, ended.stdout + ended.stderr


@pytest.mark.ci
@pytest.mark.parametrize(
    "options",
    [
        ("run", "a.yaml", "--workers", "2", "--bounds-only", "--report", "html=STORE.html"),
        ("run", "pair.yaml", "--workers", "2", "--store", "STORE"),
    ],
    ids=["bounds", "trials"],
)
def test_the_program(checkout: Path, program: Path, options: tuple[str, ...]) -> None:
    run(checkout, sys.executable, program, *options)


@pytest.mark.ci
def test_the_program_without_its_environment(checkout: Path, program: Path) -> None:
    run(checkout, sys.executable, "-E", program, "run", "a.yaml", "--workers", "2", "--bounds-only")


def test_a_module(checkout: Path) -> None:
    """What Python itself imports before it comes to us is beyond us; nothing else is imported from here."""
    for name in ("dpspec", "importlib", "warnings", "__future__", "runpy", "pkgutil", "keyword", "types", "contextlib"):
        (checkout / f"{name}.py").unlink()
    for name in ("operator", "functools", "collections", "reprlib"):
        (checkout / f"{name}.py").unlink()
    run(checkout, sys.executable, "-m", "dpspec", "run", "a.yaml", "--workers", "2", "--bounds-only")


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_action(checkout: Path, program: Path) -> None:
    (checkout / "pyproject.toml").write_text('[tool.dpspec]\nplugins = ["evil.py"]\n')
    path = f"{program.parent}:{os.environ['PATH']}"
    run(checkout, "bash", ACTION, PATH=path, DPSPEC_SPECS="a.yaml", DPSPEC_BOUNDS_ONLY="true")


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_workers_of_ray(checkout: Path, program: Path) -> None:
    run(checkout, sys.executable, program, "run", "a.yaml", "--executor", "ray", "--workers", "2", "--store", "STORE")


def test_a_script_of_a_backend_is_run_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start processes with the caller's environment."""
    from support import tasks

    from dpspec.executors import PartialResult, Resources, Task, TaskFinished
    from dpspec.executors.processes import Processes

    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    pool = Processes(["cpu"], most=1, threads=1, budget=1000)
    try:
        pool.start(Task(number=1, name="asks", needs=Resources(), work=partial(tasks.variable, "PYTHONSAFEPATH")))
        messages: list[object] = []
        while TaskFinished(task=1) not in messages:
            messages += pool.messages()
    finally:
        pool.close()
    assert PartialResult(task=1, value=None) in messages
    assert "PYTHONSAFEPATH" not in os.environ
