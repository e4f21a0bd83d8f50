"""``dpspec check``: the spec of a recorded run in memory, and the result of the pipeline on it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import Json
from dpspec.contract.catalog import Catalog
from dpspec.engine.stated_claim import run_spec, spec_name
from dpspec.errors import SpecError
from dpspec.language.declared_facts import DeclaredFacts, read_declared_facts, with_declared_facts
from dpspec.language.load import from_command
from dpspec_recording.folder.place import the_recording
from dpspec_recording.folder.recording import open_run
from dpspec_recording.judge.run_claim import RunClaim
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.offered import KIND

if TYPE_CHECKING:
    from dpspec.contract.results import Result


#: The largest delta of a question without a claim is 10 to the power of minus this.
_EXPONENT = 5


def usual_delta(run: Path, adjacency: str) -> float:
    """The delta of a question without a claim: 1e-5, or the largest power of ten below 1 over the number of records.

    The latter only if this number is public.
    """
    records = None if adjacency != "zero-out" else open_run(the_recording(run), OBSERVERS).header.records
    exponent = _EXPONENT
    while records is not None and records >= 10**exponent:
        exponent += 1
    return float(f"1e-{exponent}")


def document_of(run: Path, claim: RunClaim, model: str = "") -> dict[str, Json]:
    """The spec of a claim about a recorded run. model: the name of the model to be released."""
    header = open_run(the_recording(run), OBSERVERS).header
    names: dict[str, Json] = {key: list(getattr(claim, key)) for key in ("assume", "public", "select", "ignore")}
    names["accept"] = dict.fromkeys(claim.accept, "accepted on the command line")
    return {
        "dpspec": 1,
        "name": spec_name(run.resolve().name) or "run",
        "mechanism": {"kind": KIND, "delta": float(claim.delta)},
        "data": {"kind": "declared", "records": header.records or 1, "features": 1, "classes": 2},
        "training": {
            "backend": KIND,
            "run": run.as_posix(),
            **({"model": model} if model else {}),
            **{key: option_names for key, option_names in names.items() if option_names},
        },
        "threat_model": {"adjacency": claim.adjacency, "group_size": sorted(map(int, claim.group_sizes))},
        "claims": claim.claims,
    }


def check_run(
    run: Path,
    claim: RunClaim,
    catalog: Catalog | None = None,
    model: Path | Mapping[str, Any] | None = None,
    declare: Path | None = None,
) -> Result:
    """The result of the pipeline.

    Args:
        run: The folder of the recording.
        claim: The claim and its threat model.
        catalog: The installed plugins.
        model: The model to be released, as a file or as its ``state_dict()``.
        declare: A file with facts for statements.

    Raises:
        SpecError: The file of ``declare`` has errors.
    """
    from dpspec.registry.loader import load_catalog
    from dpspec_recording.judge.executed_run import GIVEN_MODEL

    released, name = None, ""
    if model is not None:
        from dpspec_recording.released_model import released_model

        released = released_model(model)
        name = model.as_posix() if isinstance(model, Path) else released.name
    option_values: dict[str, Sequence[object]] = {
        "--delta": [claim.delta],
        "--epsilon": [] if claim.epsilon is None else [claim.epsilon],
        "--group-size": claim.group_sizes if claim.group_sizes != (1,) else (),
        "--adjacency": [claim.adjacency] if claim.adjacency != "zero-out" else [],
        "--model": [name] if name else [],
        "--public": claim.public,
        "--assume": claim.assume,
        "--accept": claim.accept,
        "--select": claim.select,
        "--ignore": claim.ignore,
        "--declare": [] if declare is None else [declare.as_posix()],
    }
    facts = DeclaredFacts() if declare is None else read_declared_facts(declare)
    if facts.diagnostics:
        raise SpecError(facts.diagnostics)
    token = GIVEN_MODEL.set(released)
    try:
        command = ["dpspec", "check", os.fspath(run)]
        document = with_declared_facts(document_of(run, claim, name), facts.facts)
        catalog = catalog or load_catalog()
        return run_spec(from_command(document, catalog), catalog, command, option_values)
    finally:
        GIVEN_MODEL.reset(token)
