"""Who may do what in a local directory, and another one made alike."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_DEFAULT_RIGHTS = "system.posix_acl_default"


def inherits(directory: str) -> bool:
    """Whether files get access control lists by being made in a directory."""
    if not hasattr(os, "getxattr"):
        return False
    try:
        os.getxattr(directory, _DEFAULT_RIGHTS)
    except OSError as error:
        return error.errno not in {errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP}
    return True


def made_like(path: str, directory: str) -> bool:
    """Makes a directory with the group and the mode of another one, if there is none; whether it is for the same users.

    Raises:
        OSError: It cannot be made.
    """
    wanted = Path(directory).stat()
    try:
        Path(path).mkdir(mode=0o700)
    except FileExistsError:
        return is_for_the_same(path, directory)
    with contextlib.suppress(OSError, AttributeError):  # a group that is not ours stays the one of the parent
        os.chown(path, -1, wanted.st_gid)
    Path(path).chmod(stat.S_IMODE(wanted.st_mode))
    if is_for_the_same(path, directory):
        return True
    Path(path).rmdir()
    return False


def is_for_the_same(path: str, directory: str) -> bool:
    """Whether nobody but those who may write into one directory, root and this account may write into another one.

    Next to a directory in a place that all may write into, such as `/tmp`, anybody can make one.

    Raises:
        OSError: One of them is not there.
    """
    found, wanted = Path(path).lstat(), Path(directory).stat()
    if not stat.S_ISDIR(found.st_mode) or not hasattr(os, "geteuid"):
        return stat.S_ISDIR(found.st_mode)
    if wanted.st_mode & stat.S_IWOTH:
        return True
    of_the_group = bool(wanted.st_mode & stat.S_IWGRP) and found.st_gid == wanted.st_gid
    is_ours = found.st_uid in {0, wanted.st_uid, os.geteuid()} or of_the_group
    more = found.st_mode & ~wanted.st_mode
    same_group = found.st_gid == wanted.st_gid or not found.st_mode & stat.S_IWGRP
    return is_ours and same_group and not more & (stat.S_IWGRP | stat.S_IWOTH)
