"""A recorded run as a spec file: its schedule as declared phases if they can be declared, and its proved epsilon."""

from __future__ import annotations

import math
import os
from pathlib import Path

from dpspec.cli.commands.new import MODELINE, require_name
from dpspec.cli.yaml_writer import to_yaml
from dpspec.contract import Json
from dpspec.contract import Path as Place
from dpspec.engine.recorded.assumptions import PER_RECORD_CLIPPING
from dpspec.engine.recorded.channels import UNKNOWN
from dpspec.engine.recorded.check import RunClaim, check_run, document_of
from dpspec.engine.results.decimals import upper
from dpspec.engine.results.recording import Recording
from dpspec.errors import UsageError
from dpspec.registry.loader import load_catalog

#: The maximum number of declared phases.
_MOST = 50

#: Comments on values that a recording does not contain.
_UNKNOWN: dict[Place, str] = {
    ("data", "features"): "not recorded; bounds do not depend on it",
    ("data", "classes"): "not recorded; bounds do not depend on it",
    ("threat_model", "adjacency"): "add-remove requires constants that do not depend on the number of records",
}


def spec_of_run(run: Path, *, schema: Path, name: str, place: Path, delta: float = 1e-5) -> str:
    """Return a spec as YAML with the recorded run as its training; it gets the verdict of ``dpspec check``.

    The mechanism declares the executed phases if all of them are Poisson samples with noise. Otherwise it is the
    recorded schedule.

    Args:
        run: The folder of the recorded run.
        schema: The path of the schema for editors.
        name: The name of the spec.
        place: The folder of the spec; the run's path is relative to it.
        delta: The delta of the claim.

    Raises:
        UsageError: No finite epsilon can be claimed.
        RecordingError: The folder has no recorded run, or was changed.
        NothingToRunError: No step was recorded.
    """
    require_name(name)
    question = RunClaim(delta=delta)
    (audit,) = check_run(run, question).audits
    bound = next(one for one in audit.findings if (one.quantity, one.bound) == ("epsilon", "upper"))
    if math.isinf(bound.value):
        raise UsageError(f"{run}: no spec can be written: {bound.method}")
    document = document_of(run, question)
    assert audit.recording is not None
    document["name"], document["description"] = name, f"The training that was recorded in {run.name}"
    mechanism, training = document["mechanism"], document["training"]
    assert isinstance(mechanism, dict)
    assert isinstance(training, dict)
    document["mechanism"] = _declared(audit.recording) or {"kind": mechanism["kind"]}
    document["training"] = {"backend": training["backend"], "run": Path(os.path.relpath(run, place)).as_posix()}
    document["threat_model"] = {"adjacency": question.adjacency}
    claimed = float(upper(bound.value))
    claim: dict[str, Json] = {"id": "one-record", "kind": "approx-dp", "epsilon": claimed, "delta": delta}
    document["claims"], comments = [claim], dict(_UNKNOWN)
    unchecked = [one.name.removesuffix(UNKNOWN) for one in bound.assumptions if one.status == "unchecked"]
    if unchecked == [PER_RECORD_CLIPPING] and audit.conformance.status == "conforms-within":
        claim["expect"] = ["open"]
        comments["training", "run"] = (
            f"{PER_RECORD_CLIPPING} is unchecked: record with loss=, or add assume: [{PER_RECORD_CLIPPING}]; "
            "then remove expect"
        )
    ordered = ("dpspec", "name", "description", "mechanism", "data", "training", "threat_model", "claims")
    text = to_yaml({key: document[key] for key in ordered}, lambda place: comments.get(place, ""))
    return f"{MODELINE}{schema.as_posix()}\n{text}"


def _declared(recording: Recording) -> dict[str, Json] | None:
    """A mechanism with the executed phases, the first that a recording can show; None if they cannot be declared."""
    offers = sorted(load_catalog().mechanisms.items())
    kind = next((name for name, one in offers if one.provider.recordable and one.provider.steps), None)
    phases = recording.phases
    if kind is None or len(phases) > _MOST or recording.more_phases:
        return None
    found: list[dict[str, Json]] = []
    for phase in phases:
        if phase.rate is None or not phase.noise_multiplier or phase.clip_norm is None:
            return None
        options: dict[str, Json] = {
            "noise_multiplier": phase.noise_multiplier,
            "clip_norm": phase.clip_norm,
            "sampling": {"scheme": "poisson", "rate": phase.rate},
            "steps": phase.steps,
        }
        found.append(options)
    return {"kind": kind, **(found[0] if len(found) == 1 else {"phases": list[Json](found)})}
