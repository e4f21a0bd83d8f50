"""The values that move the parameters: noisy sums and public numbers alone."""
