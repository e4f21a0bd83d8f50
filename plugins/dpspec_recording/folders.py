"""Folders of recordings in commands that are about anything else: a ledger's entry, and a new spec."""

from __future__ import annotations

import math
import os
from pathlib import Path

from dpspec.contract import Json
from dpspec.contract.catalog import Catalog
from dpspec.contract.executed import ExecutedSection
from dpspec.contract.results import Result
from dpspec.contract.sampling import poisson_sampling
from dpspec.decimals import upper
from dpspec.errors import UsageError
from dpspec.language.yaml_source import to_yaml
from dpspec_recording.judge.check import check_run, document_of
from dpspec_recording.judge.run_claim import RunClaim
from dpspec_recording.offered import KIND
from dpspec_recording.outcomes.conditions import PER_RECORD_CLIPPING


class RecordedFolders:
    """The implementation of :class:`dpspec.contract.results.RunFolders`."""

    @staticmethod
    def judge(run: Path, catalog: Catalog, delta: float, adjacency: str) -> Result:
        return check_run(run, RunClaim(delta=delta, adjacency=adjacency), catalog)

    @staticmethod
    def starter_spec(run: Path, catalog: Catalog, name: str, spec_folder: Path) -> str:
        return _starter_spec(run, catalog, name, spec_folder)


_MOST_PHASES = 50

#: Comment on values that a recording does not contain.
_UNKNOWN = """\
# data.features and data.classes are not recorded; bounds do not depend on them.
# threat_model: {adjacency: add-remove} requires constants that do not depend on the number of records.
"""


def _starter_spec(run: Path, catalog: Catalog, name: str, spec_folder: Path) -> str:
    question = RunClaim(delta=1e-5)
    (audit,) = check_run(run, question, catalog).audits
    bound = next(finding for finding in audit.findings if (finding.quantity, finding.bound) == ("epsilon", "upper"))
    if math.isinf(bound.value):
        raise UsageError(f"{run}: no spec can be written: {bound.method}")
    assert audit.recording is not None
    # The order of the keys in the file.
    first = {"dpspec": 1, "name": name, "description": f"The training that was recorded in {run.name}"}
    document = {**first, **document_of(run, question), **first}
    document["mechanism"] = _declared(audit.recording, catalog) or {"kind": KIND}
    document["training"] = {"backend": KIND, "run": Path(os.path.relpath(run, spec_folder)).as_posix()}
    document["threat_model"] = {"adjacency": question.adjacency}
    claimed = float(upper(bound.value))
    claim: dict[str, Json] = {"id": "one-record", "kind": "approx-dp", "epsilon": claimed, "delta": question.delta}
    document["claims"], comments = [claim], _UNKNOWN
    unchecked = [assumption.name for assumption in bound.assumptions if assumption.status == "unchecked"]
    if unchecked == [PER_RECORD_CLIPPING] and audit.conformance.status == "no-deviation-found":
        claim["expect"] = ["open"]
        comments += (
            f"# {PER_RECORD_CLIPPING} is unchecked: add assume: [{PER_RECORD_CLIPPING}] to "
            "training;\n# then remove expect.\n"
        )
    return f"{comments}{to_yaml(document)}"


def _declared(recording: ExecutedSection, catalog: Catalog) -> dict[str, Json] | None:
    offers = sorted(catalog.mechanisms.items())
    kind = next((name for name, offered in offers if offered.provider.recordable and offered.provider.steps), None)
    if kind is None or len(recording.phases) > _MOST_PHASES or recording.more_phases:
        return None
    phases: list[Json] = [
        {
            "noise_multiplier": phase.noise_multiplier,
            "clip_norm": phase.clip_norm,
            "sampling": poisson_sampling(phase.rate),
            "steps": phase.steps,
        }
        for phase in recording.phases
        if phase.rate is not None and phase.noise_multiplier and phase.clip_norm is not None
    ]
    if len(phases) < len(recording.phases):
        return None
    return {"kind": kind, **(phases[0] if len(phases) == 1 else {"phases": phases})}
