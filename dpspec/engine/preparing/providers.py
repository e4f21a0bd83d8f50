"""The installed providers that the kinds of a spec name, and the backend's statement about its constants."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from dpspec.contract import Assumption, Backend
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.findings import CONSTANTS
from dpspec.contract.frozen import FrozenMap
from dpspec.contract.noise import noises_of
from dpspec.contract.results import RunFolders
from dpspec.contract.sampling import OWN_SCHEMES, SCHEMES
from dpspec.contract.spec import Section, Spec
from dpspec.errors import PluginError
from dpspec.registry.loader import CORE_KEYS, made, misbehaved, resolve

#: Statuses of a plugin's statement about itself that become ``reported``.
_CAPPED = ("by-construction", "not-rejected", "declared")

#: The fields of the catalog by the part of a spec that chooses from them, with a name for messages.
FAMILIES = {
    "mechanism": ("mechanisms", "mechanism kind"),
    "data": ("datasets", "data kind"),
    "backend": ("backends", "backend kind"),
    "model": ("models", "model kind"),
    "canary": ("canaries", "canary"),
    "score": ("scores", "score"),
    "loss": ("losses", "loss"),
    "sampling": ("sampling_schemes", "sampling scheme"),
    "noise": ("noises", "noise"),
}


def providers_of(spec: Spec, catalog: Catalog) -> dict[str, tuple[str, Offered]]:
    """Kind and provider of each part of a spec, a key of ``FAMILIES``.

    Raises:
        PluginError: No installed plugin offers a kind.
    """
    chosen: dict[str, Any] = {
        "mechanism": spec.mechanism,
        "data": spec.data,
        "backend": spec.training,
        "model": spec.model,
        "canary": None if spec.audit is None else spec.audit.canary,
        "score": None if spec.audit is None else spec.audit.score,
        "sampling": _foreign_scheme(spec),
        "noise": _noise(spec),
        "loss": None if spec.training.get("loss") is None else Section(spec.training["loss"]["kind"]),
    }
    providers = {}
    for part, (family, name) in FAMILIES.items():
        if chosen[part] is None:
            continue
        kind, offers = chosen[part].kind, getattr(catalog, family)
        if kind not in offers:
            raise PluginError(f"no installed plugin offers {name} {kind!r} (see `dpspec plugins`)")
        providers[part] = kind, offers[kind]
    return providers


def run_folders(catalog: Catalog) -> RunFolders:
    """The code for folders of executed runs.

    Raises:
        PluginError: No installed backend reads executed runs.
    """
    for offered in catalog.backends.values():
        if offered.provider.folders:
            return cast("RunFolders", resolve(offered.provider.folders))
    raise PluginError("no installed plugin reads the folder of a recorded training (see `dpspec plugins`)")


def _foreign_scheme(spec: Spec) -> Section | None:
    """The third-party sampling scheme of the spec's phases; dpspec's own need no provider.

    Raises:
        PluginError: The phases have several.
    """
    phases = spec.mechanism.get("phases") or (spec.mechanism.options,)
    blocks = [phase.get("sampling") for phase in phases if isinstance(phase, Mapping)]
    schemes = {str(block.get("scheme")) for block in blocks if isinstance(block, Mapping)}
    foreign = sorted((schemes - OWN_SCHEMES) & SCHEMES.keys())
    if len(foreign) > 1:
        raise PluginError(f"the phases have the sampling schemes {' and '.join(foreign)}: a spec has one of plugins")
    return Section(foreign[0]) if foreign else None


def _noise(spec: Spec) -> Section | None:
    """The distribution of noise that the releases name; dpspec has none by name.

    Raises:
        PluginError: The releases name several.
    """
    names = noises_of(spec.mechanism.options)
    if len(names) > 1:
        raise PluginError(f"the releases have the noises {' and '.join(names)}: a spec has one of plugins")
    return Section(names[0]) if names else None


def kinds_with(offers: Mapping[str, Offered], field: str) -> str:
    return ", ".join(sorted(kind for kind, offered in offers.items() if getattr(offered.provider, field)))


def canary_block(spec: Spec) -> Mapping[str, Any]:
    return (spec.audit.options.get("canary") if spec.audit is not None else None) or {}


def canary_options(spec: Spec) -> FrozenMap:
    """The keys of the canary block that its provider reads."""
    return FrozenMap({key: value for key, value in canary_block(spec).items() if key not in CORE_KEYS["canary"]})


def constants_of(offered: Offered, spec: Spec) -> Assumption:
    backend: Backend = offered.provider
    stated = backend.constants
    if not stated:
        text = f"backend {backend.kind!r} does not say where its divisor, rate and clip norm come from"
        return Assumption(name=CONSTANTS, status="unchecked", text=text)
    if isinstance(stated, str):
        named = resolve(stated)
        stated = named if isinstance(named, Assumption) else made(offered, stated, "its constants", spec)
    if not isinstance(stated, Assumption):
        raise misbehaved(offered, f"its constants are a {type(stated).__name__}, not an Assumption")
    capped = offered.distribution != "dpspec" and stated.status in _CAPPED
    return dataclasses.replace(stated, name=CONSTANTS, status="reported" if capped else stated.status)
