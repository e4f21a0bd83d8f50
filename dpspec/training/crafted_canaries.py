"""Input canaries chosen greedily for distinct gradients in proxy models, without knowledge of the audited model."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.contract.attacks import Asked, Records
from dpspec.training.canaries import fit, training_rows
from dpspec.training.device import Array, generator

#: Number of proxy models, their hidden width, and the number of records that each is fitted to.
PROXIES, _WIDTH, _RECORDS = 2, 128, 1000

#: Norm of canaries relative to the longest record: it makes the share of biases in their gradients small.
_LENGTH = 8.0

#: Number of candidates per canary.
_CANDIDATES = 2

#: Noise variance in squared clip norms, divided by 1/4, the variance of an inclusion bit.
_RIDGE = 4.0


def proxy_crafted(request: Asked) -> Records:
    """Records whose clipped gradients overlap least in proxy models.

    Candidates have eight times the largest norm of the training records, directions of random orthonormal bases, and
    a label that the proxies do not predict. Canaries are the greedy maximum of log det(I + K / ridge) over sets of
    candidates, the information on all inclusion bits in a noisy sum of gradients. It is submodular, so the greedy value
    is at least 1 - 1/e of the maximum (Nemhauser, Wolsey and Fisher 1978). K holds the inner products of normalized
    gradients, averaged over proxies with one hidden layer, fitted to the training records (canaries by influence on
    proxies: Boglioni et al. 2026, Dagréou and Bellet 2026).
    """
    (x, y), classes = training_rows(request), request.facts.classes
    if classes < 2:
        raise ValueError("crafted canaries require at least two classes")
    rng, flat = np.random.default_rng(request.seed), x.reshape(len(x), -1).astype(np.float32)
    candidates, features = _CANDIDATES * request.count, flat.shape[1]
    bases = -(-candidates // features)
    directions = np.concatenate([np.linalg.qr(rng.standard_normal((features, features)))[0] for _ in range(bases)])
    length = _LENGTH * (float(np.sqrt((flat.astype(np.float64) ** 2).sum(1).max())) or 1.0)
    features_of_candidates = torch.from_numpy((length * directions[:candidates]).astype(np.float32))
    proxies = [_proxy(flat, y, classes, rng) for _ in range(PROXIES)]
    with torch.no_grad():
        predicted = torch.stack([proxy(features_of_candidates).softmax(1) for proxy in proxies]).mean(0).argmax(1)
    labels = (predicted + torch.from_numpy(rng.integers(1, classes, candidates))) % classes
    gradients = [_gradient_factors(proxy, features_of_candidates, labels) for proxy in proxies]
    chosen = _greedy(gradients, request.count).numpy()
    records = features_of_candidates.numpy()[chosen].reshape(request.count, *x.shape[1:])
    return Records(records.astype(x.dtype), labels.numpy()[chosen].astype(y.dtype))


def _proxy(flat: Array, y: Array, classes: int, rng: np.random.Generator) -> nn.Sequential:
    hidden, output = nn.Linear(flat.shape[1], _WIDTH, device="meta"), nn.Linear(_WIDTH, classes, device="meta")
    proxy = nn.Sequential(hidden, nn.ReLU(), output).to_empty(device="cpu")
    source = generator(int(rng.integers(2**62)), "proxy")
    with torch.no_grad():
        for layer in (hidden, output):
            reach = 1.0 / math.sqrt(layer.in_features)
            for parameter in layer.parameters():
                parameter.uniform_(-reach, reach, generator=source)
    rows = rng.permutation(len(flat))[:_RECORDS]
    fit(proxy, flat[rows], y[rows])
    return proxy


def _gradient_factors(proxy: nn.Sequential, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Pairs (a, b) of each layer, (n, d) each: a row's gradient is the outer product b a^T, with norm 1 in total.

    a are a layer's inputs with a 1 for its bias, and b the derivatives of the cross-entropy by its outputs.
    """
    hidden, _, output = proxy
    with torch.no_grad():
        before = hidden(x)
        after = before.relu()
        errors = output(after).softmax(1)
        errors[torch.arange(len(x)), y] -= 1.0
        back = (errors @ output.weight) * (before > 0)
        ones = torch.ones(len(x), 1)
        pairs = [(torch.cat([x, ones], 1), back), (torch.cat([after, ones], 1), errors)]
        squares = sum(a.square().sum(1) * b.square().sum(1) for a, b in pairs)
        norms = torch.as_tensor(squares).sqrt().clamp_min(1e-12).unsqueeze(1)
    return [(a, b / norms) for a, b in pairs]


def _greedy(gradients: list[list[tuple[Tensor, Tensor]]], count: int) -> Tensor:
    """Indices (count,) of the greedy maximum of log det(I + K / ridge), by a pivoted Cholesky decomposition."""
    candidates = len(gradients[0][0][0])
    factor, variances = torch.zeros(candidates, count), torch.ones(candidates)
    chosen = torch.zeros(count, dtype=torch.int64)
    for number in range(count):
        pivot = int(variances.argmax())
        column = sum((a @ a[pivot]) * (b @ b[pivot]) for pairs in gradients for a, b in pairs) / len(gradients)
        column = torch.as_tensor(column) - factor[:, :number] @ factor[pivot, :number]
        scaled = column / math.sqrt(float(column[pivot].clamp_min(0.0)) + _RIDGE)
        factor[:, number] = scaled
        variances = variances - scaled.square()
        variances[pivot] = -torch.inf
        chosen[number] = pivot
    return chosen
