"""From gradients to the clipped sum of a step, as a recorder observes it.

``gradient_parameters``: where gradients are computed; ``contributions``: what each record adds; ``summed_gradients``,
``recomputed_sums``, ``replaced_methods``: whether the sum is that of the contributions; ``sensitivity_probe``,
``size_scaling``: whether a contribution depends on its record alone; ``gradients_got``: the sum of a plain loop.
"""
