"""Writes a plugin to start from: a small real mechanism whose own tests pass as soon as it is installed."""

from __future__ import annotations

import importlib.util
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from dpspec.errors import UsageError

#: Where each template goes. The suffix ``.tmpl`` keeps tools from taking templates for code.
_FILES = {
    "README.md.tmpl": "README.md",
    "pyproject.toml.tmpl": "pyproject.toml",
    "init.py.tmpl": "$package/__init__.py",
    "example.yaml.tmpl": "$package/example.yaml",
    "mechanism.py.tmpl": "$package/mechanism.py",
    "theory.py.tmpl": "$package/theory.py",
    "audit.py.tmpl": "$package/audit.py",
    "test_conformance.py.tmpl": "tests/test_${package}_conformance.py",
    "test_theory.py.tmpl": "tests/test_${package}_theory.py",
}

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40

#: The entry point of what comes with dpspec.
_TAKEN = "builtin"


def write_plugin(name: str, directory: Path) -> list[Path]:
    """Write the distribution ``dpspec-NAME`` into the new folder ``directory/dpspec-NAME``; returns its files.

    ``name`` becomes the mechanism kind, ``dpspec_NAME`` the package. Nothing is overwritten.

    Raises ``UsageError`` for a name that will not do, a folder that exists, or one that cannot be written.
    """
    words = _words(name)
    root = directory / words["distribution"]
    templates = files("dpspec.templates") / "plugin"
    texts = {
        root / Template(place).substitute(words): Template((templates / source).read_text("utf-8")).substitute(words)
        for source, place in _FILES.items()
    }
    try:
        root.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{root} is already there; nothing was written") from None
    except OSError as error:
        raise UsageError(f"cannot write {root}: {error.strerror or error}") from None
    for path, text in texts.items():
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    return list(texts)


def _words(name: str) -> dict[str, str]:
    """What the placeholders stand for; raises ``UsageError`` for a name that will not do."""
    if name.startswith("dpspec-"):
        raise UsageError(f"leave out the prefix: the plugin {name.removeprefix('dpspec-')!r} is packaged as {name!r}")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise UsageError(
            f"{name!r} is no name for a plugin: lower case letters, digits and single hyphens, "
            f"a letter first, at most {_LONGEST} characters"
        )
    if name == _TAKEN:
        raise UsageError(f"{name!r} is the name of what comes with dpspec; choose another one")
    package = "dpspec_" + name.replace("-", "_")
    if importlib.util.find_spec(package) is not None:
        raise UsageError(f"a package {package!r} is already installed; choose another name")
    title = "".join(part.capitalize() for part in name.split("-"))
    return {"kind": name, "package": package, "distribution": f"dpspec-{name}", "title": title}
