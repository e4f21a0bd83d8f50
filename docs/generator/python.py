"""The pages of the Python interfaces for users and for plugins."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import dpspec
import dpspec.contract as contract
from dpspec import executors
from dpspec.contract import DpspecHooks, attacks, catalog, events, executed, results
from generator.markdown import described, prose, tidy

_PLUGIN = (
    ("Descriptors that hooks yield", ("Mechanism", "Comparison", "Schemas", "Dataset", "Model", "Loss", "Backend")),
    ("", ("Reporter", "Provider", "TrialProvider")),
    ("An audit", ("Audit", "Context", "Spec", "Section", "ThreatModel", "Claim", "AuditOptions", "Facts", "Plan")),
    ("", ("Power", "Trial", "Diagnostic", "Span", "Path")),
    ("Results of an audit", ("Finding", "Scope", "Assumption", "Printed", "Series", "Check", "Evidence", "Outcome")),
    ("Reports", ("Result", "AuditResult", "Verdict", "Conformance", "Unjudged", "Regression")),
    ("Data and models", ("DataSource", "LoadedData", "DataError", "ModelFactory")),
    ("Training", ("TrainingJob", "Trainer", "Observer", "GradientCanaries", "Resumable", "Cancelled", "CAPABILITIES")),
    ("Helpers", ("hookimpl", "hookspec", "HOOK_API", "FrozenMap", "Json", "freeze", "thaw", "format_path")),
    ("", ("phases_of", "in_phase", "other_adjacencies", "untrainable")),
    ("", ("MissingArrayError", "Executor", "DpspecHooks")),
)

#: Decorators of functions of a project, which the page of ``dpspec`` describes.
_DECORATORS = ("backend", "canary", "dataset", "loss", "model", "reporter", "score")

#: Further modules for plugins that are not mechanisms: use and module.
_FURTHER = (
    ("the arguments of `dpspec_event`", events),
    ("executors", executors),
    ("tools that list providers", catalog),
)

#: Descriptions of names that have no docstring, and of a class whose hooks the page already describes.
_WORDS = {
    "hookimpl": "The decorator that makes a function of a plugin's module one of the hooks.",
    "hookspec": "The decorator with which dpspec declares hooks. Plugins do not need it.",
    "DpspecHooks": "The class that declares the hooks above.",
}


def public_page() -> str:
    """The names of ``dpspec`` itself."""
    lines = [
        "# Python\n",
        "All public names of `dpspec`; each is imported on first use. [In a notebook](../how-to/notebook.md) shows "
        "examples. Plugins import [`dpspec.contract`](plugins.md) instead.\n",
    ]
    for name in sorted(dpspec.__all__, key=lambda name: (name.startswith("_"), name[0].isupper(), name)):
        if name == "__version__":
            lines += ["## `__version__`\n", "The version of the distribution, a string.\n"]
        elif name in contract.__all__ and name not in _DECORATORS:
            lines += [f"## `{name}`\n", f"See [the plugin contract](plugins.md#{name.lower()}).\n"]
        else:
            lines += described(name, getattr(dpspec, name), members=name != "Store")
    return tidy("\n".join(lines))


def plugin_page() -> str:
    """The hooks, every name of ``dpspec.contract``, and the names of further modules."""
    lines = [
        "# Hooks and the plugin contract\n",
        "A plugin is a module that an entry point of the group `dpspec` names and that states "
        f"`DPSPEC_API = {contract.HOOK_API}`. It marks its hooks with `dpspec.contract.hookimpl`. "
        "[How to write a plugin](../how-to/write-a-plugin.md) starts from a working one.\n",
        "## Hooks\n",
    ]
    for name, hook in vars(DpspecHooks).items():
        if name.startswith("dpspec_"):
            lines += [f"### `{name}`\n", f"```python\n{_hook(name, hook)}\n```\n", *prose(hook.__doc__)]
    placed = {name for _, names in _PLUGIN for name in names}
    rest = tuple(sorted(set(contract.__all__) - placed - {*_DECORATORS}))
    for heading, names in (*_PLUGIN, *([("Further names", rest)] if rest else [])):
        lines += [f"## {heading}\n"] if heading else []
        for name in names:
            lines += _named(name, contract if name in contract.__all__ else results)
    decorators = ", ".join(f"[`{name}`](python.md#{name})" for name in _DECORATORS)
    lines += ["## Decorators\n", f"For functions of [a project's file](../how-to/own-model.md): {decorators}.\n"]
    lines += [f"## Executed trainings: `{executed.__name__}`\n", f"{prose(executed.__doc__)[0]}\n"]
    for name, thing in vars(executed).items():
        lines += _named(name, executed) if getattr(thing, "__module__", "") == executed.__name__ else []
    lines += _named("Channel", executed)
    lines += [f"## Attacks: `{attacks.__name__}`\n", "The types that `dpspec_attacks` yields and receives.\n"]
    for name in attacks.__all__:
        lines += _named(name, attacks)
    lines += ["## Further modules\n", "For plugins that are not mechanisms; `help(NAME)` describes each name.\n"]
    for use, module in _FURTHER:
        names = ", ".join(f"`{name}`" for name in module.__all__)
        lines.append(f"- `{module.__name__}`, for {use}: {names}")
    return tidy("\n".join(lines))


def _hook(name: str, hook: object) -> str:
    about = inspect.signature(hook)  # type: ignore[arg-type]
    given = [f"{p.name}: {p.annotation}" for p in about.parameters.values() if p.name != "self"]
    return f"@hookimpl\ndef {name}({', '.join(given)}) -> {about.return_annotation}"


def _named(name: str, module: ModuleType) -> list[str]:
    thing = getattr(module, name)
    if name in _WORDS:
        return [f"### `{name}`\n", f"{_WORDS[name]}\n"]
    if inspect.isfunction(thing) or (inspect.isclass(thing) and thing.__module__.startswith("dpspec")):
        return described(name, thing, "###")
    if isinstance(thing, frozenset):
        return [f"### `{name}`\n", f"One of {', '.join(f'`{value}`' for value in sorted(thing))}.\n"]
    return [f"### `{name}`\n", f"```python\n{name} = {_shown(thing)}\n```\n"]


def _shown(thing: object) -> str:
    return re.sub(r"\b(?:typing|dpspec\.\w+\.\w+)\.", "", str(thing))
