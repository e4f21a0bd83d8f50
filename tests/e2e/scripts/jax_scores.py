"""DP-SGD in JAX by jax-privacy, written without dpspec: it trains with canaries by fair coins, and writes their scores.

Logistic regression, as ``numpy_scores.py``: each canary is a record with a feature of its own, and its score is the
weight of that feature in the final model. Batches, clipping and noise are jax-privacy's, and so are the bounds printed.
``jax_scores.csv`` is what ``python jax_scores.py jax_scores.csv`` wrote with jax-privacy 2.0.0, jax 0.10.2 and numpy
2.4.6 on a CPU. It printed 488 in, 512 out, AUROC 0.640;
one_run 0.1862, one_run_fdp 0.2464, from_gdp 3.2707. Tests read that table and need no JAX.
"""

import sys

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor
from jax_privacy.batch_selection import CyclicPoissonSampling, PartitionType, pad_to_multiple_of
from jax_privacy.noise_addition import gaussian_privatizer

RECORDS, FEATURES, CANARIES = 500, 20, 1000
RATE, CLIP, SIGMA, STEPS, LEARNING_RATE = 0.1, 1.0, 1.5, 50, 0.02


def loss(weights, x, y):
    """Logistic loss, summed over the records x (n, d) with labels y (n,) of 0 and 1."""
    return jnp.sum(jax.nn.softplus(x @ weights) - y * (x @ weights))


def train(x, y, source, key):
    gradients = jax.jit(jax_privacy.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=(1, 2)))
    privatizer = gaussian_privatizer(stddev=SIGMA * CLIP, prng_key=key)
    weights = jnp.zeros(x.shape[1])
    state = privatizer.init(weights)
    batches = CyclicPoissonSampling(RATE, STEPS, partition_type=PartitionType.INDEPENDENT)
    for drawn in batches.batch_iterator(len(x), source):
        padded = pad_to_multiple_of(drawn, 256)  # one shape, so that it is compiled once
        total = gradients(weights, x[padded], y[padded], is_padding_example=padded == -1)
        noised, state = privatizer.update(total, state)
        weights = weights - LEARNING_RATE * noised / (RATE * RECORDS)
    return weights


def main(path, seed=0):
    source = np.random.default_rng(seed)
    real = np.hstack([source.standard_normal((RECORDS, FEATURES)), np.zeros((RECORDS, CANARIES))])
    labels = (real[:, 0] > 0).astype(float)
    planted = np.hstack([np.zeros((CANARIES, FEATURES)), 20.0 * np.eye(CANARIES)])

    coins = source.integers(0, 2, CANARIES)  # before training, fair, one for each canary
    x = np.vstack([real, planted[coins == 1]])
    y = np.concatenate([labels, np.ones(coins.sum())])
    scores = np.asarray(train(x, y, source, jax.random.key(seed)))[FEATURES:]  # one rule for all, in or out

    rows = (f"{canary},{coin},{score}\n" for canary, (coin, score) in enumerate(zip(coins, scores, strict=True)))
    with open(path, "w", encoding="utf-8") as file:
        file.write("canary,in,score\n" + "".join(rows))

    auditor = CanaryScoreAuditor(scores[coins == 1], scores[coins == 0])
    print(f"{coins.sum()} in, {CANARIES - coins.sum()} out, AUROC {auditor.attack_auroc():.3f}")
    for bound in (auditor.epsilon_one_run, auditor.epsilon_one_run_fdp, auditor.epsilon_from_gdp):
        print(f"{bound.__name__}: {bound(significance=0.05, delta=1e-5):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
