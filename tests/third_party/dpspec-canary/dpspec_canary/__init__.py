"""A dpspec plugin with an attack: records turned upside down, and a score that asks around each of them."""

import dpspec.contract as dps
from dpspec.contract.attacks import Canary, Score

DPSPEC_API = 1


@dps.hookimpl
def dpspec_attacks():
    share = {"type": "number", "minimum": 0, "maximum": 1, "default": 1.0, "description": "How far: 1 is all the way."}
    yield Canary(
        kind="upside-down",
        summary="Training records with large features made small and small ones large",
        space="input",
        make="dpspec_canary.attack:upside_down",
        schema={"type": "object", "properties": {"share": share}, "additionalProperties": False},
        reads_data=True,
    )
    points = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 8, "description": "How many neighbours."}
    yield Score(
        kind="around",
        summary="By how much the loss fell around a planted record, on average over some neighbours",
        score="dpspec_canary.attack:around",
        schema={"type": "object", "properties": {"points": points}, "additionalProperties": False},
    )
