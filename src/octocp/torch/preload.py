"""What the fork server imports first: from here on it ends when the launcher does, while it imports torch too."""

from __future__ import annotations

import ctypes
import multiprocessing.forkserver
import signal
import sys

# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1

# Only in the fork server itself; this says something about the process, not about the module.
if sys.platform == "linux" and getattr(sys.modules["__main__"], "main", None) is multiprocessing.forkserver.main:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
