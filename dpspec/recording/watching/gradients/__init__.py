"""From gradients to the clipped sum of a step, as a recorder observes it.

``gradient_parameters``: the parameters of each pass; ``contributions``: the norm of each record's part;
``summed_gradients``, ``recomputed_sums``, ``replaced_methods``: whether the sum consists of the contributions;
``sensitivity_probe``, ``size_scaling``: whether a contribution depends on other records; ``gradients_got``: the sum of
a plain loop.
"""
