"""Canaries in a training that people already have: who is planted is decided by coins, and scored once it is over."""
