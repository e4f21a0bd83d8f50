"""Warnings of the trainings that these tests record."""

from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Ignore what Opacus and torch warn of at each training; the recorder's own warnings stay errors."""
    for item in items:
        if item.path.parent == _FOLDER:
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning"), append=False)
