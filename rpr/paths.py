"""Where conf/ and sweeps/ are: next to rpr/ in a checkout or editable install, inside it in an installed wheel."""

import os
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
HIDDEN = "RPR_HIDDEN_"  # before the names of variables that only folders may still name (rpr/environment.py)


def data_dir(name: str) -> Path:
    """The folder `conf` or `sweeps`."""
    for folder in (HERE / name, HERE.parent / name):
        if any(folder.glob("*.yaml")):
            return folder
    raise FileNotFoundError(f"{name}/ is neither in {HERE} nor in {HERE.parent}; reinstall rpr")


def user_path(path: str | Path) -> Path:
    """A file or folder that the user names, where a leading `~` and environment variables stand for their values
    (`$SCRATCH/a`, `a/${USER}/b`); one that is not set is part of the name.
    """
    variables = {name.removeprefix(HIDDEN): value for name, value in os.environ.items()}
    return Path(os.path.expanduser(Template(str(path)).safe_substitute(variables)))


def shown_path(path: Path) -> Path:
    """A path in a message: relative to the current folder, if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


SCHEMES_DIR = "RPR_SCHEMES_DIR"  # set by schemes_dir=DIR on the command line; inherited by the processes it starts


def schemes_dir() -> Path | None:
    """The user's own folder: modules of position schemes, and choices in folders as those of conf/, and sweeps/."""
    return Path(os.environ[SCHEMES_DIR]) if os.environ.get(SCHEMES_DIR) else None


def choice_dirs(config_dir: Path | None = None) -> list[Path]:
    """The folders with choices besides conf/, the first found wins: --config-dir's, and the user's own."""
    return [folder for folder in (config_dir, schemes_dir()) if folder is not None]


def sweep_files() -> dict[str, Path]:
    """The files of sweeps by name; of two with one name the user's own counts."""
    folders = [data_dir("sweeps"), *(folder / "sweeps" for folder in choice_dirs())]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}
