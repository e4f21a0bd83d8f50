"""DP-SGD of jax-privacy with one call in each step, and a plan's event compared with the executed steps."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax_privacy", exc_type=ImportError)

import jax.numpy as jnp
import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

import dpspec
from dpspec.errors import UsageError
from dpspec.integrations.jax import differences, record_steps

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore")]


def test_the_script_of_the_guide_is_proved_and_agrees_with_its_plan(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "audit-your-own-loop.md"
    (code,) = re.findall(r"<!-- file: jax_loop.py -->\n```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), "exec"), {"__name__": "jax_loop"})
    assert dpspec.check("jax", epsilon=4).proved
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
