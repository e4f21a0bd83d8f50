"""Validate a resolved document, each block by core's schema and its provider's, and collect all errors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dpspec.contract import Diagnostic, Json, Mechanism, Path, format_path
from dpspec.contract.attacks import Canary, Score
from dpspec.contract.catalog import Catalog
from dpspec.language.validating import blocks, installed
from dpspec.language.validating.blocks import Plain
from dpspec.language.validating.claims import check_claims
from dpspec.language.validating.installed import CHOOSERS, find
from dpspec.language.validating.problems import cast, fill, problems
from dpspec.text import shown

VERSION = 1


@dataclass
class Checked:
    """``document`` has defaults and converted numbers."""

    document: dict[str, Json]
    diagnostics: list[Diagnostic] = field(default_factory=list)
    canary: Canary | None = None
    score: Score | None = None


def check(document: dict[str, Json], catalog: Catalog) -> Checked:
    version = document.get("dpspec")
    if version is not None and (isinstance(version, bool) or version != VERSION):
        # The other rules may not apply to another version, so report nothing else.
        message = f"this dpspec supports version {VERSION} of the spec language, got {shown(version)}"
        hint = f"write dpspec: {VERSION}, or install a dpspec release that supports this version"
        return Checked(document, [Diagnostic(code="unsupported-version", message=message, path=("dpspec",), help=hint)])
    return _Checker(document, catalog).run()


class _Checker:
    def __init__(self, document: dict[str, Json], catalog: Catalog) -> None:
        # Composition has consumed some keys; claims are checked separately.
        top = dict(blocks.core("spec"))
        for key in ("dpspec", "extends", "matrix", "claims"):
            description = top["properties"][key]["description"]
            top["properties"] = {**top["properties"], key: {"description": description}}
        self.catalog = catalog
        self.canary: Canary | None = None
        self.score: Score | None = None
        self.found = list(problems(top, document))
        self.document: dict[str, Json] = fill(top, document)

    def run(self) -> Checked:
        if isinstance(self.document.get("requires"), list):
            self.found += installed.check(self.document["requires"])
        mechanism = self._mechanism()
        self._selected_block("data", partial(blocks.kind_block, "data"))
        self._selected_block("model", partial(blocks.kind_block, "model"))
        self._training()
        threat_model = self._threat_model(mechanism)
        if "audit" in self.document:
            self._audit(mechanism, threat_model)
        if "claims" in self.document:
            claims, wrong = check_claims(self.document["claims"], mechanism, threat_model)
            self.document["claims"] = claims
            self.found += wrong
        self.document = {**self.document, "dpspec": VERSION}
        found = list(dict.fromkeys(self.found))
        # A missing required package may provide an unknown kind.
        commands = [d.help for d in found if d.code == "unmet-requirement" and d.help]
        if commands:
            hint = f"a missing required package may provide it: {'; '.join(commands)}"
            found = [dataclasses.replace(d, help=f"{d.help}; {hint}") if d.code == "unknown-kind" else d for d in found]
        return Checked(self.document, found, self.canary, self.score)

    def _mechanism(self) -> Mechanism | None:
        provider = self._provider("mechanism")
        if provider is None:
            return None
        block = self.document["mechanism"]
        if provider.steps and "phases" in block:
            self._phases(provider, block)
        else:
            self._block("mechanism", blocks.mechanism_block(provider))
        return provider  # type: ignore[no-any-return]

    def _phases(self, provider: Mechanism, block: dict[str, Json]) -> None:
        """As training uses it: each phase merged over the block."""
        phases_schema = blocks.mechanism_block(provider)["properties"]["phases"]
        phases = block["phases"]
        wrong = list(problems({**phases_schema, "items": {"type": "object"}}, phases, ("mechanism", "phases")))
        if "steps" in block:
            message = "'steps' is not allowed with 'phases': each phase has its own steps"
            place: Path = ("mechanism", "steps")
            wrong.append(Diagnostic(code="conflicting-key", message=message, path=place, help="remove it", at_key=True))
        whole = blocks.phase_block(provider)
        base = fill(whole, {k: v for k, v in block.items() if k not in ("kind", "phases", "steps")})
        filled: list[Json] = []
        for i, phase in enumerate(phases if isinstance(phases, list) else []):
            if not isinstance(phase, dict):
                continue
            own = {key: fill(whole["properties"].get(key, {}), value) for key, value in phase.items()}
            here: Path = ("mechanism", "phases", i)
            for d in problems(whole, {**base, **own}, here):
                inside = d.path[len(here) :]
                if inside and inside[0] not in own:  # the block's value is wrong
                    message = d.message.replace(format_path(here), "mechanism")
                    d = dataclasses.replace(d, path=("mechanism", *inside), message=message)
                wrong.append(d)
            filled.append(own)
        if not wrong:
            base = cast(whole, base)
            filled = [
                {key: cast(whole["properties"].get(key, {}), value) for key, value in phase.items()} for phase in filled
            ]
        self.found += wrong
        self.document["mechanism"] = {"kind": provider.kind, **base, "phases": filled}

    def _selected_block(self, name: str, schema: Any) -> None:
        provider = self._provider(name)
        if provider is not None:
            self._block(name, schema(provider))

    def _training(self) -> None:
        written = self.document.get("training")
        if not isinstance(written, dict):
            return  # the top schema reports it
        if not written and "native" not in self.catalog.backends:
            self._block("training", blocks.training_block(None))  # no backend selected
            return
        self.document["training"] = {"backend": "native", **written}
        self._selected_block("training", blocks.training_block)

    def _threat_model(self, mechanism: Mechanism | None) -> dict[str, Json] | None:
        if not self._block("threat_model", blocks.threat_model_block(mechanism), open=mechanism is None):
            return None
        block: dict[str, Json] = self.document["threat_model"]
        if isinstance(block["group_size"], int):
            block["group_size"] = [block["group_size"]]
        return block

    def _audit(self, mechanism: Mechanism | None, threat_model: dict[str, Json] | None) -> None:
        wrong: list[Diagnostic] = []
        if mechanism is not None:
            block = self.document["audit"]
            self.canary, self.score, wrong = installed.selected_attack(block, mechanism, threat_model, self.catalog)
        schema = blocks.audit_block(mechanism, self.canary, self.score)
        self._block("audit", schema, open=mechanism is None or bool(wrong))
        self.found += wrong

    def _provider(self, name: str) -> Any:
        block = self.document.get(name)
        if not isinstance(block, dict):
            return None  # absent, or reported by the top schema
        found = find(block, CHOOSERS[name], self.catalog)
        if isinstance(found, Diagnostic):
            self.found.append(found)
            return None
        return found

    def _block(self, name: str, schema: Plain, *, open: bool = False) -> bool:
        """Whether it exists and is valid. ``open`` allows unknown keys, which an unknown mechanism may define."""
        block = self.document.get(name)
        if not isinstance(block, dict):
            return False
        filled = fill(schema, block)
        wrong = [d for d in problems(schema, filled, (name,)) if not (open and d.code == "unknown-key")]
        self.document[name] = filled if wrong else cast(schema, filled)
        self.found += wrong
        return not wrong
