"""Validate a resolved document, each block by core's schema and its provider's, and collect all errors.

The installed providers that the spec names are looked up here, and so are the distributions in ``requires``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpspec.contract import Diagnostic, Json, Mechanism, Path, format_path, is_privacy_quantity
from dpspec.contract.attacks import USUAL, USUAL_SCORE, Canary, Score
from dpspec.contract.catalog import PROJECT_HINT, BrokenPlugin, Catalog, Offered
from dpspec.language import blocks
from dpspec.language.blocks import Plain, claim_block, core, known_claim_kinds
from dpspec.language.problems import cast, fill, problems
from dpspec.results.status import CONTROL_VERDICTS
from dpspec.text import clipped, closest, did_you_mean, listed, quoted, shown
from dpspec.version import VERSION as DPSPEC_VERSION

#: For each value of the threat model, the values that a claim may have.
_NARROWER = {
    "access": {
        "transcript": ("transcript", "all-iterates", "final-model"),
        "all-iterates": ("all-iterates", "final-model"),
        "final-model": ("final-model",),
    },
    "direction": {"both": ("add", "remove", "both"), "add": ("add",), "remove": ("remove",)},
    "neighbours": {"all": ("all", "same-missing-values"), "same-missing-values": ("same-missing-values",)},
}


def check_claims(
    claims: Json, mechanism: Mechanism | None, threat_model: Mapping[str, Json] | None
) -> tuple[Json, list[Diagnostic]]:
    """Checks of an unknown mechanism or an invalid threat model are skipped."""
    diagnostics = list(problems(core("spec")["properties"]["claims"], claims, ("claims",)))
    if not isinstance(claims, list):
        return claims, diagnostics
    checked: list[Json] = []
    for i, claim in enumerate(claims):
        checked.append(claim)
        if not isinstance(claim, dict):
            continue  # the schema reported it
        named = claim if "id" in claim else {"id": f"claim-{i + 1}", **claim}
        checked[i], wrong = _check_claim(named, mechanism, threat_model, ("claims", i))
        diagnostics += wrong
    first_index: dict[str, int] = {}
    for i, claim in enumerate(checked):
        name = claim.get("id") if isinstance(claim, dict) else None
        if not isinstance(name, str):
            continue
        if name in first_index:
            message = f"two claims have the id {quoted(name)}: claims[{first_index[name]}] and claims[{i}]"
            id_path: Path = ("claims", i, "id")
            diagnostics.append(
                Diagnostic(code="duplicate-id", message=message, path=id_path, help="rename one of them")
            )
        first_index.setdefault(name, i)
    return checked, diagnostics


def _check_claim(
    claim: dict[str, Json], mechanism: Mechanism | None, threat_model: Mapping[str, Json] | None, path: Path
) -> tuple[Json, list[Diagnostic]]:
    kind, known_kinds = claim.get("kind"), known_claim_kinds(mechanism)
    judged = known_kinds if mechanism is None else sorted(mechanism.claims)
    if not isinstance(kind, str) or kind not in known_kinds:
        if mechanism is None and isinstance(kind, str):
            return claim, []  # the unknown mechanism may define it
        return claim, list(problems({"required": ["kind"], "properties": {"kind": {"enum": judged}}}, claim, path))
    schema = claim_block(kind, mechanism)
    filled = fill(schema, claim)
    wrong = [d for d in problems(schema, filled, path) if mechanism is not None or d.code != "unknown-key"]
    if mechanism is not None and kind not in mechanism.claims:
        message = f"mechanism {quoted(mechanism.kind)} cannot judge claims of kind {quoted(kind)}"
        hint = f"it judges: {listed(judged)}"
        wrong.append(Diagnostic(code="claim-not-judged", message=message, path=(*path, "kind"), help=hint))
    if wrong:
        return filled, wrong
    filled = cast(schema, filled)
    if isinstance(filled["expect"], str):
        filled["expect"] = [filled["expect"]]
    return filled, [*_check_values(filled, path), *_check_scope(filled, threat_model, path)]


def _check_values(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    if claim.get("control") and not set(claim["expect"]) <= CONTROL_VERDICTS:
        message = f"a control is false on purpose, but this one expects {' or '.join(claim['expect'])}"
        yield Diagnostic(code="bad-value", message=message, path=(*path, "control"), help="write expect: refuted")
    if claim.get("over") == "matrix":  # composition has already moved valid claims of this kind out of the cells
        message = "over: matrix needs a matrix, and this spec has none"
        yield Diagnostic(code="bad-value", message=message, path=(*path, "over"), help="add a matrix, or remove over")
    points: list[tuple[Path, Mapping[str, Json]]] = []
    if claim["kind"] == "tradeoff":
        points = [((*path, "points", i, "tpr"), point) for i, point in enumerate(claim["points"])]
    elif claim["kind"] == "membership" and "tpr" in claim:
        points = [((*path, "tpr"), claim)]
    for point_path, point in points:
        if point["tpr"] < point["fpr"]:
            message = f"tpr {shown(point['tpr'])} is below fpr {shown(point['fpr'])}, which random guessing reaches"
            yield Diagnostic(code="bad-value", message=message, path=point_path, help="claim a tpr at or above the fpr")
    if claim["kind"] != "metric":
        return
    if is_privacy_quantity(claim["name"]):  # a metric states no adjacency, adversary or datasets
        message = f"{quoted(claim['name'])} is a privacy quantity and cannot be the name of a metric"
        kinds = [kind for kind in core("claim_kinds") if kind != "metric"]
        hint = f"use a claim with a scope: {listed(kinds)}; a metric is a number about the trained model"
        yield Diagnostic(code="bad-value", message=message, path=(*path, "name"), help=hint)
    for key in ("at_least", "at_most") if claim["name"] == "accuracy" else ():
        value = claim.get(key)
        if value is not None and not 0 <= value <= 1:
            message = f"accuracy must be between 0 and 1, got {shown(value)}"
            hint = "write a fraction, such as 0.8"
            yield Diagnostic(code="bad-value", message=message, path=(*path, key), help=hint)


def _check_scope(
    claim: Mapping[str, Json], threat_model: Mapping[str, Json] | None, path: Path
) -> Iterator[Diagnostic]:
    """No finding applies to a claim that exceeds the threat model."""
    if threat_model is None:
        return

    def exceeds(key: str, message: str, hint: str) -> Diagnostic:
        return Diagnostic(code="claim-outside-threat-model", message=message, path=(*path, key), help=hint)

    for key, within in _NARROWER.items():
        allowed = within[threat_model.get(key, "all")]
        if key in claim and claim[key] not in allowed:
            message = f"the claim's {key} {quoted(claim[key])} exceeds the threat model's {quoted(threat_model[key])}"
            yield exceeds(key, message, f"narrow it to {listed(allowed)}, or widen threat_model.{key}")
    fewest = threat_model.get("min_records", 0)
    if claim.get("min_records", fewest) < fewest:
        message = f"the claim's min_records {claim['min_records']} is below the threat model's {fewest}"
        yield exceeds("min_records", message, f"claim at least {fewest}, or lower threat_model.min_records")
    largest = max(threat_model["group_size"])
    if claim["group_size"] > largest:
        message = f"the claim's group_size {claim['group_size']} exceeds the threat model's {largest}"
        yield exceeds("group_size", message, f"add {claim['group_size']} to threat_model.group_size")


#: Codes that report a missing or broken installation, not an invalid spec.
PLUGIN_CODES = frozenset({"unknown-kind", "broken-plugin", "unmet-requirement"})


#: For each block, the key that selects a provider, the catalog's attribute, and the name of its kinds.
CHOOSERS = {
    "mechanism": ("kind", "mechanisms", "mechanism kind"),
    "data": ("kind", "datasets", "data kind"),
    "model": ("kind", "models", "model kind"),
    "training": ("backend", "backends", "backend"),
}


def selected_attack(
    audit: Json, mechanism: Mechanism, threat_model: Mapping[str, Json] | None, catalog: Catalog
) -> tuple[Canary | None, Score | None, list[Diagnostic]]:
    """The canary kind and the score of an audit block. The schema reports values of the wrong type."""
    if not isinstance(audit, Mapping) or "scores" in audit:  # external scores need neither
        return None, None, []
    block = audit.get("canary")
    space = block.get("space", "gradient") if isinstance(block, Mapping) else None
    canary = score = None
    if isinstance(block, Mapping) and isinstance(space, str) and space in mechanism.canaries:
        kind, path = block.get("kind", USUAL[space]), ("audit", "canary", "kind")
        canary_space = (
            catalog.canaries[kind].provider.space if isinstance(kind, str) and kind in catalog.canaries else space
        )
        if canary_space != space:
            message = f"{quoted(kind)} is not a kind of {space} canary"
            hint = f"it is a kind of {canary_space} canary: write space: {canary_space}"
            canary = Diagnostic(code="unsupported", message=message, path=path, help=hint)
        elif isinstance(kind, str) and kind:
            fitting = {name: offered for name, offered in catalog.canaries.items() if offered.provider.space == space}
            canary = _find_kind(kind, fitting, f"{space} canary", path, catalog)
    # A score of final models applies to inserted records.
    scored = space == "input" and threat_model is not None and threat_model.get("access") == "final-model"
    kind = audit.get("score", USUAL_SCORE)
    if mechanism.scores and ("score" in audit or scored) and isinstance(kind, str) and kind:
        score = _find_kind(kind, catalog.scores, "score", ("audit", "score"), catalog)
    wrong = [choice for choice in (canary, score) if isinstance(choice, Diagnostic)]
    return canary if isinstance(canary, Canary) else None, score if isinstance(score, Score) else None, wrong


def _find_kind(
    kind: str, offers: Mapping[str, Offered], kind_of_provider: str, path: Path, catalog: Catalog
) -> Any | Diagnostic:
    if kind in offers:
        return offers[kind].provider
    broken = next((b for b in catalog.broken if kind in b.kinds), None)
    if broken is not None:
        message = f"{_plugin_name(broken)} failed to load: {clipped(broken.reason, 200)} (see `dpspec plugins`)"
        hint = f"reinstall or update {broken.distribution or broken.plugin}, or report the error to its authors"
        return Diagnostic(code="broken-plugin", message=message, path=path, help=hint)
    suggestion = closest(kind, offers)
    message = f"no installed plugin offers {kind_of_provider} {quoted(kind)}" + did_you_mean(suggestion)
    hint = _installed_help(offers)
    if offers is not catalog.mechanisms:
        hint += f"; {PROJECT_HINT}"
    if suggestion is None and catalog.broken:
        names = ", ".join(_plugin_name(b) for b in catalog.broken)
        hint += f". A plugin that failed to load may provide it: {names}"
    return Diagnostic(code="unknown-kind", message=message, path=path, help=hint)


def _plugin_name(broken: BrokenPlugin) -> str:
    return " ".join(part for part in ("plugin", broken.distribution or broken.plugin, broken.version) if part)


def _installed_help(installed: Mapping[str, Offered]) -> str:
    return f"installed: {listed(sorted(installed))} (see `dpspec plugins`)" if installed else "none is installed"


def check_requirements(requirements: Sequence[Json]) -> Iterator[Diagnostic]:
    import importlib.metadata

    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    for i, text in enumerate(requirements):
        if not isinstance(text, str):
            continue  # the schema reports it
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            requirement = None
        if requirement is None or requirement.url or requirement.marker or requirement.extras:
            message = f"{quoted(text)} is not a requirement"
            hint = "write a distribution and versions, such as dpspec>=0.1"
            yield Diagnostic(code="bad-requirement", message=message, path=("requires", i), help=hint)
            continue
        version: str | None
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:  # dpspec may run from a source tree
            version = DPSPEC_VERSION if requirement.name == "dpspec" else None
        try:
            fits = version is not None and requirement.specifier.contains(version, prereleases=True)
        except InvalidVersion:
            fits = False
        if not fits:
            installed = "is not installed" if version is None else f"{version} is installed"
            message = f"this spec requires {clipped(text)}, but {clipped(requirement.name)} {installed}"
            hint = f"python -m pip install '{requirement.name}{requirement.specifier}'"
            yield Diagnostic(code="unmet-requirement", message=message, path=("requires", i), help=hint)


VERSION = 1


@dataclass
class Checked:
    """``document`` has defaults and converted numbers."""

    document: dict[str, Json]
    catalog: Catalog
    diagnostics: list[Diagnostic] = field(default_factory=list)
    canary: Canary | None = None
    score: Score | None = None

    def provider(self, name: str) -> Any:
        """The provider that the block ``name`` selects; None if the block or the provider is missing."""
        block = self.document.get(name)
        if not isinstance(block, dict):
            return None  # absent, or reported by the top schema
        key, field, kind_of_provider = CHOOSERS[name]
        installed: Mapping[str, Offered] = getattr(self.catalog, field)
        if not isinstance(block.get(key), str):
            wrong = problems({"required": [key], "properties": {key: {"type": "string"}}}, block, (name,))
            self.diagnostics += [replace(d, help=_installed_help(installed)) for d in wrong]
            return None
        return self._selected(block[key], installed, kind_of_provider, (name, key))

    def loss(self, block: Json, path: Path) -> Any:
        """The loss that a block of ``training`` selects, whose kind is at ``path``; None without one or if unknown."""
        if not isinstance(block, dict) or not isinstance(block.get("kind"), str):
            return None  # absent, or reported by the schema
        return self._selected(block["kind"], self.catalog.losses, "loss", path)

    def _selected(self, kind: str, offers: Mapping[str, Offered], kind_of_provider: str, path: Path) -> Any:
        """The provider of a kind; None and a diagnostic if no plugin offers it."""
        selection = _find_kind(kind, offers, kind_of_provider, path, self.catalog)
        if isinstance(selection, Diagnostic):
            self.diagnostics.append(selection)
            return None
        return selection

    def block(self, name: str, schema: Plain, *, open: bool = False) -> bool:
        """Whether it exists and is valid. ``open`` allows unknown keys, which an unknown mechanism may define."""
        block = self.document.get(name)
        if not isinstance(block, dict):
            return False
        filled = fill(schema, block)
        wrong = [d for d in problems(schema, filled, (name,)) if not (open and d.code == "unknown-key")]
        self.document[name] = filled if wrong else cast(schema, filled)
        self.diagnostics += wrong
        return not wrong

    def phases(self, provider: Mechanism) -> None:
        """As training uses it: each phase merged over the block."""
        block = self.document["mechanism"]
        phases_schema = blocks.mechanism_block(provider)["properties"]["phases"]
        phases = block["phases"]
        wrong = list(problems({**phases_schema, "items": {"type": "object"}}, phases, ("mechanism", "phases")))
        if "steps" in block:
            message = "'steps' is not allowed with 'phases': each phase has its own steps"
            steps_path: Path = ("mechanism", "steps")
            wrong.append(
                Diagnostic(code="conflicting-key", message=message, path=steps_path, help="remove it", at_key=True)
            )
        whole = blocks.phase_block(provider)
        base = fill(whole, {k: v for k, v in block.items() if k not in ("kind", "phases", "steps")})
        filled: list[Json] = []
        for i, phase in enumerate(phases if isinstance(phases, list) else []):
            if not isinstance(phase, dict):
                continue
            phase_values = {key: fill(whole["properties"].get(key, {}), value) for key, value in phase.items()}
            phase_path: Path = ("mechanism", "phases", i)
            for d in problems(whole, {**base, **phase_values}, phase_path):
                inside = d.path[len(phase_path) :]
                if inside and inside[0] not in phase_values:  # the block's value is wrong
                    message = d.message.replace(format_path(phase_path), "mechanism")
                    d = replace(d, path=("mechanism", *inside), message=message)
                wrong.append(d)
            filled.append(phase_values)
        if not wrong:
            base = cast(whole, base)
            filled = [
                {key: cast(whole["properties"].get(key, {}), value) for key, value in phase.items()} for phase in filled
            ]
        self.diagnostics += wrong
        self.document["mechanism"] = {"kind": provider.kind, **base, "phases": filled}


def _top() -> Plain:
    """The schema of the keys of a document. Composition has consumed some; claims are checked separately."""
    top = dict(core("spec"))
    for key in ("dpspec", "extends", "matrix", "claims"):
        top["properties"] = {**top["properties"], key: {"description": top["properties"][key]["description"]}}
    return top


def complete(document: dict[str, Json], catalog: Catalog) -> Checked:
    """A document that a command wrote from valid parts: defaults and converted numbers, without validation.

    It has one mechanism without phases, and no model, loss or attack. Diagnostics name the providers that are missing.
    """
    checked = Checked(fill(_top(), document), catalog)
    document = checked.document
    mechanism, dataset, backend = map(checked.provider, ("mechanism", "data", "training"))
    if checked.diagnostics:
        return checked

    def completed(schema: Plain, block: Json) -> Json:
        return cast(schema, fill(schema, block))

    document["mechanism"] = completed(blocks.mechanism_block(mechanism), document["mechanism"])
    document["data"] = completed(blocks.kind_block("data", dataset), document["data"])
    document["training"] = completed(blocks.training_block(backend), document["training"])
    document["threat_model"] = completed(blocks.threat_model_block(mechanism), document["threat_model"])
    document["claims"] = [completed(claim_block(claim["kind"], mechanism), claim) for claim in document["claims"]]
    return checked


def check(document: dict[str, Json], catalog: Catalog) -> Checked:
    version = document.get("dpspec")
    if version is not None and (isinstance(version, bool) or version != VERSION):
        # The other rules may not apply to another version, so report nothing else.
        message = f"this dpspec supports version {VERSION} of the spec language, got {shown(version)}"
        hint = f"write dpspec: {VERSION}, or install a dpspec release that supports this version"
        wrong = [Diagnostic(code="unsupported-version", message=message, path=("dpspec",), help=hint)]
        return Checked(document, catalog, wrong)
    top = _top()
    checked = Checked(fill(top, document), catalog, list(problems(top, document)))
    document = checked.document
    commands: list[str] = []  # that install the missing packages
    if isinstance(document.get("requires"), list) and document["requires"]:
        unmet = list(check_requirements(document["requires"]))
        checked.diagnostics += unmet
        commands = [d.help for d in unmet if d.code == "unmet-requirement" and d.help]
    mechanism = checked.provider("mechanism")
    if mechanism is not None and mechanism.steps and "phases" in document["mechanism"]:
        checked.phases(mechanism)
    elif mechanism is not None:
        checked.block("mechanism", blocks.mechanism_block(mechanism))
    for name in ("data", "model"):
        if (provider := checked.provider(name)) is not None:
            checked.block(name, blocks.kind_block(name, provider))
    written = document.get("training")
    if written == {} and "native" not in catalog.backends:
        checked.block("training", core("training"))  # no backend selected
    elif isinstance(written, dict):
        document["training"] = {"backend": "native", **written}
        loss_path: Path = ("training", "loss", "kind")
        if isinstance(written.get("loss"), str):
            document["training"]["loss"] = {"kind": written["loss"]}
            loss_path = ("training", "loss")
        loss = checked.loss(document["training"].get("loss"), loss_path)
        if (backend := checked.provider("training")) is not None:
            unknown = loss is None and "loss" in document["training"]
            checked.block("training", blocks.training_block(backend, loss), open=unknown)
    threat_model: dict[str, Json] | None = None
    if checked.block("threat_model", blocks.threat_model_block(mechanism), open=mechanism is None):
        threat_model = document["threat_model"]
        if isinstance(threat_model["group_size"], int):
            threat_model["group_size"] = [threat_model["group_size"]]
    if "audit" in document:
        wrong = []
        if mechanism is not None:
            attack = selected_attack(document["audit"], mechanism, threat_model, catalog)
            checked.canary, checked.score, wrong = attack
        schema = blocks.audit_block(mechanism, checked.canary, checked.score)
        checked.block("audit", schema, open=mechanism is None or bool(wrong))
        checked.diagnostics += wrong
    document["claims"], wrong = check_claims(document.get("claims", []), mechanism, threat_model)
    checked.diagnostics += wrong
    document["dpspec"] = VERSION
    diagnostics = list(dict.fromkeys(checked.diagnostics))
    # A missing required package may provide an unknown kind.
    if commands:
        hint = f"a missing required package may provide it: {'; '.join(commands)}"
        diagnostics = [replace(d, help=f"{d.help}; {hint}") if d.code == "unknown-kind" else d for d in diagnostics]
    checked.diagnostics = diagnostics
    return checked
