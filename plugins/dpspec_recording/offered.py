"""The descriptors of the mechanism and the backend ``recorded``, light values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dpspec.contract as dps
from dpspec.contract.fragments import array, block, number, string

KIND = "recorded"


class RecordedSchedule(dps.Audit):
    """The recording states the bounds: :mod:`dpspec_recording.judge.executed_run`."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
        if spec.training.kind != KIND:
            yield dps.Diagnostic(
                code="unsupported",
                message="the mechanism 'recorded' is the schedule of a recorded training",
                path=("training", "backend"),
                help="write training: {backend: recorded, run: FOLDER}",
            )

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        return iter(())


_DELTA = number("The delta at which epsilon is reported if no claim names one.", above=0, below=1, default=1e-5)

MECHANISM = dps.Mechanism(
    kind=KIND,
    summary="The executed schedule of a recorded training, compared with no declared one",
    description="the executed schedule of batches and noise",
    schemas=dps.Schemas(mechanism=block(delta=_DELTA)),
    claims=frozenset({"approx-dp"}),
    audit="dpspec_recording.offered:RecordedSchedule",
    example=Path(__file__).with_name("recorded.yaml").read_text(encoding="utf-8"),
    steps=False,
    recordable=True,
    missing=True,
    tokens=True,
    assumptions=("dpspec_recording.judge.channels", "dpspec_recording.outcomes.conditions"),
)


class RecordedTrainer:
    def train(self, job: dps.TrainingJob) -> None:
        raise TypeError("a recorded run cannot be trained again")


#: The largest number of names of one option, and of accepted rules.
MOST_NAMES, MOST_ACCEPTED = 50, 100


def _names(description: str) -> dict[str, dps.Json]:
    return array(description, {"type": "string", "minLength": 1, "maxLength": 100}, most=MOST_NAMES, default=[])


_OPTIONS: dict[str, dps.Json] = {
    "run": {
        "maxLength": 4096,
        **string(
            "Run folder written by dpspec.record, relative to the spec's folder. dpspec trains no model: the "
            "mechanism's phases declare the run, the recording is the executed run."
        ),
    },
    "model": {
        "maxLength": 4096,
        **string(
            "The model to be released, a safetensors file relative to the spec's folder. Its tensors must be those at "
            "the recording's end."
        ),
    },
    "assume": _names(
        "Names of channels or assumptions that the recording cannot confirm and that you assume. A proof lists them. "
        "A violated channel cannot be assumed."
    ),
    "public": _names(
        "Names of hyperparameters whose values do not depend on the records, such as learning_rate, weight_decay, "
        "clip_norm or divisor."
    ),
    "accept": {
        "type": "object",
        "maxProperties": MOST_ACCEPTED,
        "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 400, "description": "The reason."},
        "description": "Rules of `dpspec rules` whose cautions you accept, and not-replayed, each with a reason. The "
        "report names them.",
    },
    "select": _names("The only rules to evaluate; all by default."),
    "ignore": _names("Rules that are not evaluated."),
}

BACKEND = dps.Backend(
    kind=KIND,
    summary="A run recorded by dpspec.record, audited without training again",
    schema=block(None, ["run"], **_OPTIONS),
    capabilities=frozenset(),
    trainer="dpspec_recording.offered:RecordedTrainer",
    recording="dpspec_recording.judge.executed_run:RecordedRuns",
    folders="dpspec_recording.folders:RecordedFolders",
    constants=dps.Assumption(
        name="data-independent-hyperparameters", status="unchecked", text="the recorded run was not inspected"
    ),
)
