"""The names of checks, assumptions and channels in reports, with their meanings."""

from collections.abc import Iterator
from typing import Any

from dpspec.contract import Assumption
from dpspec.contract.catalog import Catalog
from dpspec.registry.loader import resolve
from dpspec.reporters.words import sentence
from dpspec.text import joined

#: The property that each conformance test checks, by the name of its assumption.
CHECKED = {
    "noise-scale": "scale of the noise",
    "per-layer-noise": "equal noise in all layers",
    "independent-noise": "new noise at each step",
    "clipping": "limit on each record",
    "sampling": "sampling of records",
    "steps": "number of steps",
    "update": "no other term in the update",
    "sensitivity": "contribution of one record",
    "data-independent-hyperparameters": "fixed constants",
    "accounting": "steps and noise that the accountant counted",
    "canaries": "scores of all inserted canaries",
    "nothing-unseen": "canaries within the certified bound",
    "gap": "gap between the mixed models",
    "mixing-weights": "weights of the mixture",
    "hidden-weights": "weights that stay secret",
    "one-hot-worst": "no test can check this assumption",
    "constants": "constants of the proof",
    "collection": "data within the declared limits",
    "released": "published values",
    "public-count": "number of records",
    "radius": "size of the records",
}

#: Terms of reports.
TERMS = {
    "certified": "the rigor of an inequality that is true including rounding errors",
    "conformance": "the comparison of the executed run with its declaration: no-deviation-found, deviates, "
    "checks-missing, or not-run if no code was trained",
    "direction": "the ordered pair of neighbors: a dataset with the record against the one without (remove), or the "
    "reverse (add)",
    "finding": "a number with quantity, conditions, rigor, scope, method, source and assumptions",
    "interval": "two ends that enclose a number: no smaller value than the lower end can be proved, because a pair of "
    "neighboring datasets attains it; the upper end is proved. A claim above the upper end is proved, one below the "
    "lower end is refuted",
    "rigor": "the strength of a number: certified (true, including rounding errors), theorem (a proved formula in "
    "float64), statistical (true at the stated confidence), or approximate (no guarantee)",
    "scope": "the neighbors, group, access, adversary and datasets for which a number holds",
}

#: Core's modules with assumptions as values, or with their texts by name in TEXTS.
_MODULES = (
    "dpspec.engine.recorded.channels",
    "dpspec.kit.findings",
    "dpspec.kit.users",
    "dpspec.kit.scores_elsewhere",
    "dpspec.engine.preparing.assumptions",
    "dpspec.engine.selection",
)


def printed_names(catalog: Catalog) -> dict[str, list[str]]:
    """By name, one block per meaning: a line with kind and name, then lines of text."""
    from dpspec.engine.recorded.channels import KINDS, channel_of

    found: dict[str, list[str]] = {}
    for name, kind in KINDS.items():
        of_channel = joined([own for own in kind.names if own != name]) or f"all called {name}"
        text = f"Channel by which records can reach a recorded model; requirement: {kind.text}"
        found.setdefault(name, []).append(f"channel {name}\n{text}.\nIts checks and assumptions: {of_channel}.")
    for name, text in CHECKED.items():
        found.setdefault(name, []).append(f"check {name}\n{sentence(text)}.")
    for name, text in TERMS.items():
        found.setdefault(name, []).append(f"term {name}\n{sentence(text)}.")
    for name, text in dict.fromkeys(_assumptions(catalog)):
        found.setdefault(name, []).append(f"assumption {name}\n{sentence(text)}.")
    for name in (name for kind in KINDS.values() for name in kind.names if name not in found):
        found[name] = [f"check {name}\nA check of recorded runs, in the channel {channel_of(name)}."]
    return found


def _assumptions(catalog: Catalog) -> Iterator[tuple[str, str]]:
    from dpspec.accounting import library_accuracy

    of_plugins = (name for offered in catalog.mechanisms.values() for name in offered.provider.assumptions)
    for name in (*_MODULES, *of_plugins):
        module: Any = resolve(f"{name}:__dict__")
        yield from module.get("TEXTS", {}).items()
        for value in module.values():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Assumption):
                    yield one.name, one.text
    stated = library_accuracy()
    yield stated.name, stated.text
