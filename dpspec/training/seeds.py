"""One seed, many independent streams: sampling never shares random numbers with noise."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, purpose: str) -> int:
    """A 63-bit seed that depends on ``seed`` and ``purpose`` alone, by SHA-256."""
    text = f"{seed}:{purpose}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator of its own for one purpose, on ``device``; torch's global generators are left alone.

    Streams on different kinds of device differ, so equal seeds give equal results on the same kind only. torch's CPU
    generator reads the low 32 bits of its seed: enough to tell runs apart, and no secret.
    """
    made = torch.Generator(device=device)
    made.manual_seed(derive(seed, purpose))
    return made
