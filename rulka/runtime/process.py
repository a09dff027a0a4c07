"""What every process that the learner starts does first, and how it notices that the learner is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import torch

HEARTBEAT_S = 1.0
"""Time between signs of life."""
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class LearnerGoneError(RuntimeError):
    """The process that started this one has ended."""


def become_child(parent_pid: int) -> None:
    """Ties this process to its parent, leaves Ctrl-C to it, and computes with one thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before that
        sys.exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
