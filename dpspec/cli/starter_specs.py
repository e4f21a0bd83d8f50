"""Texts of new specs: a mechanism's example under another name, or the declaration of a recorded run."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.cli.output import require_known
from dpspec.contract import Json
from dpspec.contract.catalog import PROJECT_HINT, Catalog, Offered
from dpspec.contract.sampling import poisson_sampling
from dpspec.data.source import COMMON
from dpspec.errors import PluginError, UsageError

if TYPE_CHECKING:
    from dpspec.contract.results import Recording

#: The comment with the schema's path for editors.
MODELINE = "# yaml-language-server: $schema="
_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)
_DESCRIPTION_LINE = re.compile(r"^description:.*\n", re.MULTILINE)


def starter_spec(
    catalog: Catalog,
    mechanism: str | None,
    *,
    schema: Path,
    name: str,
    model: str | None = None,
    data: str | None = None,
) -> str:
    """The example of ``mechanism`` (None: the first that trains a model) under another name, with a model and data."""
    if not catalog.mechanisms:
        raise PluginError("no installed plugin offers a mechanism (see `dpspec plugins`)")
    training = [kind for kind, offered in catalog.mechanisms.items() if "\nmodel:" in str(offered.provider.example)]
    kind = mechanism or min(training or catalog.mechanisms)
    require_known("mechanism", kind, sorted(catalog.mechanisms), "installed")
    example = str(catalog.mechanisms[kind].provider.example).strip("\n")
    lines = [line for line in example.split("\n") if not line.startswith(MODELINE)]
    body = _NAME_LINE.sub(f"name: {name}", "\n".join(lines), count=1) + "\n"
    for block, chosen, offers in (("model", model, catalog.models), ("data", data, catalog.datasets)):
        if chosen is not None:
            body = _DESCRIPTION_LINE.sub("", body, count=1)  # it describes the example's
            body = _with_kind(body, block, chosen, offers)
    return f"{MODELINE}{schema.as_posix()}\n{body}"


def _with_kind(body: str, block: str, kind: str, offers: Mapping[str, Offered]) -> str:
    """Replace a block of a spec by one of ``kind`` with its own required keys, and defaults of a project's function."""
    require_known(block, kind, sorted(offers), "installed", PROJECT_HINT)
    offered = offers[kind]
    keys: dict[str, Json] = {"kind": kind}
    if offered.code:
        common = COMMON.keys() | {"public"}
        kind_keys = {key: value for key, value in offered.provider.schema["properties"].items() if key not in common}
        keys |= {key: value["default"] for key, value in kind_keys.items() if "default" in value}
    pattern = re.compile(rf"^{block}:.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
    if not pattern.search(body):
        raise UsageError(f"the mechanism's example has no {block}: choose another --mechanism")
    flow = ", ".join(
        f"{key}: {json.dumps(value)}" if key != "kind" else f"kind: {value}" for key, value in keys.items()
    )
    return pattern.sub(lambda _: f"{block}: {{{flow}}}\n", body, count=1)


_MOST_PHASES = 50

#: Comment on values that a recording does not contain.
_UNKNOWN = """\
# data.features and data.classes are not recorded; bounds do not depend on them.
# threat_model: {adjacency: add-remove} requires constants that do not depend on the number of records.
"""


def spec_of_run(run: Path, *, schema: Path, name: str, spec_folder: Path) -> str:
    """A spec that gets the verdict of ``dpspec check``; it declares the phases if all are noisy Poisson samples."""
    from dpspec.contract.results import UNKNOWN
    from dpspec.decimals import upper
    from dpspec.engine.recorded.assumptions import PER_RECORD_CLIPPING
    from dpspec.engine.recorded.check import RunClaim, check_run, document_of
    from dpspec.language.yaml_source import to_yaml
    from dpspec.registry.builtin import KIND

    question = RunClaim(delta=1e-5)
    (audit,) = check_run(run, question).audits
    bound = next(finding for finding in audit.findings if (finding.quantity, finding.bound) == ("epsilon", "upper"))
    if math.isinf(bound.value):
        raise UsageError(f"{run}: no spec can be written: {bound.method}")
    assert audit.recording is not None
    # The order of the keys in the file.
    first = {"dpspec": 1, "name": name, "description": f"The training that was recorded in {run.name}"}
    document = {**first, **document_of(run, question), **first}
    document["mechanism"] = _declared(audit.recording) or {"kind": KIND}
    document["training"] = {"backend": KIND, "run": Path(os.path.relpath(run, spec_folder)).as_posix()}
    document["threat_model"] = {"adjacency": question.adjacency}
    claimed = float(upper(bound.value))
    claim: dict[str, Json] = {"id": "one-record", "kind": "approx-dp", "epsilon": claimed, "delta": question.delta}
    document["claims"], comments = [claim], _UNKNOWN
    unchecked = [
        assumption.name.removesuffix(UNKNOWN) for assumption in bound.assumptions if assumption.status == "unchecked"
    ]
    if unchecked == [PER_RECORD_CLIPPING] and audit.conformance.status == "no-deviation-found":
        claim["expect"] = ["open"]
        comments += (
            f"# {PER_RECORD_CLIPPING} is unchecked: add assume: [{PER_RECORD_CLIPPING}] to "
            "training;\n# then remove expect.\n"
        )
    return f"{MODELINE}{schema.as_posix()}\n{comments}{to_yaml(document)}"


def _declared(recording: Recording) -> dict[str, Json] | None:
    from dpspec.registry.loader import load_catalog

    offers = sorted(load_catalog().mechanisms.items())
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
