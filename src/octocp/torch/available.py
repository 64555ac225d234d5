"""Whether torch is installed, told in one line where it is not."""

from __future__ import annotations

from importlib.util import find_spec

from octocp.errors import InputError


def require_torch() -> None:
    """Raise an `InputError` that says how to install torch where it is missing."""
    if find_spec("torch") is None:
        raise InputError("torch is not installed", right="pip install 'octocp[torch]'")
