"""Loops without torch: their arrays, and updates that an optimizer of optax repeats."""

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run

import dpspec
from dpspec.errors import UsageError
from dpspec.results.conformance_status import rejected
from dpspec_recording.observers.update_rule.updates import UpdateFacts, Updates
from dpspec_recording.watching.arrays import tensor_of

RECORDS, RATE, CLIP, SIGMA, SHAPES = 200, 0.1, 0.5, 1.5, ((8, 5), (5,))

#: Momentum, in the form of optax.
OPTAX = """
from typing import NamedTuple

class GradientTransformation(NamedTuple):
    init: object
    update: object

def momentum(rate, decay=0.9):
    rate = rate if callable(rate) else (lambda value: lambda count: value)(rate)

    def init(params):
        return 0, [0.0 * p for p in params]

    def update(gradients, state, params=None):
        count, kept = state
        kept = [decay * k + g for k, g in zip(kept, gradients)]
        return [-rate(count) * k for k in kept], (count + 1, kept)

    return GradientTransformation(init, update)
"""


class Array:
    """An array of another library: NumPy converts it, and it has no method of a tensor."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self._values, dtype=dtype)


@pytest.fixture
def optax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A small library with the interface and the name of optax."""
    folder = tmp_path / "libraries" / "optax"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(OPTAX, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "optax", raising=False)
    yield importlib.import_module("optax")
    sys.modules.pop("optax", None)


def loop(folder: Path, optimizer: Any = None, stepping: Any = None, fault: str = "", kind: Any = Array) -> CheckedRun:
    """A linear regression. stepping: the optimizer of the loop, if it is another than the recorded one."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(RECORDS, SHAPES[0][0])).astype(np.float32)
    y = x[:, :5] + 1.0
    params = [np.zeros(shape, np.float32) for shape in SHAPES]
    rule, state = stepping or optimizer, None
    if rule is not None:
        state = rule.init(params)
    meant = {"noise_multiplier": SIGMA, "clip_norm": CLIP, "rate": RATE, "records": RECORDS}
    with dpspec.record(folder, model=[kind(p) for p in params], optimizer=optimizer, **meant) as run:
        for step in range(40):
            drawn = np.flatnonzero(rng.random(RECORDS) < RATE)
            left = x[drawn] @ params[0] + params[1] - y[drawn]
            rows = [x[drawn][:, :, None] * left[:, None, :], left]
            norms = np.sqrt(sum(np.square(row).reshape(len(drawn), -1).sum(1) for row in rows))
            factors = np.minimum(1.0, CLIP / np.maximum(norms, 1e-12)).astype(np.float32)
            total = [np.einsum("i,i...", factors, row).astype(np.float32) for row in rows]
            size = SIGMA * CLIP * (0.5 if fault == "half" else 1.0)
            noise = [(size * rng.normal(size=shape)).astype(np.float32) for shape in SHAPES]
            gradients = [(t + n) / np.float32(RATE * RECORDS) for t, n in zip(total, noise, strict=True)]
            if rule is None:
                updates = [-np.float32(0.1) * g for g in gradients]
            else:
                updates, state = rule.update(gradients, state, params)
            params = [(p + u).astype(np.float32) for p, u in zip(params, updates, strict=True)]
            if fault == "fitted" and step == 30:
                params[1] = params[1] + np.float32(1e-4) * total[1]
            run.sampled(kind(drawn))
            run.clipped(kind(norms * factors))
            run.summed([kind(t) for t in total])
            run.noised([kind(n) for n in noise] if step % 2 else kind(np.concatenate([n.ravel() for n in noise])))
            reported = None if fault == "no gradients" else [kind(g) for g in gradients]
            run.stepped(parameters=[kind(p) for p in params], gradients=reported)
    return check_run(folder, Question(delta=1e-5, epsilon=100.0, accept=("not-replayed",)))


@pytest.mark.family
@pytest.mark.parametrize("kind", [np.asarray, Array, torch.from_numpy])
def test_arrays_of_any_library_are_recorded(kind: Any, tmp_path: Path) -> None:
    found = loop(tmp_path / "run", kind=kind)
    assert found.status == ("proved", "no-deviation-found")
    assert {"loop-reports", "model-state", "update-rule"} <= {one.name for one in found.assumptions}
    confirmed = " ".join(found.audit.recording.confirm)
    for words in (
        "by its own coin with the one declared rate (no buckets, strata, households, turns, hash, list or loss)",
        "no loss or norm decides that noise is drawn again, no key or random number has two uses",
        "the noise is Gaussian in all directions, of one size for all batches, and beyond",
        "the reported arrays are the whole model",
    ):
        assert words in confirmed
    of_sizes = "no weight, factor or clipping of a record follows the number of records in its batch"
    assert of_sizes not in confirmed
    question = Question(delta=1e-5, epsilon=100.0, adjacency="add-remove")
    assert of_sizes in check_run(tmp_path / "run", question).audit.recording.confirm
    *_, end = found.run.folder.steps()
    assert end.of(Updates) == UpdateFacts(
        steps=0, recomputed=0, different=0, failed=0, optimizer="LoopUpdate", replayed=0, moved=0, step_hooks=()
    )


@pytest.mark.ci
def test_updates_of_optax_are_repeated(optax: Any, tmp_path: Path) -> None:
    found = loop(tmp_path / "run", optax.momentum(0.1))
    assert found.status == ("proved", "no-deviation-found")
    assert "clipping by coordinates or layers leaves longer ones" in " ".join(found.audit.recording.confirm)
    *_, end = found.run.folder.steps()
    assert end.of(Updates) == UpdateFacts(
        steps=40, recomputed=40, different=0, failed=0, optimizer="", replayed=0, moved=0, step_hooks=()
    )
    assert "update-rule" not in {one.name for one in found.assumptions}
    (check,) = [one for one in found.checks if one.assumption == "update-rule"]
    assert (check.note, check.detectable) == ("at 40 of 40 steps", 2.0**-16)


@pytest.mark.family
@pytest.mark.parametrize(
    ("fault", "decay", "words"),
    [
        ("fitted", 0.9, "updates that differ from the recomputed update"),
        ("half", 0.9, "chi-square, two-sided"),
        ("", 0.8, "updates that differ from the recomputed update"),  # another optimizer than the recorded one
    ],
)
def test_faults_of_a_loop_of_arrays_are_found(fault: str, decay: float, words: str, optax: Any, tmp_path: Path) -> None:
    found = loop(tmp_path / "run", optax.momentum(0.1), optax.momentum(0.1, decay=decay), fault=fault)
    assert found.verdict == "open"
    assert any(words in one.test for one in found.checks if rejected(one, len(found.checks)))


@pytest.mark.ci
def test_an_optimizer_with_code_of_the_script_is_an_assumption(optax: Any, tmp_path: Path) -> None:
    found = loop(tmp_path / "run", optax.momentum(lambda count: 0.1 / (1.0 + count)))
    assert found.verdict == "proved"
    (assumed,) = [one for one in found.assumptions if one.name == "update-rule"]
    assert assumed.text.startswith("GradientTransformation, whose updates are not recomputed")


class Rate:
    def __call__(self, count: int) -> float:
        return 0.1


@pytest.mark.parametrize("rate", [Rate(), partial(max, Rate())])
def test_callables_of_the_script_are_found_in_an_optimizer(rate: Any, optax: Any, tmp_path: Path) -> None:
    with dpspec.record(tmp_path / "run", model=[np.zeros(3, np.float32)], optimizer=optax.momentum(rate)) as run:
        run.sampled([1])
    *_, end = check_run(tmp_path / "run", Question(delta=1e-5)).run.folder.steps()
    assert end.of(Updates).optimizer == "GradientTransformation"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("decay", "fault", "words"),
    [
        ((0.9,) * 7, "", "40 updates could not be recomputed"),
        (0.9, "no gradients", "no gradient could be compared with it"),
    ],
)
def test_what_cannot_be_compared_is_open(decay: Any, fault: str, words: str, optax: Any, tmp_path: Path) -> None:
    found = loop(tmp_path / "run", optax.momentum(0.1, decay=decay), optax.momentum(0.1), fault=fault)
    assert (found.verdict, words in found.reason) == ("open", True)


def test_models_and_reports_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    arrays = [np.zeros((2, 3), np.float32), np.zeros(3, np.float32)]
    with pytest.raises(UsageError, match=r"arrays of the model must be float32 or float64, got torch\.float16"):
        dpspec.record(tmp_path / "run", model=[np.zeros(3, np.float16)])
    with pytest.raises(UsageError, match="must be one of optax, or None, got SGD"):
        dpspec.record(tmp_path / "run", model=arrays, optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1))
    with pytest.raises(UsageError, match="numbers of a type of NumPy, got <U1"):
        tensor_of(np.array(["a"]))
    with dpspec.record(tmp_path / "run", model=arrays) as run:
        with pytest.raises(UsageError, match="omit places that only fill a batch"):
            run.sampled(np.array([3, -1]))
        with pytest.raises(UsageError, match="stepped needs parameters=, the arrays after the step"):
            run.stepped()
        with pytest.raises(UsageError, match="parameters must be arrays of the shapes of the model"):
            run.stepped(parameters=arrays[::-1])
    model = torch.nn.Linear(3, 2)
    with dpspec.record(tmp_path / "torch", model=model) as run, pytest.raises(UsageError, match="takes none otherwise"):
        run.stepped(parameters=arrays)
