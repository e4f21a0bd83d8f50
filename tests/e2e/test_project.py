"""A user's model in three lines: from an empty folder to a verdict, without a package."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import warm

Run = Callable[..., subprocess.CompletedProcess[str]]

PARTS = """from torch import nn

import dpspec


@dpspec.model("mynet")
def mynet(facts, *, width: int = 8):
    return nn.Sequential(nn.Flatten(), nn.Linear(facts.features, width), nn.ReLU(), nn.Linear(width, facts.classes))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "dp").mkdir()
    (tmp_path / "dp" / "parts.py").write_text(PARTS)
    (tmp_path / "pyproject.toml").write_text('[tool.dpspec]\nplugins = ["dp/parts.py"]\n')
    return tmp_path


@pytest.fixture
def own_tests(environment: dict[str, str], tmp_path: Path) -> Run:
    return lambda *arguments: warm.pytest(*arguments, cwd=tmp_path, env=environment)


def succeeds(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment_of(result: Path) -> dict:
    return json.loads(result.read_text())["environment"]


def test_the_code_is_in_the_result_and_in_the_keys_of_trials(dpspec: Run, project: Path) -> None:
    succeeds(dpspec("new", "spec", "audit", "--model", "mynet"))
    assert "\nmodel: {kind: mynet, width: 8}\n" in (project / "audit.yaml").read_text()
    succeeds(dpspec("run", "audit.yaml", "--report", "json=a.json", "--report", "markdown=a.md"))
    (origin,) = environment_of(project / "a.json")["project"].values()
    digest = origin.split()[1].removesuffix(",")
    assert (origin, len(digest)) == (f"sha256 {digest}, named by pyproject.toml", 64)
    assert f"- Code of the project: dp/parts.py {origin}" in (project / "a.md").read_text()
    (trial,) = json.loads((project / "a.json").read_text())["audits"][0]["trials"]
    assert trial["recorded"]["by"]["model"]["code"] == digest
    succeeds(dpspec("verify", "a.json"))
    stored = sorted((project / ".dpspec" / "store").rglob("*"))
    succeeds(dpspec("run", "audit.yaml"))
    assert sorted((project / ".dpspec" / "store").rglob("*")) == stored
    (project / "dp" / "parts.py").write_text(PARTS.replace("ReLU", "Tanh"))
    succeeds(dpspec("run", "audit.yaml", "--report", "json=b.json"))
    assert len(sorted((project / ".dpspec" / "store").rglob("*"))) > len(stored)
    assert environment_of(project / "b.json")["project"]["dp/parts.py"] != origin
    assert dpspec("verify", "a.json").returncode == 7


@pytest.mark.ci
def test_the_command_line_names_a_file(dpspec: Run, project: Path) -> None:
    (project / "pyproject.toml").write_text("")
    assert dpspec("new", "spec", "audit", "--model", "mynet").returncode == 2
    named = ("--plugin", "dp/parts.py")
    following = succeeds(dpspec("new", "spec", "audit", "--model", "mynet", *named))
    assert "dpspec run audit.yaml --plugin dp/parts.py" in following
    assert "description:" not in (project / "audit.yaml").read_text()
    assert dpspec("validate", "audit.yaml").returncode == 4
    for command in ("validate", "show", "plan"):
        succeeds(dpspec(command, "audit.yaml", *named))
    assert '"mynet"' in succeeds(dpspec("schema", *named))
    assert "dp/parts.py" in succeeds(dpspec("plugins", *named))
    succeeds(dpspec("calibrate", "audit.yaml", "--vary", "mechanism.noise_multiplier", "--precision", "0.5", *named))
    succeeds(dpspec("run", "audit.yaml", "--bounds-only", "--report", "json=a.json", *named))
    environment = environment_of(project / "a.json")
    assert environment["command"] == ["dpspec", "run", "audit.yaml", *named, "--bounds-only"]
    assert environment["project"]["dp/parts.py"].endswith("named by --plugin")


SPEC = """dpspec: 1
name: audit
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 20
data: {kind: synthetic, records: 100, features: 4}
model: {kind: mynet, width: 8}
claims: [{id: one, kind: approx-dp, epsilon: 6.0, delta: 1e-5}]
"""


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("import dpspec\n1 / 0\n", 2, "{}/dp/parts.py:2: ZeroDivisionError: division by zero"),
        (PARTS.replace("ReLU()", "BatchNorm1d(width)"), 3, "module = opacus.validators.ModuleValidator.fix(module)"),
        (
            PARTS.replace("facts.features, width", "facts.oops, width"),
            3,
            "mynet() fails at {}/dp/parts.py:8: Attribute",
        ),
        (PARTS.replace("width: int = 8", "width: str"), 3, "audit.yaml:10:29: error[wrong-type]: width must be"),
    ],
)
def test_mistakes_are_located(dpspec: Run, project: Path, text: str, code: int, message: str) -> None:
    (project / "audit.yaml").write_text(SPEC)
    (project / "dp" / "parts.py").write_text(text)
    done = dpspec("validate", "audit.yaml")
    assert done.returncode == code, done.stdout + done.stderr
    assert message.format(project.resolve()) in done.stdout + done.stderr
    if code == 3:
        assert "audit.yaml:10:" in done.stdout


#: Many independent trials, so that several processes train them.
MANY = "audit={method: many-run, canary: {space: gradient, kind: orthogonal}, runs: 128, seed: 3, shard_runs: 32}"


@pytest.mark.ci
def test_workers_execute_the_code_of_the_project(dpspec: Run, project: Path) -> None:
    (project / "own").mkdir()
    (project / "own" / "layers.py").write_text("from torch import nn\n\nActivation = nn.ReLU\n")
    text = PARTS.replace("import dpspec\n", "import dpspec\nfrom own.layers import Activation\n")
    (project / "dp" / "parts.py").write_text(text.replace("nn.ReLU", "Activation"))
    succeeds(dpspec("new", "spec", "audit", "--model", "mynet"))
    succeeds(dpspec("run", "audit.yaml", "--set", MANY, "--workers", "2", "--report", "json=a.json"))
    succeeds(dpspec("run", "audit.yaml", "--set", MANY, "--store", "other", "--report", "json=b.json"))
    several, one = (json.loads((project / name).read_text())["audits"][0] for name in ("a.json", "b.json"))
    assert several["evidence"] == one["evidence"]
    assert len(several["trials"]) > 100


@pytest.mark.ci
@pytest.mark.parametrize(
    "part",
    [
        *("model", "loss", "dataset", "backend", "report", "sampling-scheme", "noise"),
        pytest.param("attack-method", marks=pytest.mark.family),
    ],
)
def test_a_new_part_passes_its_own_tests(part: str, dpspec: Run, own_tests: Run, tmp_path: Path) -> None:
    succeeds(dpspec("new", part, "first-part"))
    assert (tmp_path / "pyproject.toml").read_text() == '[tool.dpspec]\nplugins = ["dp/first_part.py"]\n'
    done = own_tests("-q", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    if part == "attack-method":  # mechanisms choose the kind of their evidence, and specs do not
        checked = succeeds(dpspec("plugins", "--check", "first-part"))
        assert "How wrong a test would still pass" in checked
        assert "only the author" not in checked
    choice = {"model": ["--model", "first-part"], "dataset": ["--data", "first-part"]}.get(part, [])
    choice = ["--mechanism", "composition"] if part == "noise" else choice
    succeeds(dpspec("new", "spec", "audit", *choice))
    settings = {
        "backend": "training.backend=first-part",
        "loss": "training.loss=first-part",
        "sampling-scheme": "mechanism={kind: group, noise_multiplier: 8, clip_norm: 1, steps: 20, "
        "sampling: {scheme: first-part, epoch_steps: 10}}",
        "noise": "mechanism.releases=[{kind: noise, noise: first-part, scale: 40, times: 10}]",
    }
    own = ["--report", "first-part=-"] if part == "report" else ["--set", settings[part]] if part in settings else []
    if part == "noise":  # the example also claims divergences
        own += ["--set", "claims=[{id: total, kind: approx-dp, epsilon: 2, delta: 1e-6}]"]
    assert "proved" in succeeds(dpspec("run", "audit.yaml", *own)).lower()
    assert dpspec("new", part, "first-part").returncode == 2
    assert 'plugins = ["dp/first_part.py", "dp/second.py"]' in succeeds(dpspec("new", part, "second"))
