"""Recordings of trainings from inside their own scripts.

``dpspec.record`` makes a :class:`~dpspec.recording.recorder.Recorder`. ``watching`` has its observers, ``folder`` the
format on disk, ``planting`` canaries, and ``replay`` the comparison of a script on neighboring datasets. Reading a
folder imports no torch.
"""
