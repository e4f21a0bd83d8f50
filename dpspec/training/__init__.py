"""DP-SGD training in torch and the measurements for an audit. Importing the package does not import torch."""
