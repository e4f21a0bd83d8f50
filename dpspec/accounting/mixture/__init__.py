"""The scalar mixture-of-Gaussians pair: what one step of DP-SGD leaks about a record or a group."""
