"""``dpspec new``: a spec, a plugin, or a part of a project to start from.

A spec starts from the example of a mechanism, or from a recorded run with its proved epsilon.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.arguments import Plugins, load_project
from dpspec.cli.output import emit, require_known
from dpspec.contract import Json
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.phase import poisson_sampling
from dpspec.data.source import COMMON
from dpspec.errors import ExitCode, PluginError, UsageError
from dpspec.text import quoted

if TYPE_CHECKING:
    from dpspec.contract.results import Recording

#: The comment with the schema's path for editors.
MODELINE = "# yaml-language-server: $schema="
_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)
_SPEC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def starter_spec(
    catalog: Catalog,
    mechanism: str | None,
    *,
    schema: Path,
    name: str,
    model: str | None = None,
    data: str | None = None,
) -> str:
    """The example of ``mechanism`` (None: the first that trains a model) under another name, with a model and data."""
    if not catalog.mechanisms:
        raise PluginError("no installed plugin offers a mechanism (see `dpspec plugins`)")
    training = [kind for kind, offered in catalog.mechanisms.items() if "\nmodel:" in str(offered.provider.example)]
    kind = mechanism or min(training or catalog.mechanisms)
    require_known("mechanism", kind, sorted(catalog.mechanisms), "installed")
    example = str(catalog.mechanisms[kind].provider.example).strip("\n")
    lines = [line for line in example.split("\n") if not line.startswith(MODELINE)]
    body = _NAME_LINE.sub(f"name: {name}", "\n".join(lines), count=1) + "\n"
    for block, chosen, offers in (("model", model, catalog.models), ("data", data, catalog.datasets)):
        if chosen is not None:
            body = _with_kind(body, block, chosen, offers)
    return f"{MODELINE}{schema.as_posix()}\n{body}"


def _with_kind(body: str, block: str, kind: str, offers: Mapping[str, Offered]) -> str:
    """Replace a block of a spec by one of ``kind`` with its own required keys, and defaults of a project's function."""
    require_known(block, kind, sorted(offers), "installed")
    offered = offers[kind]
    keys: dict[str, Json] = {"kind": kind}
    if offered.code:
        common = COMMON.keys() | {"public"}
        kind_keys = {key: value for key, value in offered.provider.schema["properties"].items() if key not in common}
        keys |= {key: value["default"] for key, value in kind_keys.items() if "default" in value}
    pattern = re.compile(rf"^{block}:.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
    if not pattern.search(body):
        raise UsageError(f"the mechanism's example has no {block}: choose another --mechanism")
    flow = ", ".join(
        f"{key}: {json.dumps(value)}" if key != "kind" else f"kind: {value}" for key, value in keys.items()
    )
    return pattern.sub(lambda _: f"{block}: {{{flow}}}\n", body, count=1)


_MOST_PHASES = 50

#: Comment on values that a recording does not contain.
_UNKNOWN = """\
# data.features and data.classes are not recorded; bounds do not depend on them.
# threat_model: {adjacency: add-remove} requires constants that do not depend on the number of records.
"""


def spec_of_run(run: Path, *, schema: Path, name: str, spec_folder: Path) -> str:
    """A spec that gets the verdict of ``dpspec check``; it declares the phases if all are noisy Poisson samples."""
    from dpspec.contract.results import UNKNOWN
    from dpspec.decimals import upper
    from dpspec.engine.recorded.assumptions import PER_RECORD_CLIPPING
    from dpspec.engine.recorded.check import RunClaim, check_run, document_of
    from dpspec.language.yaml_source import to_yaml
    from dpspec.registry.builtin import KIND

    question = RunClaim(delta=1e-5)
    (audit,) = check_run(run, question).audits
    bound = next(finding for finding in audit.findings if (finding.quantity, finding.bound) == ("epsilon", "upper"))
    if math.isinf(bound.value):
        raise UsageError(f"{run}: no spec can be written: {bound.method}")
    assert audit.recording is not None
    # The order of the keys in the file.
    first = {"dpspec": 1, "name": name, "description": f"The training that was recorded in {run.name}"}
    document = {**first, **document_of(run, question), **first}
    document["mechanism"] = _declared(audit.recording) or {"kind": KIND}
    document["training"] = {"backend": KIND, "run": Path(os.path.relpath(run, spec_folder)).as_posix()}
    document["threat_model"] = {"adjacency": question.adjacency}
    claimed = float(upper(bound.value))
    claim: dict[str, Json] = {"id": "one-record", "kind": "approx-dp", "epsilon": claimed, "delta": question.delta}
    document["claims"], comments = [claim], _UNKNOWN
    unchecked = [
        assumption.name.removesuffix(UNKNOWN) for assumption in bound.assumptions if assumption.status == "unchecked"
    ]
    if unchecked == [PER_RECORD_CLIPPING] and audit.conformance.status == "no-deviation-found":
        claim["expect"] = ["open"]
        comments += (
            f"# {PER_RECORD_CLIPPING} is unchecked: record with loss=, or add assume: [{PER_RECORD_CLIPPING}] to "
            "training;\n# then remove expect.\n"
        )
    return f"{MODELINE}{schema.as_posix()}\n{comments}{to_yaml(document)}"


def _declared(recording: Recording) -> dict[str, Json] | None:
    from dpspec.registry.loader import load_catalog

    offers = sorted(load_catalog().mechanisms.items())
    kind = next((name for name, offered in offers if offered.provider.recordable and offered.provider.steps), None)
    if kind is None or len(recording.phases) > _MOST_PHASES or recording.more_phases:
        return None
    phases: list[Json] = [
        {
            "noise_multiplier": phase.noise_multiplier,
            "clip_norm": phase.clip_norm,
            "sampling": poisson_sampling(phase.rate),
            "steps": phase.steps,
        }
        for phase in recording.phases
        if phase.rate is not None and phase.noise_multiplier and phase.clip_norm is not None
    ]
    if len(phases) < len(recording.phases):
        return None
    return {"kind": kind, **(phases[0] if len(phases) == 1 else {"phases": phases})}


#: The place of each template. The suffix ``.tmpl`` hides templates from tools for Python code.
_FILES = {
    "README.md.tmpl": "README.md",
    "pyproject.toml.tmpl": "pyproject.toml",
    "test_conformance.py.tmpl": "tests/test_${package}_conformance.py",
    "test_bound.py.tmpl": "tests/test_${package}_bound.py",
    "${variant}.py.tmpl": "$package/__init__.py",
    "${variant}.yaml.tmpl": "$package/example.yaml",
}

_ATTACK_RULES = """
* `release` reads its inputs and the context, nothing else; all randomness comes from `context.seed(...)`.
* Stored releases are recomputed if the version or a file of the package changes. If they are expensive, set
  `revision_only = True` in the class and raise `trial_revision` when releases change. The suite does not use them."""

_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_NAME = 40


def write_plugin(name: str, directory: Path, *, bounds_only: bool = False) -> list[Path]:
    """Write the distribution ``dpspec-NAME`` into a new folder; return its files."""
    substitutions = _words(name) | {"variant": "bounded", "attack_part": "", "attack_rules": ""}
    if not bounds_only:
        substitutions |= {"variant": "attacked", "attack_part": ", and the releases that are attacked"}
        substitutions["attack_rules"] = _ATTACK_RULES
    root = directory / substitutions["distribution"]
    templates = files("dpspec.cli") / "plugin_template"
    texts = {
        root / Template(target).substitute(substitutions): Template(
            (templates / Template(source).substitute(substitutions)).read_text("utf-8")
        ).substitute(substitutions)
        for source, target in _FILES.items()
    }
    try:
        root.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{root} is already there; nothing was written") from None
    except OSError as error:
        raise UsageError(f"cannot write {root}: {error.strerror or error}") from None
    for path, text in texts.items():
        write_new(path, text)
    return list(texts)


def _words(name: str) -> dict[str, str]:
    if not _PLUGIN_NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise UsageError(
            f"invalid plugin name {name!r}: use lower case letters, digits and single hyphens, a letter first, at most "
            f"{_LONGEST_NAME} characters"
        )
    package = "dpspec_" + name.replace("-", "_")
    if importlib.util.find_spec(package) is not None:
        raise UsageError(f"a package {package!r} is already installed; choose another name")
    title = "".join(part.capitalize() for part in name.split("-"))
    return {"kind": name, "package": package, "distribution": f"dpspec-{name}", "title": title}


#: The schema's place in a project.
SCHEMA = Path(".dpspec/spec.schema.json")

#: Excludes the trial store from version control, and not the schema.
_IGNORED = "store/\n"


def write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as out:
            out.write(text)
    except FileExistsError:
        emit(f"kept  {path} (already exists)")
        return
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    emit(f"wrote {path}")


app = typer.Typer(help="Write a spec, a plugin, or a part of a project to start from.", no_args_is_help=True)


@app.command("spec", short_help="Write a spec that runs, to change.")
def new_spec(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The spec's name; its file is NAME.yaml.")],
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", metavar="KIND", help="The mechanism of the example.")
    ] = None,
    folder: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="The folder of the new file.")] = Path(),
    run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="The folder of a recorded run to declare."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="KIND", help="The model instead of the example's.")] = None,
    data: Annotated[str | None, typer.Option(metavar="KIND", help="The dataset instead of the example's.")] = None,
    plugins: Plugins = [],  # noqa: B006 - typer copies it
) -> int:
    """Write NAME.yaml from a mechanism's example or a recorded run, and the schema for editors."""
    from dpspec.cli.specs import spec_schema

    if not _SPEC_NAME.fullmatch(name):
        raise UsageError(f"invalid spec name {quoted(name)}: use letters, digits, dots, dashes and underscores")
    spec_file = folder / f"{name}.yaml"
    if spec_file.exists():
        raise UsageError(f"{spec_file} already exists; choose another name or folder")
    spec_folder = folder.resolve()
    root = next((parent for parent in (spec_folder, *spec_folder.parents) if (parent / SCHEMA).is_file()), spec_folder)
    schema = Path(os.path.relpath(root / SCHEMA, spec_folder))
    if run is not None and (mechanism, model, data) != (None, None, None):
        raise UsageError("--from determines mechanism, model and data: remove --mechanism, --model and --data")
    catalog = load_project([spec_file], plugins)
    if run is not None:
        text = spec_of_run(run, schema=schema, name=name, spec_folder=folder)
    else:
        text = starter_spec(catalog, mechanism, schema=schema, name=name, model=model, data=data)
    if not (root / SCHEMA).is_file():
        write_new(root / SCHEMA, spec_schema(catalog))
        write_new(root / SCHEMA.parent / ".gitignore", _IGNORED)
    write_new(spec_file, text)
    emit(f"\nNext:\n  dpspec validate {spec_file}\n  dpspec run {spec_file}")
    return ExitCode.OK


@app.command("plugin", short_help="Write a plugin whose own tests pass, to change.")
def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The mechanism kind; the package is dpspec-NAME.")],
    folder: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="The folder of the new package.")] = Path(),
    bounds_only: Annotated[bool, typer.Option("--bounds-only", help="An upper bound, without an attack.")] = False,
) -> int:
    """Write the package dpspec-NAME: a small mechanism whose own tests pass once it is installed."""
    write_plugin(name, folder, bounds_only=bounds_only)
    root = folder / f"dpspec-{name}"
    install = shlex.quote(f"{root}[test]")
    example = root / root.name.replace("-", "_") / "example.yaml"
    emit(
        f"\nNext:\n  pip install -e {install}\n  python -m pytest {root}\n  dpspec plugins --check {name}\n"
        f"  dpspec run {example}"
    )
    return ExitCode.OK


#: The suite of each part, its further lines, and the next command.
_PARTS = {
    "model": ("ModelSuite", "", "dpspec new spec audit --model $kind"),
    "dataset": ("DatasetSuite", "", "dpspec new spec audit --data $kind"),
    "backend": (
        "BackendSuite",
        '\n    schemes = frozenset({"poisson"})',
        "dpspec run SPEC --set training.backend=$kind",
    ),
    "report": ("ReporterSuite", "", "dpspec run SPEC --report $kind=FILE"),
}


def write_part(part: str, kind: str, folder: Path) -> str:
    """Write ``dp/NAME.py`` and its tests, add it to ``pyproject.toml``, and return the next command."""
    from dpspec.registry.project import PYPROJECT, table_of

    if not _PLUGIN_NAME.fullmatch(kind) or len(kind) > _LONGEST_NAME:
        raise UsageError(f"invalid name {quoted(kind)}: use lower case letters, digits and single hyphens")
    suite, extra, command = _PARTS[part]
    name = kind.replace("-", "_")
    title = "".join(word.capitalize() for word in kind.split("-"))
    substitutions = {"kind": kind, "name": name, "suite": suite, "title": title, "extra": extra}
    file = f"dp/{name}.py"
    if (folder / file).exists():
        raise UsageError(f"{folder / file} already exists; choose another name")
    templates = files("dpspec.cli") / "part_template"
    for template, path in ((f"{part}.py.tmpl", file), ("test.py.tmpl", f"tests/test_{name}.py")):
        write_new(folder / path, Template((templates / template).read_text("utf-8")).substitute(substitutions))
    configuration, table = folder / PYPROJECT, table_of(folder.resolve())
    if table is not None and table[0] == folder.resolve():
        listed = json.dumps([*table[1], file])
        emit(f"\nSet in {configuration}, table tool.dpspec:\n  plugins = {listed}")
    elif configuration.exists():
        with configuration.open("a", encoding="utf-8") as out:
            out.write(f'\n[tool.dpspec]\nplugins = ["{file}"]\n')
        emit(f"added [tool.dpspec] to {configuration}")
    else:
        write_new(configuration, f'[tool.dpspec]\nplugins = ["{file}"]\n')
    return Template(command).substitute(substitutions)


def _command(part: str) -> Callable[..., int]:
    def new_part(
        name: Annotated[str, typer.Argument(metavar="NAME", help="The kind in specs; the file is dp/NAME.py.")],
        folder: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="The folder of the project.")] = Path(),
    ) -> int:
        following = write_part(part, name, folder)
        emit(f"\nNext:\n  python -m pytest {folder / 'tests'}\n  {following}")
        return ExitCode.OK

    new_part.__doc__ = f"""Write dp/NAME.py, a {part} that works, with its tests, and name it in pyproject.toml."""
    return new_part


for _part in _PARTS:
    app.command(_part, short_help=f"Write a {_part} of this project, to change.")(_command(_part))
