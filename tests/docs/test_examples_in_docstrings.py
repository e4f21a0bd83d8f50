"""The examples in docstrings hold, and every public package begins with one, as do modules that guides refer to."""

import doctest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import dpspec

ROOT = Path(dpspec.__path__[0])
PLUGINS = Path(__file__).parents[2] / "plugins"

#: Packages and modules whose names engineers use from outside.
PUBLIC = (
    "accounting",
    "contract",
    "data",
    "kit",
    "kit.blocks",
    "kit.trials",
    "reporters.blocks",
    "sampling",
    "stats",
    "stats.attacks.curve_lines",
    "stats.attacks.evidence_tests",
    "stats.attacks.thresholds",
    "stats.conformance.table",
    "stats.utility",
    "testing",
    "training",
    "training.canaries",
    "training.loop.native",
    "training.measure.run_evidence",
)


def modules() -> Iterator[str]:
    """The modules of dpspec and its plugins with an example."""
    for root in (ROOT, *sorted(PLUGINS.glob("dpspec_*"))):
        for path in sorted(root.rglob("*.py")):
            if "\n>>> " in (text := path.read_text(encoding="utf-8")) or "    >>> " in text:
                yield ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", sorted(modules()))
def test_the_examples_of_a_module_hold(name: str) -> None:
    results = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("package", PUBLIC)
def test_a_public_package_begins_with_an_example(package: str) -> None:
    text = import_module(f"dpspec.{package}").__doc__ or ""
    assert doctest.DocTestParser().get_examples(text)
