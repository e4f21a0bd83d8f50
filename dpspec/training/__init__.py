"""The training backend: DP-SGD on torch, and what an auditor needs beside it. The package itself imports no torch."""
