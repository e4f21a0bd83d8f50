"""Warnings at the first step of a training."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from support.opacus_training import Training
from torch.utils.data import DataLoader


def warned(folder: Path, loader: Any = None, **given: Any) -> list[str]:
    """The warnings of the recorder in a training of two epochs. loader: makes the one that the loop iterates."""
    training = Training(**given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with training.recorder(folder):
            if loader is not None:
                training.loader = loader(training)
            training.train()
    return [str(one.message) for one in caught if "dpspec.record" in str(one.message)]


@pytest.mark.family
@pytest.mark.parametrize("made", [{}, {"clipping": "ghost", "physical": None}])
def test_a_sound_training_gets_no_warning(made: dict[str, Any], tmp_path: Path) -> None:
    assert warned(tmp_path / "run", **made) == []


@pytest.mark.ci
def test_a_shuffled_loader_beside_an_accountant_warns_once(tmp_path: Path) -> None:
    (text,) = warned(tmp_path / "run", poisson=False)
    assert "batches are shuffled" in text


@pytest.mark.ci
def test_a_loader_that_is_not_iterated_warns_once(tmp_path: Path) -> None:
    (text,) = warned(tmp_path / "run", lambda training: DataLoader(training.loader.dataset, batch_size=30))
    assert "used no batch of the loader" in text


@pytest.mark.ci
def test_a_layer_that_is_frozen_in_the_block_warns_at_once(tmp_path: Path) -> None:
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
    training.epochs = 1

    def script() -> None:
        with training.recorder(tmp_path / "run"):
            next(iter(training.model.parameters())).requires_grad_(False)
            training.train()

    with pytest.warns(RuntimeWarning, match="freeze or unfreeze layers before make_private"):
        script()
