"""The number of threads within a context."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import threadpool_info

from dpspec.training import limited


@pytest.fixture(autouse=True)
def _three() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_all_libraries_compute_with_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with limited(2):
        assert torch.get_num_threads() == 2
        assert os.environ["OMP_NUM_THREADS"] == "2"
        assert {pool["num_threads"] for pool in threadpool_info()} == {2}
    assert torch.get_num_threads() == 3
    assert "OMP_NUM_THREADS" not in os.environ


def test_an_error_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    with pytest.raises(ZeroDivisionError), limited(1):
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == 3
    assert os.environ["MKL_NUM_THREADS"] == "5"


@pytest.mark.ci
def test_torch_that_is_loaded_meanwhile_is_limited_and_freed() -> None:
    script = """
        from dpspec.training import limited
        import sys
        with limited(2):
            assert "torch" not in sys.modules
            import torch
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 3
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_libraries_that_are_loaded_between_two_contexts_are_limited() -> None:
    script = """
        from dpspec.training import limited
        import sys
        from threadpoolctl import threadpool_info
        with limited(2):
            assert threadpool_info() == []
        import numpy
        with limited(1):
            assert [pool["num_threads"] for pool in threadpool_info()] == [1]
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, check=True)
