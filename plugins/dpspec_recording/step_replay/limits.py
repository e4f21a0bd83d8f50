"""Limits of the moves of an honest step."""

#: Largest move of the sum in clip norms, without rounding, and the relative rounding that is allowed.
LARGEST_MOVE, MOVE_ROUNDING = 2.0, 1e-3

#: Relative change of other rows that rounding explains.
ROWS_ROUNDING = 1e-5
