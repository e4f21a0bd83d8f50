"""The names of the tools for plugins, and their parameters, are those of the last release, or have old names.

``public_names.json`` lists the last release; ``python tests/support/surface.py`` prints the present names.
"""

import inspect
import json
import sys
import types
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.surface import surface

from dpspec import __version__, renames
from dpspec.accounting import (
    DoubleMixture,
    Mixture,
    PrivacyLoss,
    RandomAllocation,
    TruncatedPoisson,
    largest_sum_pair,
    sampled_gaussian_rdp,
)
from dpspec.renames import RENAMED, RENAMED_ARGUMENTS, Rename, expired, old_names

RELEASED = json.loads(Path(__file__).with_name("public_names.json").read_text())
PRESENT = surface()


def with_new_names(parameters: list[list[Any]] | None, name: str) -> list[list[Any]] | None:
    """Parameters of the last release, by the names that they have now."""
    new = {old: rename.new for old, rename in RENAMED_ARGUMENTS.get(name, {}).items()}
    return parameters and [[new.get(parameter, parameter), *rest] for parameter, *rest in parameters]


def problem(released: list[list[Any]] | None, present: list[list[Any]] | None) -> str:
    """Why a call that the release accepts may fail now; empty if none may."""
    if released is None or present is None:
        return "" if released is None else "can no longer be called"
    names = {name: (kind, optional) for name, kind, optional in present}
    takes_any = any(kind == "VAR_KEYWORD" for _, kind, _ in present)
    for name, kind, optional in released:
        if name not in names:
            if not (takes_any or kind in ("VAR_POSITIONAL", "VAR_KEYWORD", "POSITIONAL_ONLY")):
                return f"lost the parameter {name}"
        elif optional and not names[name][1] and names[name][0] not in ("VAR_POSITIONAL", "VAR_KEYWORD"):
            return f"requires {name}"
    before = {name for name, *_ in released}
    added = [
        n for n, (kind, optional) in names.items() if n not in before and not optional and not kind.startswith("VAR")
    ]
    positional = [n for n, kind, _ in released if kind == "POSITIONAL_OR_KEYWORD" and n in names]
    order = [n for n in names if n in positional]
    return f"requires the new {', '.join(added)}" if added else "" if order == positional else "has another order"


@pytest.mark.parametrize("module", sorted(RELEASED))
def test_names_and_parameters_of_the_last_release_stay(module: str) -> None:
    renamed, problems = RENAMED.get(module, {}), []
    for name, released in RELEASED[module].items():
        if name in renamed:
            continue
        present = PRESENT[module].get(name)
        if present is None:
            if hasattr(sys.modules[module], name):  # a tool that is no longer listed, and still importable
                continue
            problems.append(f"{name} is gone: keep it in RENAMED of dpspec/renames.py")
            continue
        problems += [
            f"{name} {p}"
            for p in [problem(with_new_names(released["parameters"], f"{module}.{name}"), present["parameters"])]
            if p
        ]
        for method, parameters in released["methods"].items():
            if method not in present["methods"]:
                # The suites' tests may move among classes: what counts is that the class still has them.
                inherited = hasattr(getattr(sys.modules[module], name), method)
                problems += [] if inherited else [f"{name}.{method} is gone"]
            elif p := problem(with_new_names(parameters, f"{module}.{name}.{method}"), present["methods"][method]):
                problems.append(f"{name}.{method} {p}")
    assert problems == []


@pytest.mark.parametrize(
    ("released", "present", "says"),
    [
        ([["a", "POSITIONAL_OR_KEYWORD", False]], [], "lost the parameter a"),
        ([], [["a", "KEYWORD_ONLY", False]], "requires the new a"),
        ([["a", "KEYWORD_ONLY", True]], [["a", "KEYWORD_ONLY", False]], "requires a"),
        ([["a", "KEYWORD_ONLY", True]], [["a", "KEYWORD_ONLY", True], ["b", "KEYWORD_ONLY", True]], ""),
        ([], None, "can no longer be called"),
    ],
)
def test_broken_calls_are_found(released: Any, present: Any, says: str) -> None:
    assert problem(released, present) == says


def test_old_names_give_the_new_object_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("renamed_module")
    module.new = object()  # type: ignore[attr-defined]
    module.__getattr__ = old_names("renamed_module")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "renamed_module", module)
    monkeypatch.setattr(renames, "RENAMED", {"renamed_module": {"old": Rename("new", (0, 3))}})
    monkeypatch.setattr(renames, "RENAMED_ARGUMENTS", {})
    with pytest.warns(DeprecationWarning, match="renamed_module.old is now new; the old name works up to dpspec 0.4"):
        assert module.old is module.new  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        _ = module.other
    assert [list(expired(version)) for version in ((0, 4), (0, 5), (1, 0))] == [
        [],
        ["renamed_module.old"],
        ["renamed_module.old"],
    ]


#: A call by old names, the same by new ones, and an attribute that both have.
CALLS = [
    (lambda: Mixture.poisson(k=2, q=0.1, sigma=1.5), lambda: Mixture.poisson(2, 0.1, 1.5), "key"),
    (lambda: Mixture([1.0], [1.0], sigma=2.0), lambda: Mixture([1.0], [1.0], 2.0), "noise_multiplier"),
    (lambda: Mixture.fixed(k=1, n=9, batch_size=3, sigma=1.5), lambda: Mixture.fixed(1, 9, 3, 1.5), "key"),
    (lambda: Mixture.full(k=3, sigma=1.5), lambda: Mixture.full(3, 1.5), "key"),
    (lambda: DoubleMixture.poisson(1, 2, q=0.1, sigma=1.5), lambda: DoubleMixture.poisson(1, 2, 0.1, 1.5), "key"),
    (lambda: TruncatedPoisson(k=1, rate=0.1, cap=4, n=9, sigma=1.5), lambda: TruncatedPoisson(1, 0.1, 4, 9, 1.5), "n"),
    (lambda: RandomAllocation(9, sigma=1.5, members=2), lambda: RandomAllocation(9, 1.5, 2), "key"),
    (
        lambda: largest_sum_pair(4, sigma=1.5, present=1.0, absent=0.0),
        lambda: largest_sum_pair(4, 1.5, 1.0, 0.0),
        "key",
    ),
    (lambda: PrivacyLoss.gaussian(sigma=2.0), lambda: PrivacyLoss.gaussian(2.0), "direction"),
]


@pytest.mark.parametrize(("old", "new", "attribute"), CALLS)
def test_old_arguments_mean_the_new_ones_with_a_warning(old: Any, new: Any, attribute: str) -> None:
    with pytest.warns(DeprecationWarning, match=r"the argument (k|q|sigma|members) of dpspec\.accounting\..* is now"):
        by_old_names = old()
    assert getattr(by_old_names, attribute) == getattr(new(), attribute)


def test_old_attributes_warn_and_two_names_of_one_argument_are_refused() -> None:
    step = TruncatedPoisson(1, 0.1, 4, 9, 1.5)
    with pytest.warns(DeprecationWarning, match=r"dpspec.accounting.TruncatedPoisson.sigma is now noise_multiplier"):
        assert step.sigma == 1.5  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="got both sigma and noise_multiplier"):
        Mixture.full(3, sigma=1.5, noise_multiplier=1.5)  # type: ignore[call-arg]


def test_each_renamed_argument_exists() -> None:
    for name, renames_of_name in RENAMED_ARGUMENTS.items():
        package, *path = name.removeprefix("dpspec.").split(".")
        found: Any = import_module(f"dpspec.{package}") if path else import_module("dpspec")
        for part in path or [package]:
            found = getattr(found, part)
        names = set(inspect.signature(found).parameters)
        assert {rename.new for rename in renames_of_name.values()} <= names, name
        assert not names & set(renames_of_name), name


@pytest.mark.parametrize(("spec_name", "pair_name"), [("remove", "present-first"), ("add", "absent-first")])
def test_directions_have_the_names_of_specs(spec_name: Any, pair_name: Any) -> None:
    pair = Mixture.poisson(1, 0.1, 1.0)
    assert PrivacyLoss.of(pair, spec_name) == PrivacyLoss.of(pair, pair_name)
    assert PrivacyLoss.of(pair).rero(0.1, direction=spec_name) == PrivacyLoss.of(pair).rero(0.1, direction=pair_name)
    assert pair.log_delta_bounds(1.0, pair_name)[0] <= PrivacyLoss.of(pair, spec_name).delta(1.0).upper
    assert (sampled_gaussian_rdp(4.0, 0.1, 1.0, spec_name) == sampled_gaussian_rdp(4.0, 0.1, 1.0, pair_name)).all()
    with pytest.raises(ValueError, match="direction must be one of remove, add, both, got 'away'"):
        PrivacyLoss.of(pair, "away")  # type: ignore[arg-type]


@pytest.mark.parametrize("module", sorted(RENAMED))
def test_modules_with_old_names_find_them(module: str) -> None:
    with warnings.catch_warnings(), pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        getattr(sys.modules[module], "no_such_name")  # noqa: B009


def test_no_old_name_outlives_its_promise() -> None:
    major, minor, *_ = __version__.split(".")
    assert list(expired((int(major), int(minor)))) == []
