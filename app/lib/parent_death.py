"""Ends a server's child process when its leader dies, however that dies.

A `kill -9` of the leader would leave children that hold the port or consume messages, with old code
beside the new.
"""

import ctypes
import multiprocessing
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when the process that forked it dies (prctl(2), Linux).

    Nothing happens in a process that `multiprocessing` did not start. The signal comes when the
    forking thread ends: granian and Dramatiq fork in their main thread. It is SIGKILL, for the
    leader's limit on a graceful stop is gone too.
    """
    leader = multiprocessing.parent_process()
    if leader is None or sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl was refused")
    if os.getppid() != leader.pid:
        # It died before the kernel was asked to tell.
        os.kill(os.getpid(), signal.SIGKILL)
