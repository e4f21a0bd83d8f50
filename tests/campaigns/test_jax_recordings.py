"""Recordings of DP-SGD with jax-privacy and optax: correct trainings are proved, faulty ones are not.

Needs jax, optax and jax_privacy. ``--run-slow`` runs all trainings.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checked_runs import CheckedRun, Question, check_run

import dpspec
from dpspec.results.conformance_status import rejected
from dpspec_recording.watching.arrays import ArrayModel, ReportedUpdates

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jax_privacy = pytest.importorskip("jax_privacy")
batch_selection = pytest.importorskip("jax_privacy.batch_selection")
execution_plan = pytest.importorskip("jax_privacy.experimental.execution_plan")
jnp = jax.numpy

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ci]

RECORDS, RATE, CLIP, SIGMA, STEPS = 1000, 0.05, 1.0, 1.2, 60

#: The claim allows the default number of steps, and not five times that number.
EPSILON = 3.0

_TWO = [np.ones((3, 2), np.float32), np.ones(4, np.float32)]


def _loss(params: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ params["body"]["w"] + params["body"]["b"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["head"], y).mean()


def _epochs(random: np.random.Generator, steps: int) -> Iterator[Any]:
    size = round(RECORDS * RATE)
    for start in range(steps):
        if start % (RECORDS // size) == 0:
            order = random.permutation(RECORDS)
        place = start % (RECORDS // size) * size
        yield order[place : place + size]


def train(
    folder: Path,
    fault: str = "",
    *,
    optimizer: Any = None,
    steps: int = STEPS,
    plan: bool = False,
    compiled: bool = True,
    reported: bool = True,
) -> None:
    """Train and record. plan: use jax-privacy's execution plan. reported: give the optimizer to the recorder."""
    random = np.random.default_rng()
    x = random.normal(size=(RECORDS, 10)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    body = {"w": jnp.asarray(0.3 * random.normal(size=(10, 16)), jnp.float32), "b": jnp.zeros(16)}
    params = {"body": body, "head": jnp.zeros((16, 2))}
    optimizer = optimizer or optax.adam(0.01)
    given, stepping = optimizer, optax.adam(0.02) if fault == "other learning rate" else optimizer
    arguments: dict[str, Any] = {"batch_argnums": (1, 2), "return_grad_norms": True}
    batches: Any = batch_selection.CyclicPoissonSampling(sampling_prob=RATE, iterations=steps)
    privatizer = jax_privacy.noise_addition.gaussian_privatizer(
        stddev=SIGMA * CLIP * (0.5 if fault == "half the noise" else 1.0)
    )
    limit = 10.0 if fault == "clip norm" else CLIP
    clipped_grad = jax_privacy.clipped_grad(_loss, l2_clip_norm=limit, **arguments)
    if plan:
        made = execution_plan.BandMFExecutionPlanConfig(
            strategy=np.ones(1) if fault != "correlated noise" else np.array([1.0, 0.5]),
            iterations=steps,
            epsilon=None,
            delta=None,
            noise_multiplier=SIGMA,
            sampling_prob=RATE,
            l2_clip_norm=CLIP,
            rescale_to_unit_norm=False,
        ).plan
        batches, privatizer = made.batch_selection_strategy, made.noise_addition_transform
        clipped_grad = made.clipped_grad(_loss, **arguments)
    noise_state, state = privatizer.init(params), stepping.init(params)

    def step(params: Any, noise_state: Any, state: Any, x: Any, y: Any, padding: Any) -> Any:
        total, aux = clipped_grad(params, x, y, is_padding_example=padding)
        noisy, noise_state = privatizer.update(total, noise_state)
        noise = jax.tree.map(jnp.subtract, noisy, total)
        if fault == "noise of one layer":
            noisy = {**noisy, "head": total["head"]}
        gradient = jax.tree.map(lambda leaf: leaf / (RATE * RECORDS), noisy)
        if fault == "gradient of a sum":
            gradient = jax.tree.map(lambda leaf, t: leaf + 0.02 * t / len(x), gradient, total)
        updates, state = stepping.update(gradient, state, params)
        norms = jnp.minimum(aux.grad_norms, limit)
        return optax.apply_updates(params, updates), noise_state, state, total, noise, gradient, norms

    leaves, make = jax.tree.leaves, jax.jit(step) if compiled else step
    drawing = batches.batch_iterator(RECORDS) if fault != "shuffled" else _epochs(random, steps)
    meant = {"noise_multiplier": SIGMA, "clip_norm": CLIP, "rate": RATE, "records": RECORDS}
    with dpspec.record(folder, model=leaves(params), optimizer=given if reported else None, **meant) as run:
        for number, drawn in enumerate(drawing):
            rows = batch_selection.pad_to_multiple_of(drawn, 128)
            params, after, state, total, noise, gradient, norms = make(
                params, noise_state, state, x[rows], y[rows], rows < 0
            )
            if fault not in ("repeated key", "key of two steps") or (fault == "key of two steps" and number % 2):
                noise_state = after
            if fault == "fitted outside" and number == steps - 1:
                params = {**params, "head": params["head"] + 1e-4 * total["head"]}
            run.sampled(drawn)
            run.clipped(norms[: len(drawn)])
            run.summed(leaves(total))
            run.noised(leaves(noise))
            run.stepped(parameters=leaves(params), gradients=None if fault == "no gradients" else leaves(gradient))


def scheduled() -> Any:
    """Return an optimizer of optax with a schedule, decay and momentum."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.02, 10, STEPS)
    return optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(rate, weight_decay=0.01))


def own_rate(count: Any) -> Any:
    return 0.1 / (1.0 + count)


class OwnNumber(float):
    def __rmul__(self, other: Any) -> Any:
        return -0.1 * other


#: Optimizers of optax alone: the recorder recomputes their updates.
OPTIMIZERS = {
    **{name: getattr(optax, name)(0.1) for name in ("adam", "adamw", "lamb", "lion", "adafactor", "rmsprop", "yogi")},
    "schedule": optax.chain(optax.clip(1.0), optax.adam(optax.exponential_decay(0.1, 10, 0.9))),
    "joined": optax.sgd(optax.join_schedules([optax.constant_schedule(0.1), optax.cosine_decay_schedule(0.1, 9)], [5])),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=optax.linear_schedule(0.1, 0.0, 10)),
    "masked": optax.masked(optax.sgd(0.1, momentum=0.9), [True, False]),
    "partition": optax.partition({"a": optax.sgd(0.1), "b": optax.adam(0.1)}, ["a", "b"]),
    "several steps": optax.MultiSteps(optax.sgd(0.1), 2),
}

#: Optimizers with a function of the script, in each wrapper that JAX has for functions.
FOREIGN = {
    "schedule": optax.sgd(own_rate),
    "compiled": optax.sgd(jax.jit(own_rate)),
    "partial": optax.sgd(jax.tree_util.Partial(own_rate)),
    "derivative": optax.sgd(jax.custom_jvp(own_rate)),
    "vectorized": optax.sgd(jax.vmap(own_rate)),
    "recomputed": optax.sgd(jax.checkpoint(own_rate)),
    "joined": optax.sgd(optax.join_schedules([own_rate, optax.constant_schedule(0.1)], [5])),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=own_rate),
    "stateless": optax.chain(optax.stateless(lambda updates, params: updates), optax.sgd(0.1)),
    "mask": optax.masked(optax.sgd(0.1), lambda params: [True, False]),
    "number": optax.scale(OwnNumber()),
    "class": optax.sgd(OwnNumber),
    "transformation": optax.GradientTransformation(
        lambda params: (), lambda updates, state, params=None: (updates, ())
    ),
}


def repeated(optimizer: Any) -> tuple[Any, str]:
    """Return the recorder's counts over five compiled updates, and the name of an unsupported optimizer."""
    params: Any = _TWO
    recorder = ReportedUpdates(ArrayModel(params), optimizer)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for seed in range(5):
        random = np.random.default_rng(seed)
        gradients = [random.normal(size=p.shape).astype(np.float32) for p in params]
        updates, state = update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        recorder.report(params, gradients)
        recorder.before_step()
        recorder.step()
    return (recorder.steps, recorder.recomputed, recorder.different, recorder.failed), recorder.kind


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_optax_are_recomputed(name: str) -> None:
    assert repeated(OPTIMIZERS[name]) == ((5, 5, 0, 0), "")


@pytest.mark.parametrize("name", FOREIGN)
def test_a_function_of_the_script_is_detected(name: str) -> None:
    assert ReportedUpdates(ArrayModel(_TWO), FOREIGN[name]).kind


#: Correct trainings, and an assumption that the headline must name.
SOUND: dict[str, tuple[Callable[[Path], None], str]] = {
    "compiled": (train, "model-state"),
    "execution plan": (lambda f: train(f, plan=True), "loop-reports"),
    "not compiled": (lambda f: train(f, compiled=False), "loop-reports"),
    "schedule": (lambda f: train(f, optimizer=scheduled()), "loop-reports"),
    "momentum": (lambda f: train(f, optimizer=optax.sgd(0.1, momentum=0.9, nesterov=True)), "loop-reports"),
    "own schedule": (lambda f: train(f, optimizer=FOREIGN["schedule"]), "update-rule"),
    "own updates": (lambda f: train(f, reported=False), "update-rule"),
}

#: Faults, with words of the expected check or reason and the options of the training.
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "half the noise": ("chi-square, two-sided", {}),
    "too many steps": ("exceeds the claimed 3", {"steps": 5 * STEPS}),
    "repeated key": ("noise of all steps at one distance along each other", {}),
    "key of two steps": ("noise of all steps at one distance along each other", {}),
    "shuffled": ("variance of inclusions per record", {}),
    "correlated noise": ("noise of all steps at one distance along each other", {"plan": True}),
    "clip norm": ("largest clipped norm", {}),
    "noise of one layer": ("gradients other than the reported sum and noise", {}),
    "gradient of a sum": ("gradients other than the reported sum and noise", {}),
    "fitted outside": ("updates that differ from the recomputed update", {}),
    "other learning rate": ("updates that differ from the recomputed update", {}),
    "no gradients": ("no gradient could be compared", {}),
}


def chosen(names: Iterable[str], fast: set[str]) -> list[Any]:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


def words_of(found: CheckedRun) -> str:
    bad = [one.test for one in found.checks if rejected(one, len(found.checks))]
    return "; ".join([*bad, " ".join(found.reason.split())])


@pytest.mark.parametrize("name", chosen(SOUND, {"compiled", "execution plan", "schedule", "own schedule"}))
def test_sound_trainings_are_proved(name: str, tmp_path: Path) -> None:
    run, assumption = SOUND[name]
    run(tmp_path / "run")
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=EPSILON))
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found"), words_of(found)
    assumes = found.audit.recording.assumes if found.audit.recording is not None else ()
    assert assumption in assumes
    assert ("update-rule" in assumes) is (assumption == "update-rule")


FAST_FAULTS = {"half the noise", "too many steps", "repeated key", "shuffled", "fitted outside"}


@pytest.mark.parametrize("name", chosen(FAULTS, FAST_FAULTS))
def test_faults_are_found(name: str, tmp_path: Path) -> None:
    words, options = FAULTS[name]
    train(tmp_path / "run", name, **options)
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=EPSILON))
    assert found.verdict != "proved"
    assert words in words_of(found)
