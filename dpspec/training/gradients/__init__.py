"""Per-example gradients: computed, clipped and summed."""
