"""Sensitivity of an executed step: its operations are replayed with another record in the batch.

:class:`~dpspec_recording.step_replay.trace.StepTrace` notes the operations of torch from the batch to the clipped sum,
and :func:`~dpspec_recording.step_replay.measure.measure` replays them.
"""
