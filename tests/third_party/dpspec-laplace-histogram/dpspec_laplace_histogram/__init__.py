"""Audits histograms released with Laplace noise: what a mechanism and a backend outside dpspec look like."""

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
            "description": "Scale of the Laplace noise on every count; its mean absolute value.",
        }
    },
    "required": ["scale"],
    "additionalProperties": False,
}

THREAT_MODEL = {
    "type": "object",
    "properties": {
        "adjacency": {"enum": ["add-remove", "replace-one"], "description": "Which data sets are neighbours."}
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
            "maximum": 100_000,
            "default": 1000,
            "description": "How many histograms each run releases with the group of records, and how many without.",
        },
    },
    "additionalProperties": False,
}

NO_OPTIONS = {"type": "object", "properties": {}, "additionalProperties": False}


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    """The mechanism."""
    yield dps.Mechanism(
        kind="laplace-histogram",
        summary="How many records each class has, with Laplace noise",
        schemas=dps.Schemas(mechanism=MECHANISM, threat_model=THREAT_MODEL, audit=AUDIT),
        claims=frozenset({"pure-dp", "approx-dp"}),
        audit="dpspec_laplace_histogram.audit:LaplaceHistogramAudit",
        example=files(__name__).joinpath("example.yaml").read_text(encoding="utf-8"),
        steps=False,
    )


@dps.hookimpl
def dpspec_backends() -> Iterable[dps.Backend]:
    """Who releases: the right way, and a wrong one for the control."""
    yield dps.Backend(
        kind="laplace-histogram",
        summary="Releases histograms with the declared noise",
        schema=NO_OPTIONS,
        capabilities=frozenset({"iterates"}),
        trainer="dpspec_laplace_histogram.backend:Releases",
    )
    yield dps.Backend(
        kind="careless-histogram",
        summary="Releases histograms with noise for half of what a replaced record changes",
        schema=NO_OPTIONS,
        capabilities=frozenset({"iterates"}),
        trainer="dpspec_laplace_histogram.backend:CarelessReleases",
    )
