"""Why a schedule or a partition rule cannot run on an instance."""


class NotApplicableError(ValueError):
    """A heuristic cannot run on an instance; the text says why."""
