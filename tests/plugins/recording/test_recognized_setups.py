"""Set-ups around a training with Opacus: compiled models, recomputed activations, half precision, wrappers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training, physical_batches
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import dpspec
from dpspec.errors import NothingToRunError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore")


#: The test of each row of the table of set-ups in the documentation, in this file if it names no other.
ROWS = {
    "Lightning": "../../integrations/test_lightning.py: a_recorder_around_fit_proves_a_sound_training",
    "`accelerate`": "what_accelerate_prepares_is_proved",
    "`torch.compile`": "compiled_models_are_proved",
    "`torch.utils.checkpoint`": "sound_set_ups_are_proved",
    "autocast": "sound_set_ups_are_proved",
    "`GradScaler`": "set_ups_without_a_bound_are_open",
    '`clipping="per_layer"`': "sound_set_ups_are_proved",
    '`clipping="adaptive"`': "test_adaptive_count.py: the_noisy_count_is_charged",
    "normalized, automatic clipping (norms below C)": "test_custom_loop_replays.py: "
    "honest_loops_are_replayed_and_proved",
    "Muon, by torch or by the script: momentum and orthogonalization after the noise": (
        "test_custom_loop_per_matrix.py: muon_inside_of_opacus_is_proved"
    ),
    "each matrix clipped to its own threshold C_i": "test_custom_loop_per_matrix.py: "
    "matrices_clipped_alone_are_proved_with_noise_for_all_of_them",
    "parameters in half precision": "test_recorder_false_alarms.py: sums_in_half_precision_have_no_bound",
    "tensor parallelism": "tensor_parallel_models_are_refused_by_name",
    "LoRA": "../../campaigns/test_language_models.py: an_adapter_is_proved",
    "FSDP2": "test_shards.py: a_sound_training_is_proved",
    "JAX, NumPy": "../../campaigns/test_jax_recordings.py: sound_trainings_are_proved",
}


def test_each_set_up_of_the_documentation_has_its_test() -> None:
    here = Path(__file__)
    page = (here.parents[3] / "docs" / "how-to" / "audit-your-own-loop.md").read_text(encoding="utf-8")
    table = page.partition("| set-up | pass |")[2].partition("\n\n")[0]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]] == list(ROWS)
    for place in ROWS.values():
        file, _, name = place.rpartition(": ")
        assert f"def test_{name}(" in (here.parent / (file or here.name)).read_text(encoding="utf-8")


def recorded(folder: Path, training: Training, train: Callable[[], None], **parts: Any) -> CheckedRun:
    with training.recorder(folder, **parts):
        train()
    return check_run(folder, Question(delta=1e-5, epsilon=100.0, accept=("not-replayed",)))


def rejects(found: CheckedRun, words: str) -> bool:
    return found.verdict == "open" and any(words in test for test in found.rejected)


def compiled(module: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, backend="eager")


@pytest.mark.ci  # the compiler takes seconds to import
@pytest.mark.parametrize("clipping", ["flat", "ghost"])
@pytest.mark.parametrize("when", ["before", "after", "inside"])
def test_compiled_models_are_proved(when: str, clipping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(clipping=clipping)
    if when == "before":
        sequential = torch.nn.Sequential
        monkeypatch.setattr("support.opacus_training.nn.Sequential", lambda *layers: compiled(sequential(*layers)))
    training.build()
    if when == "after":
        training.model = compiled(training.model)
    elif when == "inside":
        torch._dynamo.reset()
        training.model._module[0].compile(backend="eager")
    found = recorded(tmp_path / "run", training, training.train)
    assert found.status == ("proved", "no-deviation-found")
    assert found.run.header.model == "Sequential"
    assert found.run.header.layers[0][0] in ("0.weight", "_orig_mod.0.weight")


@pytest.mark.ci
def test_a_compiled_copy_that_computes_the_gradients_is_not_proved(tmp_path: Path) -> None:
    """Its parameters are older than those that the noisy steps left."""
    training, other = Training().build(), Training().build()
    other.model.load_state_dict(training.model.state_dict())
    old = compiled(other.model)

    def train() -> None:
        for x, y in training.loader:
            training.private.zero_grad()
            cross_entropy(old(x), y).backward()
            for p, q in zip(training.model.parameters(), old.parameters(), strict=True):
                p.grad_sample, q.grad_sample = q.grad_sample, None
            training.private.step()

    found = recorded(tmp_path / "run", training, train)
    assert found.verdict == "open"
    assert "no forward pass in training mode was observed at 10 of 10 steps" in found.reason


def moved_for_the_forward_pass(training: Training, called: Any, weight: torch.Tensor) -> None:
    """Gradients at parameters that depend on records; they are the last step's again before the backward pass."""
    for x, y in training.loader:
        training.private.zero_grad()
        kept = weight.data.clone()
        weight.data.add_(0.1 * x.detach().mean())
        scores = called(x)
        weight.data.copy_(kept)
        training.criterion(scores, y).backward()
        training.private.step()


@pytest.mark.ci
@pytest.mark.parametrize("when", ["never", "after", "in place", "after, another given"])
def test_parameters_that_move_for_a_compiled_forward_pass_are_not_proved(when: str, tmp_path: Path) -> None:
    training = Training().build()
    weight, model = training.model._module[0].weight, training.model
    called = compiled(model) if when.startswith("after") else model
    if when == "in place":
        torch._dynamo.reset()
        model.compile(backend="eager")
    given = {"model": called} if when == "after" else {}
    found = recorded(tmp_path / "run", training, lambda: moved_for_the_forward_pass(training, called, weight), **given)
    if when in ("never", "after"):
        assert rejects(found, "gradients computed at other parameters than the last step left")
    else:
        assert found.verdict == "open"
        seen = rejects(found, "gradients computed at other parameters than the last step left")
        assert seen or "compile it by torch.compile, not in place" in found.reason


def moved_by_compiled_code(training: Training) -> None:
    @compiled
    @torch.no_grad()
    def nudge(x: torch.Tensor) -> None:
        training.model._module[2].bias.add_(x.mean())

    training.train(each=lambda t: nudge(torch.ones(3)))


def recomputed(training: Training) -> None:
    for x, y in training.loader:
        training.private.zero_grad()
        cross_entropy(checkpoint(training.model, x.requires_grad_(), use_reentrant=True), y).backward()
        training.private.step()


def recomputed_without_noise(training: Training) -> None:
    def step() -> None:
        training.private.clip_and_accumulate()
        for p in training.private.params:
            p.grad = p.summed_grad / 30.0
        training.private.original_optimizer.step()

    training.private.step = step
    recomputed(training)


@pytest.mark.ci
def test_recomputed_activations_inside_the_model_are_refused_by_opacus(tmp_path: Path) -> None:
    training = Training().build()
    inner = training.model._module
    inner.forward = lambda x: inner[2](checkpoint(lambda rows: inner[1](inner[0](rows)), x, use_reentrant=False))
    with pytest.raises(ValueError, match="Per sample gradient is not initialized"):
        recorded(tmp_path / "run", training, training.train)


def scaled(*, overflow: int = 0, before_update: bool = False, enabled: bool = True) -> Callable[[Training], None]:
    """overflow: every such step has an infinite gradient. before_update: the noisy gradient is scaled."""

    def script(training: Training) -> None:
        scaler, step, optimizer = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=enabled), 0, training.private
        for _ in range(training.epochs):
            for x, y in training.loader:
                step += 1
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = training.criterion(training.model(x), y)
                scaler.scale(loss * (torch.inf if overflow and step % overflow == 0 else 1.0)).backward()
                if before_update:
                    optimizer.pre_step()
                scaler.step(optimizer.original_optimizer if before_update else optimizer)
                scaler.update()

    return script


def larger_clip_norm(training: Training) -> None:
    training.private.max_grad_norms = [0.05, 0.05, 0.05, 0.5]
    training.train()


@pytest.mark.family
@pytest.mark.parametrize(
    ("made", "script", "cautions"),
    [
        ({}, recomputed, ""),
        ({}, scaled(enabled=False), "bfloat16"),
        ({"clipping": "per_layer", "clip": 0.05}, Training.train, ""),
    ],
)
def test_sound_set_ups_are_proved(made: dict[str, Any], script: Any, cautions: str, tmp_path: Path) -> None:
    training = Training(**made).build()
    found = recorded(tmp_path / "run", training, lambda: script(training))
    assert found.status == ("proved", "no-deviation-found")
    assert cautions in " ".join(found.cautions)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("made", "script", "deviates", "words"),
    [
        ({}, moved_by_compiled_code, True, "parameter changes outside the DP optimizer"),
        ({}, recomputed_without_noise, True, "parameter updates without noise"),
        ({}, scaled(overflow=4), True, "steps with several drawn batches"),
        ({"clipping": "per_layer", "clip": 0.05}, larger_clip_norm, True, "largest clipped norm"),
        # With an overflow in the last batch of each pass nothing else shows the skipped step.
        ({}, scaled(overflow=10), False, "torch's GradScaler skips a step"),
        ({}, scaled(), False, "under autocast in bfloat16"),
        ({}, scaled(before_update=True), False, "under autocast in bfloat16"),
        ({"clipping": "ghost"}, scaled(enabled=False), False, "ghost clipping computes norms in half precision"),
    ],
)
def test_set_ups_without_a_bound_are_open(made, script, deviates, words, tmp_path):
    training = Training(**made).build()
    found = recorded(tmp_path / "run", training, lambda: script(training))
    if deviates:
        assert rejects(found, words)
    else:
        assert found.status == ("open", "no-deviation-found")
        assert words in found.reason


def test_tensor_parallel_models_are_refused_by_name(tmp_path: Path) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model = parallelize_module(torch.nn.Sequential(torch.nn.Linear(4, 4)), mesh, {"0": ColwiseParallel()})
        with pytest.raises(UsageError) as error:
            dpspec.record(tmp_path / "run", model=model)
    finally:
        torch.distributed.destroy_process_group()
    assert "parameter 0.weight of the model is a DTensor, as tensor parallelism makes" in str(error.value)
    assert "DifferentiallyPrivateDistributedDataParallel" in str(error.value)


@pytest.mark.ci
def test_processes_that_start_within_the_block_end_the_recording(tmp_path: Path) -> None:
    """Lightning starts them in ``fit``."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    training = Training().build()

    def train() -> None:
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        try:
            training.train()
        finally:
            torch.distributed.destroy_process_group()

    message = r"torch\.distributed runs 2 processes, and optimizer is opacus\.DPOptimizer, which sums over one"
    with pytest.warns(RuntimeWarning, match=message), pytest.raises(NothingToRunError, match="no step was recorded"):
        recorded(tmp_path / "run", training, train)


def accelerated(
    folder: Path,
    clipping: str = "flat",
    fault: str = "",
    *,
    physical: int | None = None,
    poisson: bool = True,
    **options: Any,
) -> CheckedRun:
    """A training by what ``Accelerator.prepare`` returns."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, **options)
    training = Training(clipping=clipping, poisson=poisson).build()
    model, optimizer, loader = accelerator.prepare(training.model, training.private, training.loader)

    def step(x: Any, y: Any) -> None:
        with accelerator.accumulate(model):
            accelerator.backward(training.criterion(model(x), y))
            if fault == "clips":
                accelerator.clip_grad_norm_(model.parameters(), 1e-3)
            (optimizer.optimizer.original_optimizer if fault == "unwrapped" else optimizer).step()
            optimizer.zero_grad()

    def train() -> None:
        with physical_batches(loader, optimizer.optimizer, physical) as batches:
            for _ in range(training.epochs):
                for number, (x, y) in enumerate(batches):
                    if fault != "skips" or number % 4 != 3:
                        step(x, y)

    return recorded(folder, training, train, model=model, optimizer=optimizer, loader=loader)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"mixed_precision": "bf16"},
        {"clipping": "ghost"},
        {"physical": 8},
        {"clipping": "ghost", "physical": 8},
        {"fault": "clips"},  # the noisy gradients replace those that the wrapper clips
    ],
    ids=str,
)
def test_what_accelerate_prepares_is_proved(given: dict[str, Any], tmp_path: Path) -> None:
    assert accelerated(tmp_path / "run", **given).status == ("proved", "no-deviation-found")


def test_ghost_clipping_in_half_precision_by_accelerate_is_open(tmp_path: Path) -> None:
    found = accelerated(tmp_path / "run", "ghost", mixed_precision="bf16")
    assert found.status == ("open", "no-deviation-found")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fault": "unwrapped"}, "parameter updates without noise"),
        ({"fault": "skips"}, "drawn records without a clipped norm"),
        # With ghost clipping the gradients that the wrapper clips are those that Opacus adds up.
        ({"clipping": "ghost", "fault": "clips"}, "batches with other gradients than the second backward pass left"),
        ({"poisson": False, "gradient_accumulation_steps": 2}, "the loader's batches are shuffled"),
    ],
    ids=str,
)
def test_faults_inside_accelerates_wrappers_are_found(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert rejects(accelerated(tmp_path / "run", **given), words)


def test_accelerates_accumulated_gradients_are_refused_by_opacus(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="consider using BatchMemoryManager"):
        accelerated(tmp_path / "run", gradient_accumulation_steps=2)
