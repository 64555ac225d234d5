"""One exception tree; every error that a user can cause is one of these and prints as one line."""

from __future__ import annotations


class OctoCPError(Exception):
    """Base of all errors that OctoCP raises on purpose.

    Attributes
    ----------
    exit_code : int
        What the command line exits with.
    """

    exit_code = 2


class InputError(OctoCPError):
    """The input or the command line is wrong.

    Parameters
    ----------
    problem : str
        What is wrong.
    place : str, optional
        Where inside the file, as a key path (``cluster.devices``).
    file : str, optional
        The file.
    right : str, optional
        What would be right.
    """

    def __init__(self, problem: str, *, place: str = "", file: str = "", right: str = "") -> None:
        self.problem, self.place, self.file, self.right = problem, place, file, right
        super().__init__(problem)

    def __str__(self) -> str:
        """Render as one line: file, place, what is wrong, what would be right."""
        parts = [part for part in (self.file, self.place) if part]
        text = ": ".join([*parts, self.problem])
        if self.right:
            text += f" ({self.right})"
        return " ".join(text.split())

    def in_file(self, file: str) -> InputError:
        """Return the same error, naming `file` unless it already names one."""
        return type(self)(self.problem, place=self.place, file=self.file or file, right=self.right)


class UnsupportedError(InputError):
    """The input asks for something that the format has and this version cannot do."""

    def __str__(self) -> str:
        """Render like any input error, marked so that nobody takes it for a mistake of theirs."""
        shown = InputError(f"not supported yet: {self.problem}", place=self.place, file=self.file, right=self.right)
        return str(shown)


class InfeasibleError(OctoCPError):
    """No plan exists; the text names the constraint that cannot be met and by how much."""

    exit_code = 3


class NoPlanError(OctoCPError):
    """No plan was found within the time limit."""

    exit_code = 4


class PlanRejectedError(OctoCPError):
    """The independent checker refused a plan that OctoCP made: a bug in OctoCP, never silently written."""

    exit_code = 70
