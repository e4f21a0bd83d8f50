"""DP-SGD of jax-privacy with one call in each step, and a plan's event compared with the executed steps."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpspec
from dpspec.errors import UsageError

jax = pytest.importorskip("jax", exc_type=ImportError)
optax = pytest.importorskip("optax", exc_type=ImportError)
jax_recordings = pytest.importorskip("dpspec.integrations.jax", exc_type=ImportError)
jnp, differences, record_steps = jax.numpy, jax_recordings.differences, jax_recordings.record_steps

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore")]


def test_the_script_of_the_guide_is_proved_and_agrees_with_its_plan(tmp_path, monkeypatch):
    pytest.importorskip("jax_privacy", exc_type=ImportError)
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    page = Path(__file__).parents[2] / "docs" / "how-to" / "audit-your-own-loop.md"
    (code,) = re.findall(r"<!-- file: jax_loop.py -->\n```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), "exec"), {"__name__": "jax_loop"})
    assert dpspec.check("jax", epsilon=4, accept=("not-replayed",)).proved
    step = PoissonSampledDpEvent(0.05, GaussianDpEvent(1.2))
    assert differences("jax", SelfComposedDpEvent(step, 60)) == []
    assert differences("jax", SelfComposedDpEvent(step, 50)) == [
        "gaussian noise 1.2, rate 0.05: 50 steps in the plan, 60 executed"
    ]
    assert differences("jax", SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.5)), 60)) == [
        "gaussian noise 1.2, rate 0.05: 0 steps in the plan, 60 executed",
        "gaussian noise 1.5, rate 0.05: 60 steps in the plan, 0 executed",
    ]


def test_half_the_noise_deviates_and_missing_norms_are_refused(tmp_path: Path) -> None:
    random = np.random.default_rng()
    params: Any = {"w": jnp.zeros((8, 4))}
    declared = {"clip_norm": 1.0, "noise_multiplier": 1.0, "rate": 0.2, "records": 100}
    with record_steps(tmp_path / "run", params, None, **declared) as steps:
        for number in range(40):
            drawn = np.flatnonzero(random.random(100) < 0.2)
            total = {"w": jnp.zeros((8, 4))}
            noisy = {"w": jnp.asarray(0.5 * random.normal(size=(8, 4)), jnp.float32)}
            gradient = {"w": noisy["w"] / 20.0}
            params = {"w": params["w"] - gradient["w"]}
            if number == 0:
                with pytest.raises(UsageError, match="report got 2 norms of 3 records: give return_grad_norms=True"):
                    steps.report([1, 2, 3], np.ones(2), total, noisy, gradient, params)
            filled = np.append(drawn, [-1, -1])
            steps.report(filled, np.zeros(len(filled)), total, noisy, gradient, params)
        assert steps.epsilon(1e-5) > 0.0
    checked = dpspec.check(tmp_path / "run", epsilon=50)
    assert not checked.proved
    assert "times the declared standard deviation" in " ".join(checked.result.audits[0].recording.faults)


#: Clip norm, noise multiplier, rate and number of records of `training`.
DECLARED: Any = {"clip_norm": 1.0, "noise_multiplier": 1.0, "rate": 0.2, "records": 100}

LABELS = {"backbone": {"w": "fixed"}, "head": {"b": "trained", "w": "trained"}}


def training(
    folder: Path, optimizer: Any, frozen: Any, *, noise_of_frozen: float = 0.0, moves: bool = False, lr: float = 1.0
) -> None:
    """Forty steps of a head of 8 x 8 on a backbone that gets no gradient. lr: another rate in the state at step 20."""
    random = np.random.default_rng()
    params: Any = {"backbone": {"w": jnp.ones((6, 8))}, "head": {"b": jnp.zeros(8), "w": jnp.zeros((8, 8))}}
    state = optimizer.init(params)
    with record_steps(folder, params, optimizer, frozen=frozen, **DECLARED) as steps:
        for number in range(40):
            drawn = np.flatnonzero(random.random(100) < 0.2)
            total = jax.tree.map(jnp.zeros_like, params)
            scale = {"backbone": noise_of_frozen, "head": 1.0}
            noisy = {
                part: {
                    name: jnp.asarray(scale[part] * random.normal(size=v.shape), jnp.float32) for name, v in of.items()
                }
                for part, of in total.items()
            }
            gradient = jax.tree.map(lambda v: v / 20.0, noisy)
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
            if moves and number == 20:
                params["backbone"]["w"] = params["backbone"]["w"].at[0, 0].add(0.01)
            steps.report(drawn, np.zeros(len(drawn)), total, noisy, gradient, params)
            if lr != 1.0 and number == 20:
                state.hyperparams["learning_rate"] = jnp.asarray(lr)


def found(folder: Path) -> tuple[bool, str]:
    """Whether the claim is proved, and the faults."""
    checked = dpspec.check(folder, epsilon=50, accept=("not-replayed",))
    recording = checked.result.audits[0].recording
    return checked.proved, " ".join(recording.faults)


def by_label() -> Any:
    return optax.multi_transform({"trained": optax.adam(0.1), "fixed": optax.set_to_zero()}, LABELS)


@pytest.mark.parametrize(
    "frozen", [{"backbone": True, "head": False}, {"backbone": {"w": True}, "head": {"b": 0, "w": 0}}]
)
def test_frozen_leaves_need_no_noise_and_labels_name_places_in_the_tree(tmp_path: Path, frozen: Any) -> None:
    training(tmp_path / "run", by_label(), frozen)
    assert found(tmp_path / "run") == (True, "")


def test_frozen_leaves_with_noise_are_proved_and_masks_of_the_tree_decay_weights(tmp_path: Path) -> None:
    training(tmp_path / "frozen", by_label(), {"backbone": True, "head": False}, noise_of_frozen=1.0)
    assert found(tmp_path / "frozen") == (True, "")
    mask = {"backbone": {"w": True}, "head": {"b": False, "w": True}}
    training(tmp_path / "mask", optax.adamw(0.1, weight_decay=0.1, mask=mask), False, noise_of_frozen=1.0)
    assert found(tmp_path / "mask") == (True, "")


def test_a_leaf_without_noise_deviates_unless_it_is_frozen_and_a_frozen_one_must_not_move(tmp_path: Path) -> None:
    training(tmp_path / "run", by_label(), False)
    assert "got less noise than the others, or none" in found(tmp_path / "run")[1]
    with pytest.raises(UsageError, match=r"params\['backbone'\]\['w'\] is declared frozen, and moved"):
        training(tmp_path / "moved", by_label(), {"backbone": True, "head": False}, moves=True)


def test_a_changed_learning_rate_in_the_state_deviates_by_name(tmp_path: Path) -> None:
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=1.0)
    for lr in (1.0, 0.5):
        training(tmp_path / str(lr), optimizer, False, noise_of_frozen=1.0, lr=lr)
    assert found(tmp_path / "1.0") == (True, "")
    assert "a learning rate by a loss" in found(tmp_path / "0.5")[1]


def test_trees_that_differ_from_the_parameters_are_refused(tmp_path: Path) -> None:
    params = {"w": jnp.zeros((8, 4))}
    with (
        record_steps(tmp_path / "run", params, None, **DECLARED) as steps,
        pytest.raises(UsageError, match="report got a pytree of 2 arrays, the parameters have 1"),
    ):
        steps.report([1], np.zeros(1), {"v": params["w"], "w": params["w"]}, params, params, params)
