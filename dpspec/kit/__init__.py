"""Tools of mechanism plugins in two namespaces, whose names this package also has.

:mod:`dpspec.kit.blocks` has the blocks of a mechanism: keys, diagnostics, findings and base classes.
:mod:`dpspec.kit.trials` has the helpers of trials: their inputs, chunks and costs, and the reading of their evidence.

>>> from dpspec import kit
>>> scale = kit.number("Scale of the noise.", above=0)  # a key of the mechanism block
>>> scale["exclusiveMinimum"], scale["description"]
(0, 'Scale of the noise.')
>>> kit.chunks(5, together=2)  # trials that run together
((0, 1), (2, 3), (4,))

:mod:`dpspec.kit.scores_elsewhere` supports scores computed by other programs. Importing this package imports neither
numpy nor torch.
"""

from dpspec.kit import blocks, trials
from dpspec.kit.blocks import *
from dpspec.kit.trials import *
from dpspec.renames import old_names

__all__ = []
__all__ += blocks.__all__
__all__ += trials.__all__

#: Old names work for two minor versions.
__getattr__ = old_names(__name__)
