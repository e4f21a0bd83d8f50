"""Formulas of the paper and other comparisons. Reports show them with the bounds; they support no verdict."""
