"""A spec for tests of canaries and scores from plugins."""

SPEC = """\
dpspec: 1
name: upside-down
mechanism: {kind: group, noise_multiplier: 0.05, clip_norm: 1.0, sampling: {scheme: full}, steps: 20}
data: {kind: synthetic, pattern: blobs, records: 60, features: 40, classes: 2}
model: {kind: mlp, hidden: [16]}
training: {backend: native, learning_rate: 2.0}
threat_model: {access: final-model}
claims:
  - {id: private, kind: approx-dp, epsilon: 0.1, delta: 1e-3, refuted_by: attack, expect: refuted}
audit:
  method: one-run
  canary: {space: input, kind: upside-down, share: 0.8, count: 60}
  score: around
  scoring: {points: 16}
  seed: 3
"""

SCORED = "score: around\n  scoring: {points: 16}"
