"""`rpr-cli COMMAND --help`: what conf/ says about the command's settings, with its comments."""

import itertools
import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rpr.compose import hydra_bridge
from rpr.compose.composition import choices_of
from rpr.paths import choice_dirs, data_dir

_NOT_SETTINGS = ("defaults", "hydra")
_NAMES = ("name", "scheme")  # of a choice


def command_help(name: str, overrides: Sequence[str], config_dir: Path | None) -> str:
    """The command's purpose, groups with their choices, and settings: of the choices among the overrides, else of the
    default ones.
    """
    chosen = hydra_bridge.compose(name, overrides, config_dir, with_hydra=True).hydra.runtime.choices
    purpose, blocks = _read(Path(name), config_dir)
    # Hydra lists them from the last to the first; a recipe follows from model and data.
    named = [(group, str(choice)) for group, choice in reversed(chosen.items()) if group != "recipe"]
    groups = {group: choice for group, choice in named if "@" not in group and not group.startswith("hydra/")}
    of_one_stack = [group.partition("@")[2] for group, _ in named if "@" in group]
    lines = [*purpose, "", f"usage: rpr-cli {name} {'[GROUP=CHOICE ...] ' if groups else ''}[SETTING=VALUE ...]"]
    if groups:
        width = max(map(len, groups))
        lines += ["", "Groups and their choices ([selected]); --help after a choice shows its settings:"]
        for group, choice in groups.items():
            names = [f"[{name}]" if name == choice else name for name in dict.fromkeys([*choices_of(group), choice])]
            lines.append(f"  {group:<{width}}  {', '.join(names)}")
        lines += [f"  {group}: another choice of {group.partition('.')[0]}" for group in of_one_stack]
    lines += ["", "Settings:", *_indented(blocks)]
    for group, choice in groups.items():
        about, blocks = _read(Path(group) / choice, config_dir)
        settings = {key: block for key, block in blocks.items() if key not in _NAMES}
        lines += ["", f"{group}.* of {group}={choice}:", *(f"  # {line}" for line in about), *_indented(settings)]
    lines += ["", f"rpr-cli {name} --cfg job prints the composed configuration."]
    width = max(shutil.get_terminal_size((10**6, 0)).columns, 40)  # of a window; in a file each line stays whole
    wrapped = []
    for line in "\n".join(lines).split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        whole: Any = {"break_long_words": False, "break_on_hyphens": False}
        wrapped += textwrap.wrap(line, width, subsequent_indent=indent, **whole) or [""]
    return "\n".join(wrapped)


def _read(file: Path, config_dir: Path | None) -> tuple[list[str], dict[str, str]]:
    """The opening comment of a file of conf/, and its settings by name, as written, after those it inherits."""
    import yaml

    folders = [*choice_dirs(config_dir), data_dir("conf")]
    paths = [(folder / file).with_suffix(".yaml") for folder in folders]
    lines = next((path.read_text(encoding="utf-8").splitlines() for path in paths if path.is_file()), [])
    about = [line.removeprefix("#").strip() for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    blocks: dict[str, str] = {}
    for base in (yaml.safe_load("\n".join(lines)) or {}).get("defaults", []):
        if isinstance(base, str) and base != "_self_":
            blocks |= _read(file.with_name(base), config_dir)[1]
    comment: list[str] = []
    key = ""
    for line in lines[len(about) :]:
        if line.startswith("#"):
            comment.append(line)
        elif key_match := re.match(r"(\w+):", line):
            key = key_match[1]
            blocks[key] = "\n".join([*comment, line])
            comment = []
        elif line.strip() and key:
            blocks[key] += f"\n{line}"
    return about, {key: block for key, block in blocks.items() if key not in _NOT_SETTINGS}


def _indented(blocks: dict[str, str]) -> list[str]:
    return [f"  {line}" for block in blocks.values() for line in block.split("\n")]
