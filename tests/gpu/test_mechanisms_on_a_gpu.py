"""Every mechanism's small audit on a pretended GPU: no tensors of two devices meet; numbers are those of the CPU."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from support.gpu_cases import NAMES, trials, write_case
from support.pretend_gpu import pretend_gpu

import dpspec


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
def test_same_numbers(tmp_path: Path, name: str) -> None:
    """To the last bit: the CPU computes both. What differs on a GPU is how it rounds, not what is computed."""
    if name == "opacus" and find_spec("opacus") is None:
        pytest.skip("opacus is not installed")
    spec = write_case(name, tmp_path, steps=2)
    dpspec.run(spec, store=tmp_path / "cpu", device="cpu")
    with pretend_gpu() as machine:
        (audit,) = dpspec.run(spec, store=tmp_path / "gpu", device="cuda").audits
    assert audit.conformance.status == "no-deviation-found"
    assert machine.cards[0].most_reserved > 0
    assert machine.account.coarse == {}, "products of less than float32"
    expected = trials(tmp_path / "cpu")
    assert expected
    assert trials(tmp_path / "gpu") == expected


@pytest.mark.ci
def test_the_second_gpu(tmp_path: Path) -> None:
    with pretend_gpu(cards=2) as machine:
        dpspec.run(write_case("preprocessing", tmp_path, steps=2), store=tmp_path / "store", device="cuda:1")
    assert machine.cards[1].most_reserved > 0
    assert machine.cards[0].most_reserved == 0
