"""Tells dpspec of our training loop, and of what it can show."""

import dpspec.contract as dps

DPSPEC_API = 1


@dps.hookimpl
def dpspec_backends():
    yield dps.Backend(
        kind="own-loop",
        summary="our own DP-SGD",
        schema={"type": "object", "properties": {}, "additionalProperties": False},
        capabilities=frozenset({"iterates", "gradient-canaries", "sampling-log", "noise-log", "norm-log"}),
        trainer="dpspec_own_loop.loop:OwnLoop",
        constants=dps.Assumption(
            name="data-independent-hyperparameters",
            status="by-construction",
            text="divisor, rate and clip norm are the job's",
        ),
    )
