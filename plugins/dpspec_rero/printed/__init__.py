"""Formulas of the paper and its baselines. Tables show them; they support no verdict."""
