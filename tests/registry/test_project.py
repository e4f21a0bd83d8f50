"""Files of a project: found, digested and imported, with a located error for each mistake."""

import os
import pickle
import sys
import textwrap
from pathlib import Path

import pytest

from dpspec.cli.app import main
from dpspec.contract.catalog import Catalog
from dpspec.errors import UsageError
from dpspec.registry import loader
from dpspec.registry import project as project_module
from dpspec.registry.loader import load_catalog, use_project
from dpspec.registry.project import project_files

MODEL = """
import dpspec

@dpspec.model("{kind}")
def net(facts, *, width: int = 4):
    pass
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Undo the use of a project, and its entries of the module path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(loader, "_project", ())
    monkeypatch.setattr(project_module, "_IMPORTED", {})


@pytest.fixture
def project(tmp_path):
    def write(configuration: str = '[tool.dpspec]\nplugins = ["dp/parts.py"]\n', **files: str) -> Path:
        (tmp_path / "dp").mkdir(exist_ok=True)
        (tmp_path / "pyproject.toml").write_text(configuration)
        for name, text in files.items():
            (tmp_path / "dp" / f"{name}.py").write_text(textwrap.dedent(text))
        return tmp_path

    return write


def catalog_of(*specs: Path, plugins: tuple[Path, ...] = ()) -> Catalog:
    use_project(project_files(specs, plugins))
    return load_catalog()


def test_the_nearest_table_upwards_from_the_spec_names_the_files(project):
    root = project(parts=MODEL.format(kind="near-net"))
    specs = root / "specs" / "deep"
    specs.mkdir(parents=True)
    (root / "specs" / "pyproject.toml").write_text("[project]\nname = 'dpspec-free'\n")
    (file,) = project_files([specs / "a.yaml"])
    assert (file.name, file.root, file.named_by) == ("dp/parts.py", str(root.resolve()), "pyproject.toml")
    offered = catalog_of(specs / "a.yaml").models["near-net"]
    assert (offered.distribution, offered.version, offered.code) == ("dp/parts.py", file.digest[:12], file.digest)
    assert "near-net" not in catalog_of(root.parent).models


def test_the_command_line_names_further_files(project, tmp_path):
    root = project(parts=MODEL.format(kind="one-net"), more=MODEL.format(kind="two-net"))
    files = project_files([root], [root / "dp" / "more.py", root / "dp" / "parts.py"])
    assert [(file.name, file.named_by) for file in files] == [
        ("dp/parts.py", "pyproject.toml"),
        ("dp/more.py", "--plugin"),
    ]
    models = catalog_of(root, plugins=(root / "dp" / "more.py",)).models
    assert {"one-net", "two-net"} <= set(models)


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ('[tool.dpspec]\nplugins = "dp/parts.py"', "plugins must be a list of Python files"),
        ("[tool.dpspec]\nplugin = []", "has only the keys plugins"),
        ('[tool.dpspec]\nplugins = ["../parts.py"]', "inside the project's folder"),
        ('[tool.dpspec]\nplugins = ["/etc/parts.py"]', "inside the project's folder"),
        ('[tool.dpspec]\nplugins = ["dp/parts.txt"]', r"must be a Python file \(.py\)"),
        ('[tool.dpspec]\nplugins = ["dp/none.py"]', r"pyproject.toml: tool.dpspec.plugins: .*none.py: no such file"),
        ("[tool.dpspec\nplugins = []", "pyproject.toml: invalid TOML: .*line 1"),
    ],
)
def test_a_wrong_configuration_is_located(project, configuration, message):
    root = project(configuration, parts=MODEL.format(kind="net"))
    with pytest.raises(UsageError, match=message):
        project_files([root])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", r"dp/parts.py:1: SyntaxError: invalid syntax"),
        ("x = 1\n\n1/0\n", r"dp/parts.py:3: ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", r"dp/parts.py:2: SystemExit: 3"),
        ("x = 1\n", "no function is decorated"),
        (MODEL.format(kind="My_Net"), "must be lower-case letters"),
        (MODEL.format(kind="mlp"), "model 'mlp' is also offered by dpspec .*, which keeps it"),
        (MODEL.format(kind="net").replace("width", "initial"), "initial: this key belongs to core"),
        (
            "import dpspec\n@dpspec.dataset('rows')\ndef rows(*, seed: int = 0): pass\n",
            r"rows\(\): every dataset has the key 'seed': rename the parameter",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_at_its_line(project, source, message):
    root = project(parts=source)
    with pytest.raises(UsageError, match=message):
        catalog_of(root)
    assert loader.used_project() == ()


def test_two_projects_do_not_mix(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text('[tool.dpspec]\nplugins = ["parts.py"]\n')
        (tmp_path / name / "parts.py").write_text(MODEL.format(kind=f"net-{name}"))
    with pytest.raises(UsageError, match="run them one by one"):
        project_files([tmp_path / "a", tmp_path / "b"])
    assert "net-b" not in catalog_of(tmp_path / "a").models
    assert "net-a" not in catalog_of(tmp_path / "b").models


def digest_of(root: Path) -> str:
    (file,) = project_files([root])
    return file.digest


def test_the_digest_covers_imported_files_of_the_project(project, tmp_path):
    root = project(parts="from layers_of_project.deep import x\n" + MODEL.format(kind="net"))
    package = root / "layers_of_project"
    package.mkdir()
    without = digest_of(root)
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("def later():\n    import helper_of_project\n")
    (root / "helper_of_project.py").write_text("x = 1\n")
    whole = digest_of(root)
    assert whole != without
    (root / "unrelated.py").write_text("x = 1\n")
    assert digest_of(root) == whole
    (root / "helper_of_project.py").write_text("x = 2\n")
    with pytest.raises(UsageError, match=r"helper_of_project.py was changed after this process imported it: restart"):
        digest_of(root)


def test_the_digest_depends_on_code_and_not_on_the_place(tmp_path):
    digests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text('[tool.dpspec]\nplugins = ["parts.py"]\n')
        (tmp_path / name / "parts.py").write_text(MODEL.format(kind="net"))
        digests.append(digest_of(tmp_path / name))
    assert digests[0] == digests[1]
    (tmp_path / "b" / "parts.py").write_text(MODEL.format(kind="net") + "\n")
    assert digest_of(tmp_path / "b") != digests[0]


def test_a_strangers_configuration_can_be_ignored(project, monkeypatch):
    root = project("[tool.dpspec", parts=MODEL.format(kind="net"))
    monkeypatch.setenv("DPSPEC_PROJECT", "off")
    assert project_files([root]) == ()
    (file,) = project_files([root], [root / "dp" / "parts.py"])
    assert file.named_by == "--plugin"


def test_modules_of_another_project_are_not_used(project, tmp_path):
    root = project(parts="import sibling_of_parts\n" + MODEL.format(kind="net"))
    (root / "sibling_of_parts.py").write_text("")
    project_files([root])
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text('[tool.dpspec]\nplugins = ["parts.py"]\n')
    (other / "parts.py").write_text("import sibling_of_parts\n")
    with pytest.raises(UsageError, match=r"has imported .*sibling_of_parts.py of another project: restart"):
        project_files([other])


def test_an_edited_file_is_imported_again(project):
    root = project(parts=MODEL.format(kind="first-net"))
    assert "first-net" in catalog_of(root).models
    project(parts=MODEL.format(kind="second-net"))
    models = catalog_of(root).models
    assert "second-net" in models
    assert "first-net" not in models


def test_a_worker_executes_the_source_that_it_received(project):
    root = project(parts=MODEL.format(kind="sent-net"))
    files = pickle.loads(pickle.dumps(project_files([root])))  # noqa: S301 - our own
    os.remove(root / "dp" / "parts.py")
    use_project(files)
    assert "sent-net" in load_catalog().models


def test_a_worker_refuses_other_imported_files(project):
    root = project(parts="import sibling_of_parts\n" + MODEL.format(kind="net"))
    (root / "sibling_of_parts.py").write_text("")
    files = project_files([root])
    os.remove(root / "sibling_of_parts.py")
    with pytest.raises(UsageError, match="imports other code here than in the process that started the run"):
        use_project(files)


def test_hooks_of_a_file_are_used_as_well(project):
    root = project(
        parts=MODEL.format(kind="own-net")
        + """
import dpspec.contract as dps

@dps.hookimpl
def dpspec_models():
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    yield dps.Model(kind="hook-net", summary="A net.", schema=empty, factory="a.b:C")
"""
    )
    assert {"own-net", "hook-net"} <= set(catalog_of(root).models)


def test_what_a_file_prints_does_not_reach_stdout(project, capsys):
    root = project(parts="print('hello')\n" + MODEL.format(kind="net"))
    catalog_of(root)
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "utf-32"])
def test_a_configuration_that_is_not_utf_8_is_an_error(encoding, tmp_path):
    text = '# é\n[tool.dpspec]\nplugins = ["dp/parts.py"]\n'
    (tmp_path / "pyproject.toml").write_bytes(text.encode(encoding))
    with pytest.raises(UsageError, match=r"pyproject\.toml: not UTF-8, at byte"):
        project_files([tmp_path])


def test_a_strange_configuration_without_the_table_is_left_alone(tmp_path):
    (tmp_path / "pyproject.toml").write_bytes('name = "é"'.encode("latin-1"))
    assert project_files([tmp_path]) == ()


def test_a_listed_link_out_of_the_folder_is_refused(project, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "parts.py"
    outside.write_text(MODEL.format(kind="net"))
    folder = project()
    (folder / "dp" / "parts.py").symlink_to(outside)
    with pytest.raises(UsageError, match=r"is a link to .*, outside of the project's folder"):
        project_files([folder])
    inside = folder / "real.py"
    inside.write_text(MODEL.format(kind="net"))
    (folder / "dp" / "parts.py").unlink()
    (folder / "dp" / "parts.py").symlink_to(inside)
    assert [file.name for file in project_files([folder])] == ["dp/parts.py"]


def test_a_package_elsewhere_counts_with_its_links_into_the_project_alone(project, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "linked_package").mkdir()
    (elsewhere / "linked_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(elsewhere)
    folder = project(parts="import linked_package\n" + MODEL.format(kind="linked"))
    (folder / "helpers.py").write_text("SIZE = 1\n")

    def digest() -> str:
        monkeypatch.setattr("dpspec.registry.project._IMPORTED", {})
        (file,) = project_files([folder])
        return file.digest

    alone = digest()
    (elsewhere / "linked_package" / "own.py").write_text("SIZE = 1\n")
    assert digest() == alone
    (elsewhere / "linked_package" / "helpers.py").symlink_to(folder / "helpers.py")
    linked = digest()
    assert linked != alone
    (folder / "helpers.py").write_text("SIZE = 2\n")
    assert digest() != linked


def test_the_first_command_in_a_folder_says_which_code_it_executes(project, capsys, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.chdir(project(parts=MODEL.format(kind="announced")))
    lines = []
    for _ in range(2):
        assert main(["plugins"]) == 0
        printed = capsys.readouterr()
        assert "dp/parts.py" in printed.out
        lines.append(" ".join(printed.err.split()))
    assert "dpspec executes dp/parts.py of" in lines[0]
    assert "DPSPEC_PROJECT=off" in lines[0]
    assert "executes" not in lines[1]
