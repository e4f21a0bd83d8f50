"""Functions of the kit for mechanisms with a custom audit."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import dpspec.contract as dps
from dpspec import kit
from dpspec.stats import binomial
from dpspec.stats.attacks import thresholds


def claim(kind: str, options: dict[str, Any], size: int = 1) -> dps.Claim:
    given: dict[str, Any] = {"adjacency": "add-remove", "access": "all-iterates", "direction": "both"}
    return dps.Claim(id=kind, kind=kind, options=dps.FrozenMap(options), group_size=size, **given)


@pytest.mark.parametrize(
    ("claims", "options", "deltas"),
    [
        ((), {}, [1e-5]),
        ((), {"default": None}, []),
        ((), {"default": 1e-6}, [1e-6]),
        ((("approx-dp", 1, 1e-3), ("approx-dp", 4, 1e-7), ("approx-dp", 1, 1e-3)), {}, [1e-7, 1e-3]),
        ((("approx-dp", 1, 1e-3), ("approx-dp", 4, 1e-7)), {"group_size": 4}, [1e-7]),
        ((("approx-dp", 1, 1e-3), ("approx-dp", 4, 1e-7)), {"group_size": 2}, [1e-7, 1e-3]),
        ((("per-instance-dp", 1, 1e-3), ("approx-dp", 1, 1e-4)), {}, [1e-4, 1e-3]),
        ((("a-kind-of-ones-own", 1, 1e-3),), {}, [1e-3]),
        ((("metric", 1, 1e-3),), {}, [1e-5]),
    ],
)
def test_claimed_deltas(claims: Any, options: dict[str, Any], deltas: list[float]) -> None:
    spec: Any = SimpleNamespace(claims=[claim(kind, {"delta": delta}, size) for kind, size, delta in claims])
    assert kit.claimed_deltas(spec, **options) == deltas


@pytest.mark.parametrize(
    ("claims", "fprs"),
    [
        ((), []),
        ((("approx-dp", {"epsilon": 1.0, "delta": 1e-5}), ("membership", {"advantage": 0.1})), []),
        ((("membership", {"fpr": 0.1, "tpr": 0.2}), ("membership", {"fpr": 0.1, "tpr": 0.3})), [0.1]),
        (
            (("tradeoff", {"points": [{"fpr": 0.5, "tpr": 1.0}, {"fpr": 0.0, "tpr": 0.1}, {"fpr": 1, "tpr": 1}]}),),
            [0.5, 1.0],
        ),
        (
            (("a-kind-of-ones-own", {"fpr": 0.01, "advantage": 0.1}), ("membership", {"fpr": 1e-3, "tpr": 1.0})),
            [1e-3, 0.01],
        ),
        ((("metric", {"name": "accuracy", "fpr": 0.2}),), []),
    ],
)
def test_claimed_fprs(claims: tuple[tuple[str, dict[str, Any]], ...], fprs: list[float]) -> None:
    assert kit.claimed_fprs([claim(*one) for one in claims]) == fprs


def test_assumptions_have_texts_of_a_mechanisms_own() -> None:
    own = kit.dp_sgd_assumptions(clipping="no record moves a step by more than the sensitivity")
    assert [a.name for a in own] == [a.name for a in kit.ASSUMPTIONS]
    assert [a.name for a, b in zip(own, kit.ASSUMPTIONS, strict=True) if a.text != b.text] == ["clipping"]
    assert {a.status for a in own} == {"declared"}
    with pytest.raises(ValueError, match=r"unknown assumptions noise \(valid: noise-scale"):
        kit.dp_sgd_assumptions(noise="none")


def evidence(**changes: Any) -> dps.Evidence:
    values: dict[str, Any] = {
        "id": "many-run",
        "kind": "many-run-ranked",
        "statistics": dps.FrozenMap({"outcomes": "0" * 40 + "1" * 40}),
        "scope": dps.Scope(data="this"),
        "method": "an attack",
        "source": "a paper",
        "at": dps.FrozenMap({"group_size": 2}),
        "assumptions": (kit.COINS,),
    }
    return dps.Evidence(**{**values, **changes})


def test_a_lower_bound_from_evidence() -> None:
    found = kit.lower_from(evidence(), 0.95, delta=1e-3)
    assert found.value == thresholds.epsilon_lower("0" * 40 + "1" * 40, 1e-3, 0.95) > 0
    assert (found.quantity, found.bound, found.rigor, found.confidence) == ("epsilon", "lower", "statistical", 0.95)
    assert found.at == {"delta": 1e-3, "group_size": 2}
    assert found.assumptions == (kit.COINS,)
    other = kit.lower_from(evidence(at=dps.FrozenMap({"delta": 1e-3})), 0.95, method="80 runs", assumptions=())
    assert (other.value, other.method, other.assumptions, other.at) == (found.value, "80 runs", (), {"delta": 1e-3})


def test_a_lower_bound_on_a_success_rate() -> None:
    counted = evidence(
        kind="binomial", quantity="gamma", statistics=dps.FrozenMap({"trials": 50, "successes": 20}), at=dps.FrozenMap()
    )
    assert kit.lower_from(counted, 0.95).value == binomial.lower(20, 50, 0.95)
    with pytest.raises(ValueError, match="gives no lower bound"):
        kit.lower_from(evidence(kind="average", quantity="gamma"), 0.95)
    with pytest.raises(ValueError, match="give delta"):
        kit.lower_from(evidence(), 0.95)


def test_a_series_from_rows() -> None:
    columns = kit.columns_of(("k", "epsilon"), [(1, 0.5), (2, float("inf"))])
    made = kit.series(
        "name", "Title", columns, rigor="certified", source="here", x="k", y=["epsilon"], upper=["epsilon"]
    )
    assert made.columns == {"k": (1, 2), "epsilon": (0.5, None)}
    assert made.units == {"k": "", "epsilon": ""}
    assert made.bounds == {"epsilon": "upper"}
    assert made.plot == {"x": "k", "y": ("epsilon",)}
    assert kit.series("name", "Title", columns, rigor="approximate", source="here").plot == {}
    with pytest.raises(ValueError, match="zip"):
        kit.columns_of(("k", "epsilon"), [(1,)])


@dataclass(frozen=True)
class Own(kit.Options):
    size: int

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Own:
        return cls(size=int(block["mechanism"]["size"]) if "mechanism" in block else int(block["size"]))


def test_options_of_a_block_are_made_once_and_alike_from_a_plain_mapping() -> None:
    block = dps.FrozenMap({"size": 3})
    assert Own.of(block) is Own.of(block)
    assert Own.of({"size": 3}) == Own.of(block) == Own(3)
    with pytest.raises(KeyError, match="size"):
        Own.of({})


@dataclass(frozen=True, kw_only=True)
class Inner(kit.Options):
    sizes: tuple[int, ...] = ()
    written: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer(kit.Options):
    scale: float
    name: str = "none"
    on: bool = False
    mode: Literal["a", "b"] = "a"
    most: int | None = None
    inner: Inner | None = None
    block: dps.FrozenMap | None = None


def test_fields_of_options_are_read_from_keys_of_their_names() -> None:
    assert Outer.of({"scale": 2}) == Outer(scale=2.0)
    assert type(Outer.of({"scale": 2}).scale) is float
    block = {
        "scale": 1,
        "on": True,
        "mode": "b",
        "most": 3,
        "inner": {"sizes": [1, 2], "written": [8.0]},
        "block": {"x": 1},
        "other": 0,
    }
    read = Outer.of(block)
    inner = Inner(sizes=(1, 2), written=(8.0,))
    assert read == Outer(scale=1.0, on=True, mode="b", most=3, inner=inner, block=dps.FrozenMap({"x": 1}))
    assert Outer.of({"scale": 1, "most": None, "inner": None}) == Outer(scale=1.0)
    assert Outer.fill({"scale": 1, "name": "x"}, name="given").name == "given"
    with pytest.raises(TypeError, match="scale"):
        Outer.of({})
