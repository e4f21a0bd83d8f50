"""JSON Schema fragments shared by mechanisms, and located errors that several mechanisms share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dpspec.contract.frozen import Json
from dpspec.contract.noise import NOISES, NoiseKind, offer_noises
from dpspec.contract.sampling import OPTIONS, SCHEMES, SamplingKind, offer_schemes
from dpspec.errors import Diagnostic, Path

if TYPE_CHECKING:
    from dpspec.contract.findings import Facts
    from dpspec.contract.spec import Spec


def number(
    description: str,
    *,
    above: float | None = None,
    below: float | None = None,
    least: float | None = None,
    most: float | None = None,
    default: float | None = None,
) -> dict[str, Json]:
    """Schema of a number; ``above`` and ``below`` are exclusive limits. Required without ``default``."""
    limits: dict[str, Json] = {"exclusiveMinimum": above, "exclusiveMaximum": below}
    return _fragment({"type": "number", **limits, "minimum": least, "maximum": most, "default": default}, description)


def integer(
    description: str, *, least: int | None = None, most: int | None = None, default: int | None = None
) -> dict[str, Json]:
    """Schema of an integer from ``least`` to ``most``, inclusive. Required without ``default``."""
    return _fragment({"type": "integer", "minimum": least, "maximum": most, "default": default}, description)


def string(description: str) -> dict[str, Json]:
    """Schema of a string that is not empty. Required."""
    return _fragment({"type": "string", "minLength": 1}, description)


def flag(description: str, *, default: bool | None = None) -> dict[str, Json]:
    """Schema of a boolean. Required without ``default``."""
    return _fragment({"type": "boolean", "default": default}, description)


def choice(description: str, *values: str, default: str | None = None) -> dict[str, Json]:
    """Schema of one of several strings. Required without ``default``."""
    return _fragment({"enum": list(values), "default": default}, description)


def array(
    description: str,
    items: dict[str, Json],
    *,
    least: int | None = None,
    most: int | None = None,
    unique: bool | None = None,
    default: Sequence[Json] | None = None,
) -> dict[str, Json]:
    """Schema of ``least`` to ``most`` ``items``, distinct if ``unique``. Required without ``default``."""
    limits: dict[str, Json] = {"minItems": least, "maxItems": most, "uniqueItems": unique, "default": default}
    return _fragment({"type": "array", "items": items, **limits}, description)


def block(
    description: str | None = None, required: Sequence[str] | None = None, /, **properties: Json
) -> dict[str, Json]:
    """Schema of a mapping with exactly these keys, each with its own schema; ``required`` ones must be present.

    >>> block("A circle.", ["radius"], radius={"type": "number"})["required"]
    ['radius']

    Raises:
        TypeError: The description is not a text, as in ``block({"radius": ...})``: keys are arguments by name.
    """
    first_argument: object = description  # callers without types pass the keys as a mapping
    if not isinstance(first_argument, str | None):
        text = f"the description of a block must be a text or None, got a {type(first_argument).__name__}"
        raise TypeError(f"{text}: give the keys by name, block(None, **keys)")
    shape: dict[str, Json] = {"type": "object", "properties": properties, "required": required}
    return _fragment({**shape, "additionalProperties": False}, description)


def _fragment(keywords: dict[str, Json], description: str | None) -> dict[str, Json]:
    entries = {**keywords, "description": description}
    return {key: value for key, value in entries.items() if value is not None}


NOISE_MULTIPLIER: dict[str, Json] = number(
    "Standard deviation of the noise divided by clip_norm. The noise is added to the sum of clipped gradients.",
    least=0,
    most=1e6,
)

#: Smallest noise multiplier above 0 of a step with a meaningful bound: below it epsilon exceeds 10^11.
LEAST_NOISE_MULTIPLIER = 1e-6

#: Outside this range, float32 rounding exceeds the accounted fraction of the clip norm, or sums and noise overflow.
LEAST_CLIP_NORM, MOST_CLIP_NORM = 1e-30, 1e30

CLIP_NORM: dict[str, Json] = number(
    "Each record's gradient is scaled down to at most this l2 norm.", least=LEAST_CLIP_NORM, most=MOST_CLIP_NORM
)

SHARD_RUNS: dict[str, Json] = integer(
    "Maximum number of runs trained together in one task, so that workers share the runs. Default: as "
    "many as fit into memory, at most 64, the fastest on one core. Seeds do not change; rounding does.",
    least=1,
    most=1_000_000,
)


def sampling_schema() -> dict[str, Json]:
    """Schema of the ``sampling`` block: the schemes of ``SCHEMES``, and their required and forbidden options."""
    scheme_options: dict[str, Json] = {}
    for name, schema in OPTIONS.items():
        schemes = ", ".join(scheme for scheme, options in SCHEMES.items() if name in (*options.takes, *options.may))
        scheme_options[name] = {**schema, "description": f"{schema['description']} ({schemes})."}
    conditions: list[Json] = []
    for scheme, options in SCHEMES.items():
        refused = [name for name in OPTIONS if name not in (*options.takes, *options.may)]
        needs = {"required": list(options.takes)} if options.takes else {}
        condition = {"properties": {"scheme": {"const": scheme}}, "required": ["scheme"]}
        conditions.append({"if": condition, "then": {**needs, "properties": dict.fromkeys(refused, False)}})
    return {
        "type": "object",
        "description": "Sampling of batches, independent across steps unless shuffled or allocated at random.",
        "properties": {
            "scheme": {
                "enum": list(SCHEMES),
                "description": " ".join(f"{scheme}: {options.says}." for scheme, options in SCHEMES.items()),
            },
            **scheme_options,
            "unit": choice(
                "The sampled and clipped unit; default record. user (only poisson, with threat_model.unit: "
                "user): every user enters with probability rate and contributes one gradient, the mean over "
                "records_per_user of the user's records.",
                "record",
                "user",
            ),
            "records_per_user": integer(
                "Maximum number of averaged records of a drawn user, chosen uniformly at each step (unit: user).",
                least=1,
            ),
        },
        "required": ["scheme"],
        "additionalProperties": False,
        "allOf": [
            *conditions,
            {
                "if": {"properties": {"unit": {"const": "user"}}, "required": ["unit"]},
                "then": {"required": ["records_per_user"]},
                "else": {"properties": {"records_per_user": False}},
            },
        ],
    }


SAMPLING: dict[str, Json] = sampling_schema()


def use_schemes(kinds: Mapping[str, SamplingKind]) -> None:
    """Make third-party schemes available to specs, and their names to the fragment ``SAMPLING`` of all mechanisms."""
    if offer_schemes(kinds):
        SAMPLING.update(sampling_schema())


def noise_schema() -> dict[str, Json]:
    """Schema of the name of a distribution of noise; any string if no plugin offers one, for an error that says so."""
    offered = "".join(f" {kind}: {noise.summary}." for kind, noise in NOISES.items())
    schema = string(f"Distribution of the noise, of an installed plugin.{offered}")
    return {**schema, "enum": list(NOISES)} if NOISES else schema


NAMED_NOISE: dict[str, Json] = noise_schema()


def use_noises(kinds: Mapping[str, NoiseKind]) -> None:
    """Make third-party distributions of noise available to specs, and their names to the fragment ``NAMED_NOISE``."""
    if offer_noises(kinds):
        NAMED_NOISE.clear()
        NAMED_NOISE.update(noise_schema())


NOISE: dict[str, Json] = choice(
    "Distribution of the noise, independent for every parameter. Both have the same standard deviation; "
    "the scale of laplace is this divided by sqrt(2). Default gaussian.",
    "gaussian",
    "laplace",
)


def other_adjacencies(
    spec: Spec, covered: str | Sequence[str], theory: str, help: str | None = None
) -> Iterator[Diagnostic]:
    """An ``unsupported`` error at every adjacency other than the ``covered`` ones, of the threat model and of claims.

    theory: Subject of the message, for example ``the group theory``.
    """
    declared = spec.threat_model.adjacency
    named: list[tuple[Path, str]] = [(("threat_model", "adjacency"), declared)]
    named += [(("claims", i, "adjacency"), c.adjacency) for i, c in enumerate(spec.claims) if c.adjacency != declared]
    names = (covered,) if isinstance(covered, str) else tuple(covered)
    for path, adjacency in named:
        if adjacency not in names:
            message = f"{theory} covers {' and '.join(names)} adjacency only, not {adjacency}"
            yield Diagnostic(code="unsupported", message=message, path=path, help=help)


def in_phase(spec: Spec, number: int, *keys: str) -> Path:
    """Location of a value of phase ``number``: in that phase, or in the shared mechanism block."""
    phases = spec.mechanism.get("phases")
    in_phase_block = phases is not None and keys[0] in phases[number]
    return ("mechanism", "phases", number, *keys) if in_phase_block else ("mechanism", *keys)


def untrainable(spec: Spec, facts: Facts, needs: Iterable[str] = ()) -> Iterator[Diagnostic]:
    """Errors of a spec that cannot be trained: no rows, no model, or a backend without the capabilities ``needs``."""
    yield from requires_data(facts)
    yield from requires_model(facts)
    yield from requires_capabilities(spec, facts, dict.fromkeys(needs))


def requires_data(facts: Facts) -> Iterator[Diagnostic]:
    """Error ``data-not-at-hand`` of an audit that trains on data that is only declared."""
    if facts.digest is None:
        message, help = "data that is only declared can be bounded, not trained on", "leave audit out, or name the data"
        yield Diagnostic(code="data-not-at-hand", message=message, path=("audit",), help=help)


def requires_model(facts: Facts) -> Iterator[Diagnostic]:
    """Error ``no-model`` of an audit that trains without a model."""
    if facts.parameters is None:
        message = "an audit trains a model, and the spec names none"
        yield Diagnostic(code="no-model", message=message, path=("audit",))


def requires_capabilities(spec: Spec, facts: Facts, needs: Mapping[str, str | None]) -> Iterator[Diagnostic]:
    """Error ``missing-capability`` for each of ``needs`` that the backend lacks; the values are help texts."""
    for need, instead in needs.items():
        if need not in facts.capabilities:
            message = f"this attack needs {need!r}, which backend {spec.training.kind!r} does not support"
            path: Path = ("training", "backend")
            yield Diagnostic(code="missing-capability", message=message, path=path, help=instead)
