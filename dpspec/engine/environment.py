"""Where a number was made: versions and the machine, without names of people, hosts or folders."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

from dpspec.contract import Catalog, FrozenMap, Json

_LIBRARIES = ("dpspec", "numpy", "scipy", "scikit-learn", "torch")


def environment(catalog: Catalog | None) -> FrozenMap:
    """Versions of Python and of the libraries that numbers depend on; with a catalog, of the plugins too."""
    values: dict[str, Json] = dict(_base())
    if catalog is not None:
        offers = (catalog.mechanisms, catalog.datasets, catalog.models, catalog.backends)
        values["plugins"] = {o.plugin: f"{o.distribution} {o.version}" for offer in offers for o in offer.values()}
    return FrozenMap(values)


@cache
def _base() -> FrozenMap:
    values: dict[str, Json] = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    return FrozenMap({**values, **{library: version_of(library) for library in _LIBRARIES}})


@cache
def version_of(distribution: str) -> str | None:
    """The version that is installed here, None where there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
