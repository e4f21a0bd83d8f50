"""A recorded run as a spec file: its schedule as declared phases if they can be declared, and its proved epsilon."""

from __future__ import annotations

import math
import os
from pathlib import Path

from dpspec.cli.starter_spec import MODELINE, require_name
from dpspec.cli.yaml_writer import to_yaml
from dpspec.contract import Json
from dpspec.contract import Path as Place
from dpspec.contract.catalog import Catalog
from dpspec.engine.recorded.assumptions import PER_RECORD_CLIPPING
from dpspec.engine.recorded.check import RunClaim, check_run, document_of
from dpspec.engine.results.decimals import upper
from dpspec.engine.results.recording import UNKNOWN, Recording
from dpspec.errors import UsageError
from dpspec.registry.loader import load_catalog
from dpspec.registry.recorded_schedule import KIND

#: A spec with more phases is nothing that a person reads.
_MOST = 50

#: Comments on values that no recording shows.
_UNKNOWN: dict[Place, str] = {
    ("data", "features"): "not recorded; bounds do not depend on it",
    ("data", "classes"): "not recorded; bounds do not depend on it",
    ("threat_model", "adjacency"): "add-remove asks for constants that do not count the records",
}


def spec_of_run(run: Path, *, schema: Path, name: str, place: Path, delta: float = 1e-5) -> str:
    """The spec, as YAML, with the recorded run as its training. Its verdict is the one that ``dpspec check`` gives.

    The mechanism declares the executed phases if all are Poisson samples with noise. Otherwise it is the recorded
    schedule.

    place: the folder of the spec, to which the run's path is relative.

    Raises:
        UsageError: No finite epsilon can be claimed.
        RecordingError: The folder holds no recorded run, or was changed.
        NothingToRunError: No step was recorded.
    """
    require_name(name)
    question = RunClaim(delta=delta)
    catalog = load_catalog()
    (audit,) = check_run(run, question, catalog).audits
    bound = next(one for one in audit.findings if (one.quantity, one.bound) == ("epsilon", "upper"))
    if math.isinf(bound.value):
        raise UsageError(f"{run}: no spec can be written: {bound.method}")
    document = document_of(run, question)
    assert audit.recording is not None
    document["name"], document["description"] = name, f"The training that was recorded in {run.name}"
    document["mechanism"] = _declared(audit.recording, catalog) or {"kind": KIND}
    document["training"] = {"backend": KIND, "run": Path(os.path.relpath(run, place)).as_posix()}
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


def _declared(recording: Recording, catalog: Catalog) -> dict[str, Json] | None:
    """A mechanism that a recording shows completely, with one phase or several; None without one."""
    phases = recording.phases
    if len(phases) > _MOST or recording.more_phases:
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
    kinds = [kind for kind, each in catalog.mechanisms.items() if each.provider.recordable and each.provider.steps]
    if not kinds:
        return None
    return {"kind": min(kinds), **(found[0] if len(found) == 1 else {"phases": list[Json](found)})}
