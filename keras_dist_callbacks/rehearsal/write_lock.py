"""A process and all that it starts may write to some directories alone: Linux refuses it anywhere else.

By Landlock (landlock(7)), which needs no rights and holds for every library. Kernels before 6.2, and those in which it
is switched off, are left as they are: older ones could not keep a file from being truncated.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # numbers of the system calls
_VERSION, _BENEATH, _LEAST_VERSION = 1, 1, 3
_NO_NEW_PRIVILEGES = 38
_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM, _REFER, _TRUNCATE = (
    1 << bit for bit in (1, 4, 5, 7, 8, 9, 10, 12, 13, 14)
)
_ALL = (
    _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
    | _REFER | _TRUNCATE
)  # fmt: skip


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("directory", ctypes.c_int32))


def restrict_writing(directories: Iterable[str]) -> bool:
    """Lets this process change nothing outside of directories; it cannot be taken back.

    Args:
        directories: Where it may write; those that do not exist are left out.

    Returns:
        Whether the kernel can do that.
    """
    if sys.platform != "linux":
        return False  # other systems have other calls under these numbers
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_CREATE, None, 0, _VERSION) < _LEAST_VERSION:
        return False
    ruleset = libc.syscall(_CREATE, ctypes.byref(ctypes.c_uint64(_ALL)), ctypes.sizeof(ctypes.c_uint64), 0)
    if ruleset < 0:
        return False
    try:
        for directory in filter(os.path.isdir, directories):
            descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC)
            rule = _Rule(_ALL, descriptor)
            failed = libc.syscall(_ADD, ruleset, _BENEATH, ctypes.byref(rule), 0)
            os.close(descriptor)
            if failed:
                return False
        return not libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) and not libc.syscall(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
