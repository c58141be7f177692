"""Where conf/ and sweeps/ are: next to rpr/ in a checkout or editable install, inside it in an installed wheel."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The folder `conf` or `sweeps`."""
    for folder in (HERE / name, HERE.parent / name):
        if any(folder.glob("*.yaml")):
            return folder
    raise FileNotFoundError(f"{name}/ is neither in {HERE} nor in {HERE.parent}; reinstall rpr")


def user_path(path: str | Path) -> Path:
    """A file or folder that the user names, with `~` and environment variables expanded as a shell would."""
    return Path(os.path.expanduser(os.path.expandvars(path)))
