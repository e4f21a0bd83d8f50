"""The mechanism ``recorded`` as a light value: the schedule that a recorded training executed."""

from __future__ import annotations

from collections.abc import Iterator

from dpspec.contract import Audit, Context, Diagnostic, Facts, Finding, Mechanism, Schemas, Series, Spec

KIND = "recorded"

EXAMPLE = """\
dpspec: 1
name: recorded-example
description: What a recorded training executed, without a declared schedule

mechanism: {kind: recorded}

data: {kind: declared, records: 1000, features: 16, classes: 2}

training: {backend: recorded, run: run}

threat_model: {adjacency: zero-out}

claims:
  - {id: one-record, kind: approx-dp, epsilon: 8.0, delta: 1e-5}
"""


class RecordedSchedule(Audit):
    """The recording states the bounds: :mod:`dpspec.engine.recorded.executed_run`."""

    def check(self, spec: Spec, facts: Facts) -> Iterator[Diagnostic]:
        if spec.training.kind != KIND:
            yield Diagnostic(
                code="unsupported",
                message="the mechanism 'recorded' is the schedule of a recorded training",
                path=("training", "backend"),
                help="write training: {backend: recorded, run: FOLDER}",
            )

    def bound(self, spec: Spec, context: Context) -> Iterator[Finding | Series]:
        return iter(())


RECORDED_MECHANISM = Mechanism(
    kind=KIND,
    summary="What a recorded training executed: its own schedule, compared with no declared one",
    description="the executed schedule of batches and noise",
    schemas=Schemas(
        mechanism={
            "type": "object",
            "properties": {
                "delta": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "exclusiveMaximum": 1,
                    "default": 1e-5,
                    "description": "The delta at which epsilon is reported if no claim names one.",
                }
            },
            "additionalProperties": False,
        },
    ),
    claims=frozenset({"approx-dp"}),
    audit="dpspec.registry.recorded_schedule:RecordedSchedule",
    example=EXAMPLE,
    steps=False,
    recordable=True,
    optional_claims=True,
    units=frozenset({"record"}),
    missing=True,
    tokens=True,
)
