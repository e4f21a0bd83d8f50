"""Identities of tensors: equal for one tensor alone, also after it is gone."""

import torch

from dpspec_recording.scripts.steps import identities


def test_an_identity_is_not_used_again():
    gone = identities([torch.zeros(3)])
    for _ in range(100):
        kept = torch.zeros(3)
        assert gone.keys().isdisjoint(identities([kept]))
    assert identities([kept]).keys() == identities([kept]).keys()
