"""A recorded run as a spec: the schedule that was found in it, declared, with the epsilon that is proved of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.cli.starter_spec import MODELINE, require_name
from dpspec.cli.yaml_writer import to_yaml
from dpspec.contract import Json
from dpspec.contract import Path as Place
from dpspec.engine.recorded.channels.contributions import PER_RECORD_CLIPPING
from dpspec.engine.recorded.checked_run import Question, check_run
from dpspec.engine.results.decimals import upper
from dpspec.errors import UsageError

if TYPE_CHECKING:
    from dpspec.engine.recorded.schedule import Stretch

#: A spec of more phases than this is nothing that a person reads.
_MOST = 50

#: What is written behind the values that no recording knows.
_UNKNOWN: dict[Place, str] = {
    ("data", "features"): "not recorded; bounds do not depend on it",
    ("data", "classes"): "not recorded; bounds do not depend on it",
    ("threat_model", "adjacency"): "add-remove asks for constants that do not count the records",
}


def spec_of_run(run: Path, *, schema: Path, name: str, place: Path, delta: float = 1e-5) -> str:
    """The spec, as YAML, of the mechanism that a recorded run amounts to, with that run for its training.

    place: the folder that the spec is for, to which the run's own is relative.

    Raises ``UsageError`` where that is no mechanism with a bound of its own: other than Poisson samples, a step without
    noise, or one of which something was not seen; and as ``check_run`` does.
    """
    require_name(name)
    checked = check_run(run, Question(delta=delta))
    phases, records = checked.phases, checked.run.header.records
    cost = checked.costs[1]
    if records is None:
        raise UsageError(f"{run}: no spec can be written: how many records there are was not seen")
    if len(phases) > _MOST:
        raise UsageError(f"{run}: no spec can be written: {len(phases)} phases, at most {_MOST} are")
    mechanism: dict[str, Json] = {"kind": "group", **_common(run, phases)}
    if cost.interval is None or cost.reason:
        raise UsageError(f"{run}: no spec can be written: {cost.reason}")
    claim: dict[str, Json] = {
        "id": "one-record",
        "kind": "approx-dp",
        "epsilon": float(upper(cost.interval.upper)),
        "delta": delta,
    }
    comments = dict(_UNKNOWN)
    unchecked = [one.name for one in checked.assumptions if one.status == "unchecked"]
    if unchecked == [PER_RECORD_CLIPPING] and checked.conformance.status == "conforms-within":
        claim["expect"] = ["supported", "open"]
        comments["training", "run"] = (
            f"{PER_RECORD_CLIPPING} is unchecked: record with loss=, or add assume: [{PER_RECORD_CLIPPING}]; "
            "then remove expect"
        )
    document: dict[str, Json] = {
        "dpspec": 1,
        "name": name,
        "description": f"The training that was recorded in {run.name}",
        "mechanism": mechanism,
        "data": {"kind": "declared", "records": records, "features": 1, "classes": 2},
        "training": {"backend": "recorded", "run": Path(os.path.relpath(run, place)).as_posix()},
        "threat_model": {"adjacency": "zero-out"},
        "claims": [claim],
    }
    return f"{MODELINE}{schema.as_posix()}\n{to_yaml(document, lambda place: comments.get(place, ''))}"


def _common(run: Path, phases: tuple[Stretch, ...]) -> dict[str, Json]:
    """The mechanism's options: one phase in its own keys, several under ``phases``."""
    found: list[dict[str, Json]] = []
    for phase in phases:
        if phase.rate is None or not phase.noise_multiplier or phase.clip_norm is None:
            where = f"steps {phase.first} to {phase.first + phase.steps - 1}"
            raise UsageError(f"{run}: no spec can be written: {where} are no Poisson samples with noise")
        options: dict[str, Json] = {
            "noise_multiplier": phase.noise_multiplier,
            "clip_norm": phase.clip_norm,
            "sampling": {"scheme": "poisson", "rate": phase.rate},
            "steps": phase.steps,
        }
        found.append(options)
    return found[0] if len(found) == 1 else {"phases": found}
