"""The parameters at which gradients are computed."""
