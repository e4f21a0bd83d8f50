"""How a command ends as another program, whose exit code, traceback and signals are the process's own."""

from collections.abc import Callable


class Handover(BaseException):
    """The command is over, and the process continues with ``program``, which no handler of the command line observes.

    ``program`` returns the exit code. Its exceptions end the process as in a script.
    """

    def __init__(self, program: Callable[[], int]) -> None:
        super().__init__()
        self.program = program
