"""A catalog of made-up providers and a short way to load specs with it, so that these tests need no plugin."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import dpspec.contract as dps
from dpspec.contract.catalog import BrokenPlugin, Catalog, Offered
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING
from dpspec.language.load import Loaded, load_specs

VALID = """\
dpspec: 1
name: valid
description: a spec with nothing wrong

mechanism:
  kind: noisy
  noise_multiplier: 1
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.01}
  steps: 100

data: {kind: toy}
model: {kind: net}
training: {backend: native, learning_rate: 1}

threat_model:
  access: all-iterates
  group_size: [1, 4]

claims:
  - {id: one, kind: approx-dp, epsilon: 3, delta: 1e-5}
  - {kind: gdp, mu: 1.5, group_size: 4, expect: [open, refuted]}

audit:
  method: one-run
  canary: {space: gradient, kind: orthogonal, count: 100}
  seed: 7
"""


def _block(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


NOISY = dps.Mechanism(
    kind="noisy",
    summary="an iterative mechanism of these tests",
    schemas=dps.Schemas(
        mechanism=_block(
            ["noise_multiplier", "clip_norm", "sampling"],
            noise_multiplier=NOISE_MULTIPLIER,
            clip_norm=CLIP_NORM,
            sampling=SAMPLING,
            noise_on={"enum": ["sum", "mean"], "default": "sum", "description": "What the noise is added to."},
        ),
        threat_model=_block(collection={"type": "object", "description": "Declared facts of all data sets."}),
        audit=_block(
            canary={
                "type": "object",
                "properties": {
                    "kind": {"enum": ["orthogonal", "random"]},
                    "norm": {"type": "number", "default": 2, "description": "The norm of a canary."},
                },
                "required": ["space", "count"],
            },
            depth={"type": "integer", "default": 3, "description": "How deep the attack looks."},
        ),
        claims={
            "approx-dp": _block(note={"type": "string", "description": "A remark."}),
            "fairness": _block(["gap"], gap={"type": "number", "minimum": 0, "description": "The largest gap."}),
        },
    ),
    claims=frozenset(
        {"approx-dp", "pure-dp", "renyi-dp", "gdp", "tradeoff", "rero", "per-instance-dp", "membership", "fairness"}
    ),
    audit="nowhere:Nothing",
    example=VALID,
)

SINGLE = dps.Mechanism(
    kind="single",
    summary="a mechanism without steps",
    schemas=dps.Schemas(mechanism=_block(["scale"], scale={"type": "number", "description": "The noise's scale."})),
    claims=frozenset({"pure-dp", "metric"}),
    audit="nowhere:Nothing",
    example=VALID,
    steps=False,
)

TOY = dps.Dataset(
    kind="toy",
    summary="a data set of these tests",
    schema=_block(
        size={"type": "integer", "default": 10, "description": "How many records."},
        radius={"type": "number", "description": "The largest norm of a record."},
    ),
    source="nowhere:Toy",
)
NET = dps.Model(
    kind="net",
    summary="a model of these tests",
    schema=_block(
        hidden={
            "type": "array",
            "items": {"type": "integer", "minimum": 1, "description": "A width."},
            "default": [8],
            "description": "The widths of the hidden layers.",
        }
    ),
    factory="nowhere:Net",
)
NATIVE = dps.Backend(
    kind="native",
    summary="the backend of these tests",
    schema=_block(momentum={"type": "number", "default": 0, "description": "The share of the last update."}),
    capabilities=frozenset(),
    trainer="nowhere:Trainer",
)


def _offers(*providers: Any) -> dict[str, Offered]:
    return {p.kind: Offered(provider=p, plugin="tests", distribution="tests", version="1") for p in providers}


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    broken = BrokenPlugin(
        plugin="wreck", distribution="dpspec-wreck", version="0.3", reason="ImportError: no hull", kinds=("wrecked",)
    )
    return Catalog(
        mechanisms=_offers(NOISY, SINGLE),
        datasets=_offers(TOY),
        models=_offers(NET),
        backends=_offers(NATIVE),
        broken=(broken,),
    )


@pytest.fixture
def valid() -> str:
    return VALID


Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> Load:
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes, *overrides: str, **others: str) -> Loaded:
        for name, other in others.items():
            Path(f"{name}.yaml").write_text(other, encoding="utf-8")
        Path("spec.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        return load_specs([Path("spec.yaml")], catalog, overrides)

    return run


@pytest.fixture
def problems(load: Load, valid: str) -> Callable[..., list[tuple[str, str, str | None]]]:
    def run(*replacements: str) -> list[tuple[str, str, str | None]]:
        text = valid
        for old, new in zip(replacements[::2], replacements[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        return [(d.code, d.message, d.help) for d in load(text).diagnostics]

    return run
