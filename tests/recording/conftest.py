"""A planted run that was scored, for tests of what it shows and of what becomes of its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    """Ignore what Opacus and torch warn of at each training; the recorder's own warnings stay errors."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning"), append=False)


@pytest.fixture(scope="session")
def scored(tmp_path_factory):
    """Its folder, which no test may write to, the model and the planted data."""
    from support.planted_loop import loss, train

    folder = tmp_path_factory.mktemp("scored") / "run"
    run, model, planted = train(folder, seed=5)
    run.score(model, loss, batch_size=37)
    return folder, model, planted


@pytest.fixture
def copy(scored, tmp_path):
    """Its folder, to be changed."""
    shutil.copytree(scored[0], tmp_path / "run")
    return tmp_path / "run"
