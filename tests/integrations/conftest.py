"""Warnings of the libraries that these tests call."""

from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of trainers, Opacus and torch; the recorder's RuntimeWarnings stay errors."""
    for item in items:
        if item.path.parent == _FOLDER:
            for category in ("UserWarning", "FutureWarning", "DeprecationWarning", "ImportWarning", "ResourceWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"), append=False)
