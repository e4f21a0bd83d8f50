"""Audits the mechanism ``conformdemo``: a count, released with Laplace noise."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

import dpspec.contract as dps

DPSPEC_API = 1

MECHANISM = {
    "type": "object",
    "properties": {
        "scale": {
            "type": "number",
            "minimum": 1e-3,
            "maximum": 1e6,
            "description": "Scale of the Laplace noise that is added to the count; its mean absolute value.",
        },
        "label": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "The class whose records are counted.",
        },
    },
    "required": ["scale"],
    "additionalProperties": False,
}

#: Fragments may narrow core's own keys to what is supported, and add keys.
THREAT_MODEL = {
    "type": "object",
    "properties": {
        "adjacency": {"enum": ["add-remove"], "description": "Which data sets are neighbours."},
    },
    "additionalProperties": False,
}

AUDIT = {
    "type": "object",
    "properties": {
        "method": {"enum": ["many-run"], "description": "Many releases with the group of records, and many without."},
        "releases": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000000,
            "default": 2000,
            "description": "How many counts each run releases with the group of records, and how many without.",
        },
    },
    "additionalProperties": False,
}


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    """The mechanism kind ``conformdemo``."""
    yield dps.Mechanism(
        kind="conformdemo",
        summary="How many records carry a label, with Laplace noise",
        schemas=dps.Schemas(mechanism=MECHANISM, threat_model=THREAT_MODEL, audit=AUDIT),
        claims=frozenset({"pure-dp", "approx-dp"}),
        audit="dpspec_conformdemo.audit:ConformdemoAudit",
        example=files(__name__).joinpath("example.yaml").read_text(encoding="utf-8"),
        steps=False,
    )
