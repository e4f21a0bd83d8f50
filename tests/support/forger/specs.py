"""Small specs of every plugin, whose bounds and trials take seconds."""

_TEXTS = {
    "composition": """\
dpspec: 1
name: forged-composition
mechanism:
  kind: composition
  releases:
    - {name: counts, kind: gaussian, sigma: 8.0, times: 2}
    - {name: choice, kind: exponential, epsilon: 0.1}
data: {kind: declared, records: 1000}
claims:
  - {id: total, kind: approx-dp, epsilon: 2.0, delta: 1e-5}
  - {id: ignored, kind: approx-dp, epsilon: 0.1, delta: 1e-5, expect: [refuted, open]}
""",
    "group": """\
dpspec: 1
name: forged-group
description: A small network, and families
mechanism:
  kind: group
  noise_multiplier: 0.5
  clip_norm: 1.0
  sampling: {scheme: full}
  steps: 3
data: {kind: synthetic, pattern: blobs, records: 60, features: 16, classes: 2, split: {test: 20}, public: PUBLIC}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {group_size: [1, 2]}
claims:
  - {id: one, kind: approx-dp, epsilon: 40.0, delta: 1e-5}
  - {id: two, kind: approx-dp, epsilon: 1.0, delta: 1e-5, group_size: 2, expect: [refuted, open]}
  - {id: useful, kind: metric, name: accuracy, at_least: 0.2, expect: [supported, open, refuted]}
AUDIT""",
    "matrix": """\
dpspec: 1
name: forged-matrix
mechanism:
  kind: matrix
  steps: 6
  noise_multiplier: 2.0
  encoder: {kind: square-root, bands: 2}
  participation: {scheme: cyclic, separation: 3}
data: {kind: synthetic, pattern: blobs, records: 60, features: 8, classes: 2, split: {test: 20}, public: PUBLIC}
model: {kind: linear}
training: {backend: matrix, learning_rate: 0.5}
threat_model: {adjacency: zero-out}
claims:
  - {id: one, kind: approx-dp, epsilon: 40.0, delta: 1e-5}
  - {id: tight, kind: approx-dp, epsilon: 0.1, delta: 1e-5, expect: [refuted, open]}
AUDIT""",
    "modelmix": """\
dpspec: 1
name: forged-modelmix
mechanism:
  kind: modelmix
  noise_multiplier: 1.0
  clip_norm: 1.0
  linf_truncation: 4
  mixing: {threshold: 0.5}
  sampling: {scheme: poisson, rate: 0.1}
  steps: 10
data: {kind: synthetic, pattern: blobs, records: 100, features: 20, classes: 2, split: {test: 20}, public: PUBLIC}
model: {kind: linear}
training: {learning_rate: 0.5}
claims:
  - {id: mixed, kind: approx-dp, epsilon: 2.0, delta: 1e-5, expect: [supported, open]}
  - {id: unmixed, kind: approx-dp, epsilon: 6.0, delta: 1e-5}
  - {id: useful, kind: metric, name: accuracy, at_least: 0.2, expect: [supported, open, refuted]}
AUDIT""",
    "per-instance": """\
dpspec: 1
name: forged-per-instance
mechanism:
  kind: per-instance
  noise_multiplier: 2.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 4
  orders: [2, 4, 8]
data: {kind: synthetic, pattern: blobs, records: 30, features: 8, classes: 2, split: {test: 10}, public: PUBLIC}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {points: all, direction: remove}
claims:
  - {id: everyone, kind: approx-dp, epsilon: 3.0, delta: 1e-5}
  - {id: one, kind: per-instance-dp, epsilon: 0.1, delta: 1e-5, record: 7, expect: [supported, open]}
  - {id: useful, kind: metric, name: accuracy, at_least: 0.2, expect: [supported, open, refuted]}
AUDIT""",
    "preprocessing": """\
dpspec: 1
name: forged-preprocessing
mechanism:
  kind: preprocessing
  pipeline: [{deduplicate: 0.01}]
  private: {kind: gaussian, eps_noise: 0.3, lipschitz: 0.5}
  collection: {max_ball: 24, max_cluster: 3}
  clip_rows: true
data: {kind: synthetic, pattern: blobs, records: 60, features: 4, classes: 2, public: PUBLIC}
threat_model: {adjacency: replace-one}
claims:
  - {id: counted, kind: approx-dp, epsilon: 45.0, delta: 1e-5, over: collection}
  - {id: ignored, kind: approx-dp, epsilon: 1.2, delta: 1e-5, over: collection, expect: [refuted, open]}
AUDIT""",
    "rero": """\
dpspec: 1
name: forged-rero
mechanism: {kind: rero, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 3}
data: {kind: synthetic, pattern: blobs, records: 60, features: 8, classes: 2, public: PUBLIC}
model: {kind: linear}
training: {learning_rate: 0.1}
threat_model: {prior: {candidates: 4}}
claims:
  - {id: one-of-four, kind: rero, kappa: 0.25, gamma: 0.99}
  - {id: membership, kind: membership, advantage: 0.1, expect: [refuted, open]}
AUDIT""",
}

_AUDITS = {
    "group": "audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 16}, seed: 1}\n",
    "matrix": "audit: {method: many-run, releases: 20, seed: 1}\n",
    "modelmix": "audit: {method: one-run, canary: {space: gradient, kind: one-hot, count: 8}, seed: 1}\n",
    "per-instance": "audit: {method: many-run, runs: 2, seed: 1}\n",
    "preprocessing": "audit: {method: many-run, runs: 2, repeats: 40, clusters: 3, members: 3, seed: 1}\n",
    "rero": "audit: {method: many-run, runs: 6, seed: 1}\n",
}

KINDS = tuple(_TEXTS)

#: The plugins that train.
TRAINED = tuple(_AUDITS)

MATRIX = "matrix: {mechanism.noise_multiplier: [0.5, 4]}\n"


def spec_of(kind: str, *, trained: bool, public: bool = True) -> str:
    """The spec of a plugin, with its audit or for bounds only."""
    text = _TEXTS[kind].replace("PUBLIC", "true" if public else "false")
    return text.replace("AUDIT", _AUDITS[kind] if trained else "")
