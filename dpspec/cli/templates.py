"""Files of new plugins and of new parts of a project, from the templates in this package."""

import importlib.util
import json
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from dpspec.cli.output import emit
from dpspec.errors import UsageError
from dpspec.text import quoted

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
    substitutions |= {"trend_names": "decreasing", "other_trends": ""}
    if not bounds_only:
        substitutions |= {"variant": "attacked", "attack_part": ", and the releases that are attacked"}
        substitutions["attack_rules"] = _ATTACK_RULES
        substitutions["trend_names"] = "constant, decreasing"
        substitutions["other_trends"] = '\n        "mechanism.label": constant(0, 1),'
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


#: The density of a noise in its tests.
_DENSITY = """

    def log_density(self, z):
        \"\"\"From the definition, and not from the code.\"\"\"
        import numpy as np

        return -z - 2.0 * np.logaddexp(0.0, -z)"""

#: The suite of each part, its further lines, and the next command.
PARTS = {
    "model": ("ModelSuite", "", "dpspec new spec audit --model $kind"),
    "loss": ("LossSuite", "", "dpspec run SPEC --set training.loss=$kind"),
    "dataset": ("DatasetSuite", "", "dpspec new spec audit --data $kind"),
    "backend": (
        "BackendSuite",
        '\n    schemes = frozenset({"poisson"})',
        "dpspec run SPEC --set training.backend=$kind",
    ),
    "report": ("ReporterSuite", "", "dpspec run SPEC --report $kind=FILE"),
    "sampling-scheme": (
        "SamplingSchemeSuite",
        '\n    options = {"epoch_steps": 4}',
        "dpspec run SPEC --set 'mechanism.sampling={scheme: $kind, epoch_steps: 10}'",
    ),
    "noise": (
        "NoiseSuite",
        _DENSITY,
        "dpspec run SPEC --set 'mechanism.releases=[{kind: noise, noise: $kind, scale: 10}]'",
    ),
    "attack-method": ("AttackMethodSuite", "", "dpspec plugins --check $kind"),
}


def write_part(part: str, kind: str, folder: Path) -> str:
    """Write ``dp/NAME.py`` and its tests, add it to ``pyproject.toml``, and return the next command."""
    from dpspec.registry.project import PYPROJECT, table_of

    if not _PLUGIN_NAME.fullmatch(kind) or len(kind) > _LONGEST_NAME:
        raise UsageError(f"invalid name {quoted(kind)}: use lower case letters, digits and single hyphens")
    suite, extra, command = PARTS[part]
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
