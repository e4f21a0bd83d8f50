"""LSTM, GRU and RNN written out step by step, in operations with per-example gradient rules.

torch's layers execute all steps in one operation that hides its weights and does not support ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear

#: Recurrent state: h of an RNN or GRU, h and c of an LSTM; each (b, ...).
State: TypeAlias = tuple[Tensor, ...]


def call(model: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Evaluate a model on ``x`` with ``tensors`` by qualified name (``flat_model.places``).

    Recurrent layers run step by step and attention as matrix products; vmap supports both.
    """
    with written_out(model), sdpa_kernel(SDPBackend.MATH):
        outputs: Tensor = functional_call(model, dict(tensors), (x,), tie_weights=False)
    return outputs


@contextmanager
def written_out(model: nn.Module) -> Iterator[None]:
    known = (nn.RNN, nn.LSTM, nn.GRU)
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase) and type(module) in known]
    replaced = [layer for layer in layers if "forward" not in vars(layer)]
    for layer in replaced:
        layer.forward = partial(_forward, layer)
    try:
        yield
    finally:
        for layer in replaced:
            del layer.forward


def _forward(layer: nn.RNNBase, input: Any, hx: Any = None) -> tuple[Tensor, Any]:
    if not isinstance(input, Tensor):
        raise ValueError(f"{type(layer).__name__}: packed sequences have no per-example gradients; pad the records")
    single = input.ndim == 2
    x = input.unsqueeze(1) if single else input.transpose(0, 1) if layer.batch_first else input  # (T, b, d)
    given = None if hx is None else hx if isinstance(hx, tuple) else (hx,)
    if given is not None and single:
        given = tuple(part.unsqueeze(1) for part in given)
    last: list[State] = []
    for depth in range(layer.num_layers):
        outputs = []
        for suffix in ("", "_reverse")[: 1 + layer.bidirectional]:
            start = None if given is None else tuple(part[len(last)] for part in given)
            steps, state = _direction(layer, x, f"_l{depth}{suffix}", start)
            outputs.append(steps)
            last.append(state)
        x = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
    states = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    if single:
        x, states = x.squeeze(1), tuple(part.squeeze(1) for part in states)
    elif layer.batch_first:
        x = x.transpose(0, 1)
    return x, states if isinstance(layer, nn.LSTM) else states[0]


def _direction(layer: nn.RNNBase, x: Tensor, name: str, state: State | None) -> tuple[Tensor, State]:
    """One direction of one layer over x (T, b, d): outputs (T, b, ...) in the order of x, and the last state."""
    weights = {part: getattr(layer, f"{part}{name}", None) for part in ("weight_ih", "weight_hh", "weight_hr")}
    before, within = (getattr(layer, f"bias_{part}{name}") if layer.bias else None for part in ("ih", "hh"))
    w, u, projection = weights["weight_ih"], weights["weight_hh"], weights["weight_hr"]
    assert w is not None
    assert u is not None
    inputs = linear(x.transpose(0, 1), w, before).transpose(0, 1)
    if state is None:
        widths = (layer.proj_size or layer.hidden_size, layer.hidden_size)[: 1 + isinstance(layer, nn.LSTM)]
        state = tuple(x.new_zeros(x.shape[1], width) for width in widths)
    found: list[Tensor] = []
    for step in inputs.flip(0).unbind() if name.endswith("_reverse") else inputs.unbind():
        state = _cell(layer, step, state, u, within, projection)
        found.append(state[0])
    if name.endswith("_reverse"):
        found.reverse()
    return torch.stack(found), state


def _cell(
    layer: nn.RNNBase, x: Tensor, state: State, weight: Tensor, bias: Tensor | None, projection: Tensor | None
) -> State:
    """The next state from W x + b, the state, U and c, as torch's documentation defines it."""
    inner = linear(state[0], weight, bias)
    if isinstance(layer, nn.LSTM):
        i, f, g, o = (x + inner).chunk(4, dim=-1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h if projection is None else linear(h, projection)), c
    if isinstance(layer, nn.GRU):
        (r_x, z_x, n_x), (r_h, z_h, n_h) = x.chunk(3, dim=-1), inner.chunk(3, dim=-1)
        z = (z_x + z_h).sigmoid()
        n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
        return ((1 - z) * n + z * state[0],)
    return ((x + inner).tanh() if layer.mode == "RNN_TANH" else (x + inner).relu(),)
