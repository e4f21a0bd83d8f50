"""Starter specs: the example of a mechanism, or a recorded run with its proved epsilon."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from dpspec.cli.report_files import require_known
from dpspec.cli.yaml_writer import to_yaml
from dpspec.contract import Json
from dpspec.contract import Path as Place
from dpspec.contract.catalog import Catalog
from dpspec.engine.recorded.assumptions import PER_RECORD_CLIPPING
from dpspec.engine.recorded.check import RunClaim, check_run, document_of
from dpspec.engine.results.decimals import upper
from dpspec.engine.results.recording import UNKNOWN, Recording
from dpspec.errors import PluginError, UsageError
from dpspec.registry.loader import load_catalog
from dpspec.text import quoted

#: The comment with the schema's path for editors.
MODELINE = "# yaml-language-server: $schema="
_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)
_SPEC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def starter_spec(catalog: Catalog, mechanism: str | None, *, schema: Path, name: str) -> str:
    """The example of ``mechanism`` (the first installed one if None) under another name."""
    require_name(name)
    if not catalog.mechanisms:
        raise PluginError("no installed plugin offers a mechanism (see `dpspec plugins`)")
    kind = sorted(catalog.mechanisms)[0] if mechanism is None else mechanism
    require_known("mechanism", kind, sorted(catalog.mechanisms), "installed")
    example = str(catalog.mechanisms[kind].provider.example).strip("\n")
    lines = [line for line in example.split("\n") if not line.startswith(MODELINE)]
    body = _NAME_LINE.sub(f"name: {name}", "\n".join(lines), count=1)
    return f"{MODELINE}{schema.as_posix()}\n{body}\n"


def require_name(name: str) -> None:
    if not _SPEC_NAME.fullmatch(name):
        raise UsageError(f"invalid spec name {quoted(name)}: use letters, digits, dots, dashes and underscores")


_MOST_PHASES = 50

#: Comments on values that a recording does not contain.
_UNKNOWN: dict[Place, str] = {
    ("data", "features"): "not recorded; bounds do not depend on it",
    ("data", "classes"): "not recorded; bounds do not depend on it",
    ("threat_model", "adjacency"): "add-remove requires constants that do not depend on the number of records",
}


def spec_of_run(run: Path, *, schema: Path, name: str, place: Path, delta: float = 1e-5) -> str:
    """A spec that gets the verdict of ``dpspec check``; it declares the phases if all are noisy Poisson samples."""
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
    if unchecked == [PER_RECORD_CLIPPING] and audit.conformance.status == "no-deviation-found":
        claim["expect"] = ["open"]
        comments["training", "run"] = (
            f"{PER_RECORD_CLIPPING} is unchecked: record with loss=, or add assume: [{PER_RECORD_CLIPPING}]; "
            "then remove expect"
        )
    ordered = ("dpspec", "name", "description", "mechanism", "data", "training", "threat_model", "claims")
    text = to_yaml({key: document[key] for key in ordered}, lambda place: comments.get(place, ""))
    return f"{MODELINE}{schema.as_posix()}\n{text}"


def _declared(recording: Recording) -> dict[str, Json] | None:
    offers = sorted(load_catalog().mechanisms.items())
    kind = next((name for name, one in offers if one.provider.recordable and one.provider.steps), None)
    phases = recording.phases
    if kind is None or len(phases) > _MOST_PHASES or recording.more_phases:
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
