"""What a trial keeps of the run that it made: the evidence that the checks of conformance are made from.

``dpspec.training.measure.run_evidence`` fills it in from what observers kept, ``run_checks`` tests it, and
``expectations`` fills it in for a run exactly as declared. Trials hold its JSON: ``write_run`` and ``read_run`` of
:mod:`~dpspec.stats.conformance.evidence.run` are the only ways there and back. Everything is in units of the clip norm,
or of the declared deviation of the noise.
"""
