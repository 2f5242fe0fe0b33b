"""The private folder of one host: what its processes leave lies in it and goes with it.

An engine's temporary files go there too: vLLM makes a socket for every channel between its
processes (named by a uuid, in ``VLLM_RPC_BASE_PATH``, by default the temporary folder) and, with
a ``file://`` rendezvous, ``vllm_dist_*``. After a SIGKILL nobody removes them.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from harness.host.processes import Process

PREFIX: Final = "harness-host-"
"""How the name of each private folder starts."""

_TEMPORARY: Final = "tmp"
_SOCKET_PATH: Final = 107
"""Bytes that the path of a unix socket may have (``sun_path`` without its end)."""
_LONGEST_NAME: Final = 48
"""vLLM: ``/`` and a uuid, 37; Python: ``/pymp-xxxxxxxx/listener-xxxxxxxx``, 32; and some room."""
_FALLBACK: Final = Path("/tmp")
_made: list[Path] = []


def make_folder() -> Path:
    """Make a private folder, where the temporary files of this process go.

    Where that is a path so long that a socket below it could have no name, in ``/tmp``.

    Raises:
        OSError: There is no room, or no leave, to make it.
    """
    base = Path(tempfile.gettempdir())
    longest = base / f"{PREFIX}{'x' * 8}" / _TEMPORARY
    if not _takes_sockets(longest) and os.access(_FALLBACK, os.W_OK | os.X_OK):
        base = _FALLBACK
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    _made.append(folder)
    (folder / _TEMPORARY).mkdir(mode=0o700)
    return folder


def left_folders() -> list[Path]:
    """Return the folders that this process has made and that are still there."""
    _made[:] = [folder for folder in _made if folder.exists()]
    return list(_made)


def temporary_environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that send an engine's temporary files into its private folder.

    Args:
        folder: The private folder.
        given: The environment so far. A cache that it does not name stays where it would be
            without us: it is meant to outlive an engine.

    Returns:
        ``TMPDIR`` and the place of torch's cache of compiled code; nothing where the folder's
        path is too long for sockets.
    """
    temporary = folder / _TEMPORARY
    if not _takes_sockets(temporary):
        return {}
    shared = given.get("TMPDIR") or tempfile.gettempdir()
    cache = given.get("TORCHINDUCTOR_CACHE_DIR") or f"{shared}/torchinductor_{_user()}"
    return {"TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": cache}


def left_on_disk(folder: Path) -> tuple[list[Process], list[str]]:
    """Read what a reaper has noted last: the processes below it, and their shared memory."""
    try:
        raw = json.loads((folder / "tree.json").read_text("utf-8"))
        found = [Process(p["pid"], p["start"], name=p["name"]) for p in raw["processes"]]
        return found, [str(name) for name in raw["shared"]]
    except (OSError, ValueError, KeyError, TypeError):
        return [], []


def remove_folder(folder: Path) -> bool:
    """Remove a private folder; whether there was one that may be removed.

    A record could name anything: only a real folder of our kind that is this user's own goes.
    """
    try:
        ours = folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False
    if not (ours and folder.name.startswith(PREFIX)):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _takes_sockets(folder: Path) -> bool:
    return len(os.fsencode(folder)) + _LONGEST_NAME <= _SOCKET_PATH


def _user() -> str:
    """Return the user's name as torch has it in the name of its cache."""
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError, ImportError):
        return str(os.getuid())
