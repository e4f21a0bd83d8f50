"""What the paper prints beside its theorem, and what it is compared with: shown in tables, no ground of a verdict."""
