"""Hu, Sanyal and Schoelkopf 2024, Figure 3: excess loss of private logistic regression against the overall epsilon."""

import numpy as np
from sklearn.datasets import load_digits

import dpspec
from dpspec.accounting import PrivacyLoss, crossing

EPSILONS, DELTA = (0.5, 1.0, 2.0, 4.0, 8.0), 1e-5
STEPS, RANK, RUNS, RADIUS, RATE = 100, 8, 5, 10.0, 4.0


def digits():
    """Even against odd digits, records of length 1."""
    x, y = load_digits(return_X_y=True)
    return x / np.linalg.norm(x, axis=1, keepdims=True), 2.0 * (y % 2) - 1.0


def low_rank(rng):
    """As many records with nearly all variance along eight directions, as in the paper's experiment."""
    basis, _ = np.linalg.qr(rng.normal(size=(64, 64)))
    x = rng.normal(size=(1797, 64)) * np.where(np.arange(64) < RANK, 1.0, 0.05)
    x = x / np.linalg.norm(x, axis=1, keepdims=True) @ basis.T
    return x, np.sign(x @ basis[:, 0] + 0.1 * rng.normal(size=1797))


def projected(x, moments):
    directions = np.linalg.eigh(moments)[1][:, -RANK:]
    return x @ directions @ directions.T


def train(x, y, std, rng):
    """Full-gradient steps of a logistic regression with noise on the sum of gradients."""
    theta = np.zeros(64)
    for _ in range(STEPS):
        noisy = std * rng.normal(size=64) - (y / (1.0 + np.exp(y * (x @ theta)))) @ x
        theta -= RATE / len(x) * noisy
        theta *= min(1.0, RADIUS / np.linalg.norm(theta))
    return theta


def loss(x, y, theta):
    return float(np.logaddexp(0.0, -y * (x @ theta)).mean())


def effect(epsilon):
    """The mu of a Gaussian mechanism with this epsilon."""
    return crossing(lambda mu: epsilon - PrivacyLoss.gaussian(1.0 / mu).epsilon(DELTA).upper, 1e-4, 20.0)[0]


def after_projection(eigengap):
    """The proved epsilons for several stds of the noise on the sum after a projection that has no noise itself."""
    spec = {
        "dpspec": 1,
        "name": "pca",
        "mechanism": {
            "kind": "preprocessing",
            "pipeline": [{"pca": RANK}],
            "private": {
                "kind": "dp-gd",
                "eps_noise": 1.0,
                "steps": STEPS,
                "loss": "logistic",
                "theta_radius": RADIUS,
                "learning_rate": RATE,
            },
            "collection": {"min_eigengap": eigengap},
        },
        "data": {"kind": "declared", "records": 1797, "features": 64, "classes": 2},
        "threat_model": {"adjacency": "replace-one"},
        "claims": [{"id": "all", "kind": "approx-dp", "epsilon": 1.0, "delta": DELTA, "over": "collection"}],
        "matrix": {"mechanism.private.eps_noise": [float(x) for x in 10.0 ** np.arange(-5.0, 0.1, 0.25)]},
    }
    stds, epsilons = [], []
    for audit in dpspec.run(spec, train=False, remedy_seconds=0).audits:
        rows = {s.name: s.columns for s in audit.series}["constants"]
        stds.append(1797 * rows["value"][rows["constant"].index("noise std sigma")])
        epsilons.append(audit.verdicts[0].upper)
    return np.log(stds), np.log(epsilons)


def curves(x, y, rng, epsilons=EPSILONS, runs=RUNS):
    """Per epsilon the mean excess losses without a projection, with DP-PCA and with a projection without noise.

    The two last numbers are the noise of the last one relative to the first, and the gap of the eigenvalues.
    """
    centered = x - x.mean(axis=0)
    eigenvalues = np.linalg.eigvalsh(centered.T @ centered / len(x))[::-1]
    gap = float(eigenvalues[RANK - 1] - eigenvalues[RANK])
    best = loss(x, y, train(x, y, 0.0, rng))
    log_stds, log_epsilons = after_projection(gap)
    order = np.argsort(log_epsilons)
    for epsilon in epsilons:
        mu = effect(epsilon)
        plain = 2.0 * np.sqrt(STEPS) / mu  # a replaced record moves the sum of gradients by up to 2
        half = mu / np.sqrt(2.0)
        corrected = float(np.exp(np.interp(np.log(epsilon), log_epsilons[order], log_stds[order])))
        values = np.zeros(3)
        for _ in range(runs):
            symmetric = rng.normal(size=(64, 64))
            symmetric = np.triu(symmetric) + np.triu(symmetric, 1).T
            private = projected(x, x.T @ x + np.sqrt(2.0) / half * symmetric)  # x x^T moves by up to sqrt(2)
            public = projected(x, centered.T @ centered)
            for i, (rows, std) in enumerate(((x, plain), (private, np.sqrt(2.0) * plain), (public, corrected))):
                values[i] += loss(rows, y, train(rows, y, std, rng)) - best
        yield epsilon, *(values / runs), corrected / plain, gap


if __name__ == "__main__":
    for name, make in (("digits", lambda rng: digits()), ("low rank", low_rank)):
        generator = np.random.default_rng(0)
        for epsilon, plain, private, public, more, gap in curves(*make(generator), generator):
            print(
                f"{name}, gap {gap:.2g}, epsilon {epsilon}: {plain:.3f} without, {private:.3f} DP-PCA, "
                f"{public:.3f} non-private PCA with {more:.3g} times the noise"
            )
