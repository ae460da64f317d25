"""Replace files so that a crash, a power loss or a full disk leaves the old file or the new one, never a part of it."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a full or broken disk


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` at the end of the block, or is removed if the block fails.

    The file's bytes are on the disk before it gets its name, and the name is on the disk before the block ends: the
    previous file is kept until the new one would survive a power loss. The temporary name cannot be predicted, and a
    link of that name is not followed.
    """
    remove_leftovers(path)
    temporary, file = _create_temporary(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a failed write does not say where
        raise
    sync_folder(path.parent)


def _create_temporary(path: Path) -> tuple[Path, BinaryIO]:
    """Create a hidden file beside `path` and lock it, so that `remove_leftovers` knows that its process is alive."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        file = open(descriptor, "wb")  # noqa: SIM115
        if _lock(file) and temporary.exists():
            return temporary, file
        file.close()  # another process took it for a leftover before it was locked


def _lock(file: BinaryIO) -> bool:
    """Lock a file; return False if another process has locked it. Some network disks cannot lock: nobody has then."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files of `path` that processes left behind which were killed."""
    with suppress(OSError), os.scandir(path.parent) as entries:
        names = [e.name for e in entries if e.name.startswith(f".{path.name}.") and e.name.endswith(".tmp")]
        for name in names:
            _remove_unlocked(path.with_name(name))


def _remove_unlocked(temporary: Path) -> None:
    """Remove a file unless a process has locked it, or nobody can tell."""
    with suppress(OSError), open(os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the folder may be read and the disk can do it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network disks cannot
            raise
    finally:
        os.close(descriptor)


def disk_failed(error: BaseException | None) -> bool:
    """Return whether an error, or one it was raised from, is that of a full or broken disk: no mistake of the user."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FAILURES:
            return True
        error = error.__context__
    return False
