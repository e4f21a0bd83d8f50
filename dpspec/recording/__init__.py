"""What a training that people already have really did: recorded from inside their script, into a folder.

``dpspec.record`` makes a :class:`~dpspec.recording.recorder.Recorder`; what ``watching`` sees, ``watched_training``
puts together and writes to a ``folder``. ``dpspec check`` holds that against what is claimed
(:mod:`dpspec.engine.recorded`). Reading a folder imports no torch. ``dpspec.replay``, in ``replaying``, sets a training
up on neighbouring data sets.
"""
