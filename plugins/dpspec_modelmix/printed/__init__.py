"""What the paper prints and what the bounds are compared with: shown beside them, no ground of a verdict."""
