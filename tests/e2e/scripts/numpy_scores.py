"""DP-SGD in numpy alone, written without dpspec: it trains with canaries by fair coins, and writes a table of scores.

Logistic regression. Each canary is a record with a feature of its own that no other record has, as rare words are in
texts: if it was in, the weight of that feature moved. The score of a canary is that weight of the final model, whether
it was in or out. ``fault`` breaks the script as people break theirs.
"""

import csv

import numpy as np

RECORDS, FEATURES, CANARIES = 500, 20, 1000
RATE, CLIP, SIGMA, STEPS, LEARNING_RATE = 0.1, 1.0, 1.5, 50, 0.02


def train(x, y, source, fault=""):
    """The weights after DP-SGD on records x (n, d) with labels y (n,) of 0 and 1."""
    weights, batch = np.zeros(x.shape[1]), RATE * RECORDS
    for _ in range(STEPS):
        drawn = source.random(len(x)) < RATE
        gradients = (1.0 / (1.0 + np.exp(-x[drawn] @ weights)) - y[drawn])[:, None] * x[drawn]
        if fault != "clip-skipped":
            norms = np.linalg.norm(gradients, axis=1, keepdims=True)
            gradients = gradients / np.maximum(1.0, norms / CLIP)
        noise = SIGMA * CLIP * source.standard_normal(len(weights))
        if fault == "noise-forgotten":
            noise = 0.0
        if fault == "noise-on-the-mean":  # of the right size for the mean, but added to the sum
            noise = noise / batch
        weights -= LEARNING_RATE * (gradients.sum(axis=0) + noise) / batch
    return weights


def main(path, seed=0, fault=""):
    source = np.random.default_rng(seed)
    real = np.hstack([source.standard_normal((RECORDS, FEATURES)), np.zeros((RECORDS, CANARIES))])
    labels = (real[:, 0] > 0).astype(float)
    canaries = np.hstack([np.zeros((CANARIES, FEATURES)), 20.0 * np.eye(CANARIES)])

    coins = source.integers(0, 2, CANARIES)  # before training, fair, one for each canary
    x = np.vstack([real, canaries[coins == 1]])
    y = np.concatenate([labels, np.ones(coins.sum())])
    weights = train(x, y, source, fault)
    scores = weights[FEATURES:].copy()  # one rule for all, in or out
    if fault == "coins-leaked":
        scores += 0.5 * coins
    if fault == "one-coin-leaked":
        scores[0] = 100.0 * (2 * coins[0] - 1)

    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["canary", "in", "score"])
        table.writerows(zip(range(CANARIES), coins.tolist(), scores.tolist(), strict=True))


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:2], *map(int, sys.argv[2:3]), *sys.argv[3:4])
