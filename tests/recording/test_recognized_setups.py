"""Set-ups around a training with Opacus: compiled models, recomputed activations, half precision, wrappers."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import dpspec
from dpspec.engine.judging.conformance_status import rejected
from dpspec.errors import NothingToRunError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore")


#: The test of each row of the table of set-ups in the documentation, in this file if it names no other.
ROWS = {
    "Lightning": "trainings_by_lightning_are_proved",
    "`accelerate`": "what_accelerate_prepares_is_proved",
    "`torch.compile`": "compiled_models_are_proved",
    "`torch.utils.checkpoint`": "recomputed_activations_of_the_model_are_proved",
    "autocast": "autocast_without_a_scaler_is_proved",
    "`GradScaler`": "a_scaler_leaves_the_update_rule_open",
    '`clipping="per_layer"`': "clip_norms_of_layers_are_proved_and_a_larger_one_is_found",
    '`clipping="adaptive"`': "adaptive_clipping_has_no_bound",
    "parameters in half precision": "test_recorder_false_alarms.py: sums_in_half_precision_have_no_bound",
    "tensor parallelism": "tensor_parallel_models_are_refused_by_name",
    "LoRA": "../e2e/test_recorded_scripts.py: adapters_of_peft_are_recorded_as_any_other_layers",
    "FSDP2": "test_shards.py: a_sound_training_is_proved",
    "JAX, NumPy": "../campaigns/test_jax_recordings.py: sound_trainings_are_proved",
}


def test_each_set_up_of_the_documentation_has_its_test() -> None:
    here = Path(__file__)
    page = (here.parents[2] / "docs" / "how-to" / "audit-your-own-loop.md").read_text(encoding="utf-8")
    table = page.partition("| set-up | pass |")[2].partition("\n\n")[0]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]] == list(ROWS)
    for place in ROWS.values():
        file, _, name = place.rpartition(": ")
        assert f"def test_{name}(" in (here.parent / (file or here.name)).read_text(encoding="utf-8")


def built(**options: Any) -> Training:
    training = Training(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
    return training


def recorded(folder: Path, training: Training, train: Callable[[], None], **parts: Any) -> CheckedRun:
    given = {"model": training.model, "optimizer": training.optimizer_, "loader": training.loader}
    with dpspec.record(folder, engine=training.engine, **{**given, **parts}):
        train()
    return check_run(folder, Question(delta=1e-5, epsilon=100.0))


def rejects(found: CheckedRun, words: str) -> bool:
    bad = [one.test for one in found.checks if rejected(one, len(found.checks))]
    return found.verdict == "open" and any(words in test for test in bad)


def compiled(module: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize("clipping", ["flat", pytest.param("ghost", marks=pytest.mark.ci)])
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
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")
    assert found.run.header.model == "Sequential"
    assert found.run.header.layers[0][0] in ("0.weight", "_orig_mod.0.weight")


def test_a_compiled_copy_that_computes_the_gradients_is_not_proved(tmp_path: Path) -> None:
    """Its parameters are older than those that the noisy steps left."""
    training, other = built(), built()
    other.model.load_state_dict(training.model.state_dict())
    old = compiled(other.model)

    def train() -> None:
        for x, y in training.loader:
            training.optimizer_.zero_grad()
            cross_entropy(old(x), y).backward()
            for p, q in zip(training.model.parameters(), old.parameters(), strict=True):
                p.grad_sample, q.grad_sample = q.grad_sample, None
            training.optimizer_.step()

    found = recorded(tmp_path / "run", training, train)
    assert found.verdict == "open"
    assert "no forward pass in training mode was observed at 10 of 10 steps" in found.reason


def moved_for_the_forward_pass(training: Training, called: Any, weight: torch.Tensor) -> None:
    """Gradients at parameters that depend on records; they are the last step's again before the backward pass."""
    for x, y in training.loader:
        training.optimizer_.zero_grad()
        kept = weight.data.clone()
        weight.data.add_(0.1 * x.detach().mean())
        scores = called(x)
        weight.data.copy_(kept)
        training.criterion(scores, y).backward()
        training.optimizer_.step()


def test_parameters_that_move_for_the_first_pass_of_a_checkpoint_are_found(tmp_path: Path) -> None:
    """The pass runs without gradients, and its output enters the loss."""
    training = built()
    weight = training.model._module[0].weight

    def called(x: torch.Tensor) -> Any:
        return checkpoint(training.model, x.requires_grad_(), use_reentrant=True)

    found = recorded(tmp_path / "run", training, lambda: moved_for_the_forward_pass(training, called, weight))
    assert rejects(found, "gradients computed at other parameters than the last step left")


@pytest.mark.parametrize("when", ["never", "after", "in place", "after, another given"])
def test_parameters_that_move_for_a_compiled_forward_pass_are_not_proved(when: str, tmp_path: Path) -> None:
    training = built()
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
        assert "compile it by torch.compile, not in place" in found.reason


def test_parameters_that_compiled_code_moves_are_found(tmp_path: Path) -> None:
    training = built()

    @compiled
    @torch.no_grad()
    def nudge(x: torch.Tensor) -> None:
        training.model._module[2].bias.add_(x.mean())

    def train() -> None:
        training.train(each=lambda t: nudge(torch.ones(3)))

    assert rejects(recorded(tmp_path / "run", training, train), "parameter changes outside the DP optimizer")


def recomputed(training: Training, noise: bool = True) -> None:
    for x, y in training.loader:
        training.optimizer_.zero_grad()
        cross_entropy(checkpoint(training.model, x.requires_grad_(), use_reentrant=True), y).backward()
        if noise:
            training.optimizer_.step()
        else:
            training.optimizer_.clip_and_accumulate()
            for p in training.optimizer_.params:
                p.grad = p.summed_grad / 30.0
            training.optimizer_.original_optimizer.step()


def test_recomputed_activations_of_the_model_are_proved(tmp_path: Path) -> None:
    training = built()
    found = recorded(tmp_path / "run", training, lambda: recomputed(training))
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")


def test_recomputed_activations_without_noise_are_found(tmp_path: Path) -> None:
    training = built()
    found = recorded(tmp_path / "run", training, lambda: recomputed(training, noise=False))
    assert rejects(found, "parameter updates without noise")


def test_recomputed_activations_inside_the_model_are_refused_by_opacus(tmp_path: Path) -> None:
    training = built()
    inner = training.model._module
    inner.forward = lambda x: inner[2](checkpoint(lambda rows: inner[1](inner[0](rows)), x, use_reentrant=False))
    with pytest.raises(ValueError, match="Per sample gradient is not initialized"):
        recorded(tmp_path / "run", training, training.train)


def scaled(training: Training, *, overflow: int = 0, before_update: bool = False, enabled: bool = True) -> None:
    """overflow: every such step has an infinite gradient. before_update: the noisy gradient is scaled."""
    scaler, step, optimizer = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=enabled), 0, training.optimizer_
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


def test_autocast_without_a_scaler_is_proved(tmp_path: Path) -> None:
    training = built()
    found = recorded(tmp_path / "run", training, lambda: scaled(training, enabled=False))
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")
    assert "bfloat16" in " ".join(found.cautions)


@pytest.mark.parametrize("overflow", [0, 10])
def test_a_scaler_leaves_the_update_rule_open(overflow: int, tmp_path: Path) -> None:
    """With an overflow in the last batch of each pass nothing else shows the skipped step."""
    training = built()
    found = recorded(tmp_path / "run", training, lambda: scaled(training, overflow=overflow))
    assert (found.verdict, found.conformance.status) == ("open", "no-deviation-found")
    assert "torch's GradScaler skips a step" in found.reason
    assert "under autocast in bfloat16" in found.reason


def test_a_scaler_that_skips_steps_within_a_pass_deviates(tmp_path: Path) -> None:
    training = built()
    found = recorded(tmp_path / "run", training, lambda: scaled(training, overflow=4))
    assert rejects(found, "steps with several drawn batches")


def test_a_scaler_that_scales_the_noise_deviates(tmp_path: Path) -> None:
    training = built()
    found = recorded(tmp_path / "run", training, lambda: scaled(training, before_update=True))
    assert rejects(found, "updates with gradients other than the noisy sum")


def test_autocast_with_ghost_clipping_is_open(tmp_path: Path) -> None:
    training = built(clipping="ghost")
    found = recorded(tmp_path / "run", training, lambda: scaled(training, enabled=False))
    assert found.verdict == "open"
    assert "on the criterion's loss, in float32" in found.reason


def test_clip_norms_of_layers_are_proved_and_a_larger_one_is_found(tmp_path: Path) -> None:
    training = built(clipping="per_layer", clip=0.05)
    found = recorded(tmp_path / "sound", training, training.train)
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")
    training = built(clipping="per_layer", clip=0.05)
    training.optimizer_.max_grad_norms = [0.05, 0.05, 0.05, 0.5]
    assert rejects(recorded(tmp_path / "larger", training, training.train), "largest clipped norm")


def test_adaptive_clipping_has_no_bound(tmp_path: Path) -> None:
    training = built(clipping="adaptive")
    found = recorded(tmp_path / "run", training, training.train)
    assert found.verdict == "open"
    assert "adaptive clipping divides its noisy count by the real batch size" in found.reason


@pytest.mark.parametrize("clipping", ["per_layer", "adaptive"])
def test_opacus_has_no_ghost_clipping_by_layers_or_quantiles(clipping: str) -> None:
    from opacus import PrivacyEngine

    model = torch.nn.Linear(6, 2)
    with pytest.raises(ValueError, match="Unsupported combination of parameters"):
        PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(30, 6)), batch_size=5),
            noise_multiplier=1.0,
            max_grad_norm=[1.0, 1.0] if clipping == "per_layer" else 1.0,
            clipping=clipping,
            grad_sample_mode="ghost",
            criterion=torch.nn.CrossEntropyLoss(),
        )


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


def test_processes_that_start_within_the_block_end_the_recording(tmp_path: Path) -> None:
    """Lightning starts them in ``fit``."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    training = built()

    def train() -> None:
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        try:
            training.train()
        finally:
            torch.distributed.destroy_process_group()

    told = r"torch\.distributed runs 2 processes, and optimizer is opacus\.DPOptimizer, which sums over one"
    with pytest.warns(RuntimeWarning, match=told), pytest.raises(NothingToRunError, match="no step was recorded"):
        recorded(tmp_path / "run", training, train)


def accelerated(training: Training, **options: Any) -> tuple[Any, dict[str, Any]]:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, **options)
    names = ("model", "optimizer", "loader")
    parts = accelerator.prepare(training.model, training.optimizer_, training.loader)
    return accelerator, dict(zip(names, parts, strict=True))


def prepared_loop(training: Training, accelerator: Any, parts: dict[str, Any], fault: str = "") -> None:
    model, optimizer, loader = parts["model"], parts["optimizer"], parts["loader"]
    for _ in range(training.epochs):
        for number, (x, y) in enumerate(loader):
            if fault == "skips" and number % 4 == 3:
                continue
            with accelerator.accumulate(model):
                accelerator.backward(training.criterion(model(x), y))
                if fault == "clips":
                    accelerator.clip_grad_norm_(model.parameters(), 1e-3)
                if fault == "unwrapped":
                    optimizer.optimizer.original_optimizer.step()
                else:
                    optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("clipping", ["flat", "ghost"])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_what_accelerate_prepares_is_proved(clipping: str, precision: str, tmp_path: Path) -> None:
    training = built(clipping=clipping)
    accelerator, parts = accelerated(training, mixed_precision=precision)
    found = recorded(tmp_path / "run", training, lambda: prepared_loop(training, accelerator, parts), **parts)
    expected = "open" if (clipping, precision) == ("ghost", "bf16") else "proved"
    assert (found.verdict, found.conformance.status) == (expected, "no-deviation-found")


@pytest.mark.parametrize(
    ("clipping", "fault", "words"),
    [
        ("flat", "unwrapped", "parameter updates without noise"),
        ("flat", "skips", "drawn records without a clipped norm"),
        ("ghost", "clips", "batches with other gradients than the second backward pass left"),
    ],
)
def test_faults_inside_accelerates_wrappers_are_found(clipping: str, fault: str, words: str, tmp_path: Path) -> None:
    """With ghost clipping the gradients that the wrapper clips are those that Opacus adds up."""
    training = built(clipping=clipping)
    accelerator, parts = accelerated(training)
    found = recorded(tmp_path / "run", training, lambda: prepared_loop(training, accelerator, parts, fault), **parts)
    assert rejects(found, words)


def test_gradients_that_noisy_ones_replace_may_be_clipped(tmp_path: Path) -> None:
    training = built()
    accelerator, parts = accelerated(training)
    found = recorded(tmp_path / "run", training, lambda: prepared_loop(training, accelerator, parts, "clips"), **parts)
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")


def test_accelerates_accumulated_gradients_are_refused_by_opacus(tmp_path: Path) -> None:
    training = built()
    accelerator, parts = accelerated(training, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="consider using BatchMemoryManager"):
        recorded(tmp_path / "run", training, lambda: prepared_loop(training, accelerator, parts), **parts)


@pytest.mark.parametrize("clipping", ["flat", "ghost"])
def test_physical_batches_of_accelerates_loader_are_proved(clipping: str, tmp_path: Path) -> None:
    training = built(clipping=clipping)
    accelerator, parts = accelerated(training)
    logical, inner = parts["loader"], parts["optimizer"].optimizer

    def train() -> None:
        with BatchMemoryManager(data_loader=logical, max_physical_batch_size=8, optimizer=inner) as physical:
            prepared_loop(training, accelerator, {**parts, "loader": physical})

    found = recorded(tmp_path / "run", training, train, **parts)
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")


def test_accumulated_gradients_of_shuffled_batches_have_no_amplification(tmp_path: Path) -> None:
    training = built(poisson=False)
    accelerator, parts = accelerated(training, gradient_accumulation_steps=2)
    found = recorded(tmp_path / "run", training, lambda: prepared_loop(training, accelerator, parts), **parts)
    assert rejects(found, "the loader's batches are shuffled")


def fitted(training: Training, *, fault: str = "", manual: bool = False, **options: Any) -> None:
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.automatic_optimization = training.model, not manual

        def training_step(self, batch: Any, number: int) -> Any:
            loss = training.criterion(self.model(batch[0]), batch[1])
            if not manual:
                return loss
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            if fault == "unwrapped":
                optimizer.optimizer.original_optimizer.step()
            else:
                optimizer.step()
            return None

        def configure_optimizers(self) -> Any:
            return training.optimizer_

    if fault == "changed":

        def change(optimizer: Any, *_: Any) -> None:
            for p in training.optimizer_.params:
                p.grad.mul_(1.001)

        training.optimizer_.original_optimizer.register_step_pre_hook(change)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=training.epochs, accelerator="cpu", **quiet, **options)
    trainer.fit(Task(), training.loader)


LIGHTNING: list[tuple[str, dict[str, Any]]] = [
    ("flat", {}),
    ("flat", {"manual": True}),
    ("ghost", {"manual": True}),
    ("flat", {"gradient_clip_val": 0.1}),
    ("flat", {"precision": "bf16-mixed"}),
]


@pytest.mark.parametrize(("clipping", "options"), LIGHTNING)
def test_trainings_by_lightning_are_proved(clipping: str, options: dict[str, Any], tmp_path: Path) -> None:
    training = built(clipping=clipping)
    found = recorded(tmp_path / "run", training, lambda: fitted(training, **options))
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")


def test_lightnings_real_wrapper_is_looked_through(tmp_path: Path) -> None:
    """Its class derives from the class of the optimizer inside."""
    pytest.importorskip("lightning")
    wrapper = sys.modules["lightning.pytorch.core.optimizer"].LightningOptimizer
    training = built()
    found = recorded(tmp_path / "run", training, lambda: fitted(training), optimizer=wrapper(training.optimizer_))
    assert (found.verdict, found.run.header.optimizer) == ("proved", "DPOptimizer")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("unwrapped", "parameter updates without noise"),
        ("changed", "updates with gradients other than the noisy sum"),
    ],
)
def test_faults_inside_lightning_are_found(fault: str, words: str, tmp_path: Path) -> None:
    training = built()
    found = recorded(tmp_path / "run", training, lambda: fitted(training, fault=fault, manual=True))
    assert rejects(found, words)
