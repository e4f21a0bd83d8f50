"""Cache keys, seeds and makers of trials.

Mechanism, data, backend, model and attack make a trial. dpspec's own providers increase their ``trial_revision`` when
trials change. For other providers, version and code are part of the key as well, unless they promise
(``revision_only``) to increase their revision.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence

from dpspec.contract import Facts, FrozenMap, Json
from dpspec.contract.catalog import Offered
from dpspec.contract.frozen import digest
from dpspec.registry.loader import normalise
from dpspec.registry.sources import UnknownCodeError, require_unchanged, requirements, source_digest

_SEED_BITS = 63


def trial_key(
    inputs: FrozenMap,
    facts: Facts,
    revisions: FrozenMap,
    chunk: Sequence[int],
    index: int,
    code: FrozenMap = FrozenMap(),  # noqa: B008 - it is frozen
) -> str:
    """The content address of one trial.

    It covers the inputs of trials, the digests of rows and initial weights, the revisions of mechanism, backend,
    dataset and model, and the trial's place in its chunk, because a chunk may be computed together. Claims, confidence
    and the number of runs are excluded, so changing them never trains again.
    """
    identity: dict[str, Json] = {
        "inputs": inputs,
        "data": facts.digest,
        "revisions": revisions,
        "chunk": list(chunk),
        "index": index,
    }
    if facts.initial_weights is not None:
        identity["initial_weights"] = facts.initial_weights
    return digest({**identity, "code": code} if code else identity)


def trial_seed(inputs: FrozenMap, index: int, *purpose: str) -> int:
    """A 63-bit seed for one purpose within one trial."""
    text = "\x1f".join([digest(inputs), str(index), *purpose])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - _SEED_BITS)


_OURS = "dpspec"

#: Fields of descriptors that name code.
_NAMED = ("audit", "source", "trainer", "factory", "make", "score")

#: Prefix of a unique value that replaces an unknown digest.
_UNKNOWN = "unknown-"

#: Values of a maker in a trial's key, besides kind and revision.
_KEYED = ("distribution", "version", "code", "requires")


def maker(kind: str, offered: Offered) -> dict[str, Json]:
    record: dict[str, Json] = {
        "kind": kind,
        "revision": offered.provider.trial_revision,
        "plugin": offered.plugin,
        "distribution": offered.distribution,
        "version": offered.version,
    }
    if _counts(offered):
        try:
            record["code"] = _digest(offered)
        except UnknownCodeError:
            record["code"] = f"{_UNKNOWN}{uuid.uuid4().hex}"
        record["requires"] = dict(requirements(offered.distribution))
    return record


def known_code(offered: Offered) -> str | None:
    try:
        return _digest(offered)[:12] if _counts(offered) else None
    except UnknownCodeError:
        return None


def unknown(offered: Offered) -> str | None:
    if _counts(offered):
        try:
            _digest(offered)
        except UnknownCodeError as error:
            return str(error)
    return None


def revisions_of(makers: FrozenMap) -> FrozenMap:
    return FrozenMap({part: [each["kind"], each["revision"]] for part, each in makers.items()})


def code_in(makers: FrozenMap) -> FrozenMap:
    return FrozenMap(
        {
            part: {name: each.get(name) for name in _KEYED}
            for part, each in makers.items()
            if isinstance(each, Mapping) and "code" in each
        }
    )


def differences(then: FrozenMap, now: FrozenMap) -> Iterator[tuple[str, str, str]]:
    was, is_ = code_in(then), code_in(now)
    for part, each in then.items():
        if (part in was or part in is_) and was.get(part) != is_.get(part):
            here = now.get(part)
            yield part, describe_maker(each), describe_maker(here) if here is not None else "no such provider"


def describe_maker(maker: Mapping[str, Json]) -> str:
    """A maker in words: ``acme 0.2, code 12ab34cd56ef``."""
    code = str(maker.get("code") or "")
    what = ", code unknown" if code.startswith(_UNKNOWN) else f", code {code[:12]}" if code else ""
    return f"{maker.get('distribution')} {maker.get('version')}{what}"


def _counts(offered: Offered) -> bool:
    return normalise(offered.distribution) != _OURS and not offered.provider.revision_only


def _digest(offered: Offered) -> str:
    reference = next(str(getattr(offered.provider, name)) for name in _NAMED if hasattr(offered.provider, name))
    where = offered.distribution, offered.plugin, reference
    digest = source_digest(*where)
    require_unchanged(*where)
    return digest
