"""Derive independent random streams from one seed, for example for sampling and noise."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, purpose: str) -> int:
    """Derive a 63-bit seed from ``seed`` and ``purpose`` by SHA-256."""
    text = f"{seed}:{purpose}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, device: str | torch.device = "cpu") -> torch.Generator:
    """Create a generator for one purpose on ``device``, independent of torch's global generators.

    Streams differ between device types, so equal seeds give equal results only on the same type. torch's CPU generator
    uses the low 32 bits of its seed, which distinguishes runs but is not secret.
    """
    made = torch.Generator(device=device)
    made.manual_seed(derive(seed, purpose))
    return made
