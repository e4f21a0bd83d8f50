"""State of a model outside its parameters, which must not change without noise."""

import io
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from campaigns.leaks import Collector, with_closure
from support import opacus_training
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training
from torch import nn
from torch.func import functional_call

from dpspec.recording.fingerprints import TooLargeError, digest
from dpspec.recording.watching.model_state import ModelState

Script = Callable[[Training, Any], None]


class Extra(nn.Module):
    """A layer with extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = None
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    def get_extra_state(self) -> Any:
        return {"kept": self.kept}

    def set_extra_state(self, state: Any) -> None:
        self.kept = state["kept"]


class Held:
    """An object of the script."""

    def __init__(self, value: Any) -> None:
        self.value = value


def recorded(folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch, **made: Any) -> CheckedRun:
    """A model with an ``Extra`` layer, trained by ``script``."""
    sequential = nn.Sequential
    monkeypatch.setattr("support.opacus_training.nn.Sequential", lambda *layers: sequential(*layers, Extra()))
    return opacus_training.recorded(folder, lambda training: script(training, training.model._module[-1]), **made)


def records(training: Training) -> torch.Tensor:
    return training.loader.dataset[0:3][0].clone()


def by_a_hook(training: Training, layer: Any) -> None:
    """A hook writes records into ``state_dict()``."""
    kept = records(training)
    layer.register_state_dict_post_hook(lambda module, state, prefix, _: state.__setitem__(f"{prefix}note", kept))


def for_a_while(training: Training, layer: Any) -> None:
    """A buffer depends on the batch, and is restored at the end."""
    for x, y in training.loader:
        layer.scale.copy_(1.0 + 0.01 * x.mean())
        training.step(x, y)
    layer.scale.fill_(1.0)


def in_each_pass(training: Training, layer: Any, data: bool = False) -> None:
    """A buffer depends on the batch before in a pass, and is restored before the step."""
    before = 0.0
    for x, y in training.loader:
        training.private.zero_grad()
        scale = layer.scale.data if data else layer.scale
        scale.fill_(1.0 + 0.01 * before)
        training.criterion(training.model(x), y).backward()
        scale.fill_(1.0)
        training.private.step()
        before = float(x.mean())


def in_a_hidden_layer(training: Training, layer: Any) -> None:
    """A module that is registered nowhere."""
    hidden = nn.Linear(6, 3)
    hidden.weight.data.copy_(records(training))
    layer.__dict__["hidden"] = [hidden]


@pytest.mark.parametrize(
    ("leak", "name", "level"),
    [
        (lambda t, layer: setattr(layer, "kept", records(t)), "_extra_state", "violated"),
        (by_a_hook, "note", "violated"),
        (lambda t, layer: layer.scale.data.copy_(records(t)[0, :1]), "scale", "violated"),
        (for_a_while, "scale", "violated"),
        (in_each_pass, "scale", "violated"),
        (partial(in_each_pass, data=True), "scale", "violated"),
        (lambda t, layer: setattr(layer, "memory", records(t)), "memory", "open"),
        (lambda t, layer: setattr(layer, "hint", float(records(t)[0, 0])), "hint", "open"),
        (lambda t, layer: setattr(layer, "notes", {"deep": [Held(np.asarray(records(t)))]}), "notes", "open"),
        (lambda t, _: setattr(t.model, "memory", records(t)), "memory", "open"),
        (lambda t, layer: setattr(layer, "activations", [records(t)]), "activations", "open"),  # a name of Opacus
        (lambda t, layer: setattr(layer, "max_batch_len", int(1e6 * records(t)[0, 0])), "max_batch_len", "open"),
        (lambda t, _: setattr(t.private.params[0], "memory", records(t)), "weight.memory", "open"),
        (in_a_hidden_layer, "hidden", "open"),
    ],
)
def test_records_that_the_model_keeps_are_found(
    leak: Script, name: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ``state_dict()`` they are a violation, in an attribute the claim is open unless the user assumes it."""

    def script(training: Training, layer: Any) -> None:
        training.train()
        leak(training, layer)

    found = recorded(tmp_path / "run", script, monkeypatch)
    assert (found.verdict, found.exit_code, found.channel("model-state").status) == ("open", 1, level)
    assert (found.conformance.status == "deviates") is (level == "violated")
    assert name in found.channel("model-state").text
    assumed = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=1e3, assume=("model-state",)))
    assert (assumed.verdict == "proved") is (level == "open")


def sound(training: Training, layer: Any) -> None:
    training.train()


def evaluated(training: Training, layer: Any) -> None:
    training.train()
    training.model.eval()
    for x, _ in training.loader:
        training.model(x)
    training.model.train()


def hooked(training: Training, layer: Any) -> None:
    layer.register_forward_hook(lambda *_: None)
    training.train()
    training.model.requires_grad_(True)
    training.model.state_dict()


@pytest.mark.parametrize(
    ("script", "clipping"),
    [
        *((script, clipping) for script in (sound, evaluated, hooked) for clipping in ("flat", "per_layer")),
        (sound, "ghost"),
    ],
)
def test_an_honest_training_changes_nothing_else(
    script: Script, clipping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = recorded(tmp_path / "run", script, monkeypatch, clipping=clipping)
    assert (found.verdict, found.channel("model-state").status) == ("proved", "verified"), found.reason


UNCHANGED: dict[str, list[str]] = {"buffers": [], "state": [], "attributes": [], "unread": []}


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 2)),
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda: nn.LSTM(8, 4, batch_first=True),
        lambda: nn.Sequential(nn.Embedding(10, 8), nn.MultiheadAttention(8, 2)),
    ],
)
def test_layers_of_torch_keep_no_batch(model: Callable[[], nn.Module]) -> None:
    made = model()
    watch = ModelState(made, list(made.parameters()))
    with torch.no_grad():
        for p in made.parameters():
            p.add_(1.0)
        if isinstance(made, nn.Sequential) and isinstance(made[0], nn.Embedding):
            x = made[0](torch.randint(0, 10, (3, 5)))
            made[1](x, x, x)
        else:
            made(torch.randn(3, 1, 8, 8) if isinstance(made, nn.Sequential) else torch.randn(3, 5, 8))
    watch.before_step()
    assert watch.changed() == UNCHANGED


def exchanged_layers(made: Any) -> None:
    made[0], made[2] = made[2], made[0]


def exchanged_parameters(made: Any) -> None:
    made[0].bias, made[2].bias = made[2].bias, made[0].bias


def replaced_dictionary(made: Any) -> None:
    parts = made._modules
    made._modules = {**parts, "0": parts["2"], "2": parts["0"]}


@pytest.mark.parametrize(
    ("exchange", "names"),
    [
        (replaced_dictionary, ["0.bias", "0.weight", "2.bias", "2.weight"]),
        (exchanged_layers, ["0.bias", "0.weight", "2.bias", "2.weight"]),
        (exchanged_parameters, ["0.bias", "2.bias"]),
        (lambda made: made.__setitem__(1, nn.Tanh()), []),
    ],
)
@pytest.mark.parametrize("undone", [False, True])
def test_parameters_keep_their_names(exchange: Callable[[Any], None], names: list[str], undone: bool) -> None:
    """The order of equal layers may depend on a record, also if it is the first one again at the end."""
    made = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    watch = ModelState(made, list(made.parameters()))
    exchange(made)
    if undone:
        watch.before_step()
        exchange(made)
    assert watch.changed()["state"] == names


def test_parameters_keep_their_names_in_a_pass() -> None:
    made = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    watch = ModelState(made, list(made.parameters()))
    made.register_forward_pre_hook(lambda *_: watch.compare_names(in_pass=True))
    functional_call(made, {name: p.detach() for name, p in made.named_parameters()}, torch.randn(2, 3))
    assert watch.changed()["state"] == []
    exchanged_layers(made)
    made(torch.randn(2, 3))
    exchanged_layers(made)
    assert len(watch.changed()["state"]) == 4


def test_running_averages_are_named() -> None:
    made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    watch = ModelState(made, list(made.parameters()))
    made(torch.randn(5, 4))
    watch.before_step()
    assert watch.changed()["buffers"] == ["1.num_batches_tracked", "1.running_mean", "1.running_var"]


def test_what_cannot_be_read_is_named() -> None:
    class Closed:
        def __iter__(self) -> Any:
            raise RuntimeError

        def __len__(self) -> int:
            return 1

        __slots__ = ()

    made = nn.Linear(2, 2)
    made.closed = Closed()
    watch = ModelState(made, list(made.parameters()))
    assert watch.changed()["unread"] == ["closed"]


VALUES: list[Any] = [
    1.5, [1.5, 1.5], True, "word", "another", b"bytes", 2j, None, (1, [2, {"key": {3}}]), np.arange(3.0),
    np.float64(2.0), torch.ones(2), torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.bfloat16),
    torch.zeros(2, device="meta"), Held([1, 2]), np.array([1, "two"], dtype=object), {1: 2}.items(), float("nan"),
    torch.float32, torch.float64, torch.device("cpu"), torch.device("meta"), int, float,
    logging.getLogger("a"), logging.getLogger("b"),
]  # fmt: skip


def test_a_digest_is_the_same_for_the_same_value_alone() -> None:
    found = [digest(value) for value in VALUES]
    assert found == [digest(value) for value in VALUES]
    assert len(set(found)) == len(VALUES)


def test_attributes_of_a_tensor_count() -> None:
    value = torch.zeros(2)
    before = digest([value])
    value.memory = 1.0
    assert digest([value]) != before


def test_a_digest_has_limits_and_no_end_without_them() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert digest(loop) == digest(loop)
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(TooLargeError):
        digest(deep)
    with pytest.raises(TooLargeError):
        digest([[i] for i in range(200_000)])


def in_a_tail(layer: nn.Linear, record: torch.Tensor) -> None:
    weight = layer.weight
    both = torch.cat([weight.detach().reshape(-1), record])
    weight.data = both[: weight.numel()].view_as(weight)


def in_a_gap(layer: nn.Linear, record: torch.Tensor) -> None:
    wide = torch.cat([layer.weight.detach(), record.reshape(-1, 1)[: len(layer.weight)]], dim=1)
    layer.weight.data = wide[:, :-1]


def in_strides(layer: nn.Linear, record: torch.Tensor) -> None:
    layer.weight.data = layer.weight.data.t().contiguous().t()


def in_metadata(layer: nn.Linear, record: torch.Tensor) -> None:
    layer.register_state_dict_post_hook(
        lambda module, state, prefix, _: state._metadata.__setitem__("note", record.tolist())
    )


def without_keep_vars(layer: nn.Linear, record: torch.Tensor) -> None:
    def hook(module: Any, state: Any, prefix: str, _: Any) -> None:
        if not any(isinstance(value, nn.Parameter) for value in state.values()):
            state["memory"] = record

    layer.register_state_dict_post_hook(hook)


def hooked_state(edit: Callable[[Any, Any], Any]) -> Callable[[nn.Linear, torch.Tensor], None]:
    """A hook that edits the result of ``state_dict()``."""

    def leak(layer: nn.Linear, record: torch.Tensor) -> None:
        layer.register_state_dict_post_hook(lambda module, state, prefix, _: edit(state, record))

    return leak


def in_a_view(state: Any, record: torch.Tensor) -> None:
    state["memory"] = torch.cat([torch.ones(1), record])[:1]


def in_one_storage(layer: nn.Linear, record: torch.Tensor) -> None:
    both = torch.cat([layer.bias.detach(), layer.weight.detach().reshape(-1)])
    layer.bias.data, layer.weight.data = both[:4], both[4:].view(4, 3)


@pytest.mark.parametrize(
    ("leak", "names"),
    [
        (in_a_tail, ["storage of weight"]),
        (in_a_gap, ["layout of weight", "storage of weight"]),
        (in_strides, ["layout of weight"]),
        (in_metadata, ["state_dict()._metadata"]),
        (without_keep_vars, ["memory", "order of state_dict()", "layout of Linear.state_dict().memory"]),
        (lambda layer, record: layer.register_parameter("record", layer.bias), ["order of state_dict()", "record"]),
        (lambda layer, _: layer._parameters.update(weight=layer._parameters.pop("weight")), ["order of state_dict()"]),
        (hooked_state(lambda state, _: state.move_to_end("weight")), ["order of state_dict()"]),
        (hooked_state(lambda state, _: state.update(weight=torch._neg_view(state["weight"]))), ["weight"]),
        (hooked_state(lambda state, _: state.update(weight=nn.Parameter(state["weight"]))), ["weight"]),
        (hooked_state(lambda state, record: setattr(state["weight"], "memory", record)), ["weight"]),
        (
            hooked_state(in_a_view),
            [
                "memory",
                "order of state_dict()",
                *(f"{of} of Linear.state_dict().memory" for of in ("layout", "storage")),
            ],
        ),
        (in_one_storage, ["layout of bias", "layout of weight"]),
    ],
)
def test_all_that_a_saved_state_dict_holds_is_compared(leak: Any, names: list[str]) -> None:
    made = nn.Linear(3, 4)
    watch = ModelState(made, list(made.parameters()))
    leak(made, torch.randn(4))
    assert watch.changed()["state"] == sorted(names)


def test_exchanged_entries_and_dropped_buffers_are_compared() -> None:
    made = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    made.register_buffer("constant", torch.zeros(1))
    watch = ModelState(made, list(made.parameters()))

    def exchange(module: Any, state: Any, prefix: str, _: Any) -> None:
        state["0.bias"], state["1.bias"] = state["1.bias"], state["0.bias"]

    handle = made.register_state_dict_post_hook(exchange)
    assert watch.changed()["state"] == ["0.bias", "1.bias"]
    handle.remove()
    assert watch.changed() == UNCHANGED
    made._non_persistent_buffers_set.add("constant")
    assert watch.changed()["state"] == ["constant", "layout of constant", "order of state_dict()"]


def test_buffers_outside_of_the_state_dict_count_as_attributes() -> None:
    made = nn.Linear(3, 4)
    made.register_buffer("restored", torch.zeros(1), persistent=False)
    watch = ModelState(made, [made.weight])
    for number in (1.0, 0.0):
        made.restored.fill_(number)
        watch.before_step()
    made.register_buffer("lazy", torch.zeros(1), persistent=False)
    assert watch.changed() == {**UNCHANGED, "attributes": ["lazy", "restored"]}
    made._non_persistent_buffers_set.add("bias")
    made.bias.data.fill_(1.0)
    assert watch.changed()["buffers"] == ["bias"]


def test_an_entry_hides_behind_no_other_of_the_same_name() -> None:
    """Neither behind an entry of the module in the wrapper, nor behind a name of the recorder."""
    made = nn.Module()
    made._module = nn.Linear(3, 4)
    records = [torch.zeros(2)]
    made.register_state_dict_post_hook(lambda module, state, prefix, _: state.update(bias=records[0]))
    made.register_state_dict_post_hook(lambda *given: given[1].__setitem__("layout of _module.bias", records[0]))
    watch = ModelState(made, [])
    assert watch.changed() == UNCHANGED
    records[0] = torch.ones(2)
    assert watch.changed()["state"] == ["bias", "layout of _module.bias"]


def test_a_steady_state_dict_is_no_change() -> None:
    """Tied weights, attributes of Opacus on parameters, and hooks that add entries and rename others."""
    made = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    made[1].weight = made[0].weight

    def rename(module: Any, state: Any, prefix: str, _: Any) -> None:
        state["bias"], state["copy"] = state.pop("0.bias"), torch.zeros(3)[:2]

    made.register_state_dict_post_hook(rename)
    watch = ModelState(made, list(made.parameters()))
    for p in made.parameters():
        p.data.add_(1.0)
        p.grad_sample, p.summed_grad = torch.randn(2, *p.shape), torch.randn(p.shape)
    assert watch.changed() == UNCHANGED


@pytest.mark.parametrize(
    "value",
    [
        (collector := Collector(), lambda: collector.add(1.0)),
        (bound := Collector().add, lambda: bound(1.0)),
        (default := lambda row, kept=[]: kept.append(row), lambda: default(1.0)),  # type: ignore[misc]
        (closure := with_closure(), lambda: closure(1.0)),
        (log := io.BytesIO(), lambda: log.write(b"record")),
        (generator := torch.Generator(), lambda: generator.manual_seed(5)),
    ],
)
def test_attributes_that_keep_records_elsewhere_are_compared(value: tuple[Any, Callable[[], Any]]) -> None:
    made = nn.Linear(3, 4)
    made.kept, keep = value
    watch = ModelState(made, [])
    assert watch.changed()["attributes"] == []
    keep()
    assert watch.changed()["attributes"] == ["kept"]


def test_another_class_or_forward_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made = nn.Sequential(nn.Tanh(), nn.ReLU())
    watch = ModelState(made, [])
    made[0].__class__ = type("Tanh", (nn.Tanh,), {})
    monkeypatch.setattr(nn.ReLU, "forward", lambda module, x: x)
    assert watch.changed()["attributes"] == ["class of 0", "class of 1"]


def test_storages_that_are_shared_hold_nothing_else() -> None:
    """Flat, tied and transposed parameters, and unchanged parts of a larger tensor."""
    made = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(made[:2].parameters()), made[:2].parameters())
    made[1].weight.data = made[1].weight.data.t()
    made[2].bias.data = torch.zeros(6)[1:5:2]
    made[2].register_buffer("ones", torch.ones(1).expand(5))
    watch = ModelState(made, list(made.parameters()))
    with torch.no_grad():
        for p in made.parameters():
            p.add_(1.0)
    assert watch.changed() == UNCHANGED


def test_use_of_an_attribute_is_no_change() -> None:
    made = nn.Linear(3, 4)
    made.folder, made.logger, made.generator = Path("a") / "b", logging.getLogger("a"), torch.Generator()
    watch = ModelState(made, [])
    hash(made.folder), str(made.folder), made.logger.isEnabledFor(10)
    torch.randn(3, generator=made.generator)
    assert watch.changed()["attributes"] == []
