"""The suite for report formats."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from dpspec.contract import Json
from dpspec.testing.provider import ProviderSuite, require

if TYPE_CHECKING:
    from dpspec.contract.results import Result

#: A small audit without training: one claim holds, the other one fails.
_DOCUMENT: dict[str, Json] = {
    "dpspec": 1,
    "name": "report-sample",
    "mechanism": {
        "kind": "group",
        "noise_multiplier": 4.0,
        "clip_norm": 1.0,
        "sampling": {"scheme": "full"},
        "steps": 4,
    },
    "data": {"kind": "declared", "records": 1000},
    "threat_model": {"group_size": [1, 4]},
    "claims": [
        {"id": "holds", "kind": "approx-dp", "epsilon": 10.0, "delta": 1e-6},
        {"id": "fails", "kind": "approx-dp", "epsilon": 0.01, "delta": 1e-6, "group_size": 4},
    ],
}


@cache
def sample_result() -> Result:
    """Return the result of a small audit without training, with a proved and a refuted claim."""
    from dpspec.engine.running import runner
    from dpspec.engine.storage.trial_store import Store
    from dpspec.language.load import from_document
    from dpspec.registry.loader import load_catalog

    catalog = load_catalog()
    with tempfile.TemporaryDirectory() as folder:
        return runner.run([from_document(_DOCUMENT, catalog)], catalog, store=Store(folder), train=False)


class ReporterSuite(ProviderSuite):
    """Subclass it and set ``kind`` to the name of the format."""

    family: ClassVar[str] = "reporter"

    def test_it_renders_a_result(self) -> None:
        """The format renders a result with a proved and a refuted claim as non-empty text, the same each time."""
        render: Callable[..., str] = self.code()
        for internal in (False, True):
            text = render(sample_result(), internal=internal)
            require(isinstance(text, str) and text.strip(), f"render(internal={internal}) returned no text")
            require(render(sample_result(), internal=internal) == text, "two calls return different texts")
