"""The mechanism ``selection`` as a light value: the best of several runs on the same data, published.

Specs come by it where a claim is ``over: matrix``; one may also be written by hand.
"""

from __future__ import annotations

from dpspec.contract import Json, Mechanism, Schemas
from dpspec.language.blocks import CELL_BLOCKS, CLAIM_KIND, SELECTION, core

_OF_A_CELL = {
    "mechanism": "The mechanism of the cell, as in a spec.",
    "model": "The architecture of the cell.",
    "training": "The training of the cell; default: the spec's.",
    "threat_model": "The threat model of the cell, with the keys of its mechanism; default: the spec's.",
}

_SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "cells": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1000,
            "description": "The runs whose best result is published, each with all parameters of its privacy.",
            "items": {
                "type": "object",
                "description": "One of the runs.",
                "properties": {key: {"type": "object", "description": _OF_A_CELL[key]} for key in CELL_BLOCKS},
                "required": ["mechanism"],
                "additionalProperties": False,
            },
        },
        "tries": core("spec")["properties"]["tuning"]["properties"]["tries"],
    },
    "required": ["cells"],
    "additionalProperties": False,
}

EXAMPLE = """\
dpspec: 1
name: selection-example
description: DP-SGD at three noises on the same data, of which the best is published

mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.05}
  steps: 100

data: {kind: declared, records: 1000, features: 16, classes: 2}

matrix: {mechanism.noise_multiplier: [1.0, 1.5, 2.0]}

claims:
  - {id: best, kind: approx-dp, epsilon: 6.0, delta: 1e-5, over: matrix}
"""

SELECTION_MECHANISM = Mechanism(
    kind=SELECTION,
    summary="The best of several runs on the same data, chosen by their releases and published",
    description="choosing the best of several trainings",
    schemas=Schemas(mechanism=_SCHEMA),
    claims=frozenset({CLAIM_KIND}),
    audit="dpspec.engine.selection.audit:SelectionAudit",
    example=EXAMPLE,
    steps=False,
    units=frozenset({"record", "user"}),
    missing=True,
    tokens=True,
    chosen_weights=True,
)
