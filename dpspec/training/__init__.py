"""The training backend: DP-SGD on torch, and what an auditor needs beside it. Importing the package imports no torch."""
