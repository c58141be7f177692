"""Which line files of a folder are read: one for each language and split, plain or packed."""

import re
from pathlib import Path

from rpr.data.content import UNPACKED
from rpr.data.files import OWN_NAME, SPLIT_NAMES, Listing, is_left_over, kind_of, split_word
from rpr.data.tables import TABLES
from rpr.errors import DataError


def list_line_files(path: Path, languages: tuple[str, str]) -> Listing:
    """The (source, target) files of each split, packed ones included: of a folder, or of the files that begin with
    `path`; without splits if a folder has none. Other stems than those of the standard splits are splits of their own
    name, except other versions of train. Raises DataError: the path does not exist; one side of a split is missing; a
    file is there twice, or as a link to nothing; a standard split is there in capitals alone.
    """
    folder = path if path.is_dir() else path.parent
    named = re.compile(rf"(.+)\.(?i:({'|'.join(map(re.escape, languages))})({'|'.join(map(re.escape, UNPACKED))})?)")
    called = {language.lower(): language for language in languages}
    stems: dict[str, dict[str, Path]] = {}
    others = []
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = named.fullmatch(file.name)
        if match is not None and not path.is_dir() and match[1] != path.name:
            continue
        if match is not None and file.is_symlink() and not file.exists():
            raise DataError(f"data.path: {file} is a link to nothing; restore its file, or remove the link")
        if match is None or not file.is_file():
            others.append(file)
        else:
            sides = stems.setdefault(match[1], {})
            if (other := sides.setdefault(called[match[2].lower()], file)) != file:
                raise DataError(f"data.path: {other} and {file} are the same side of one split; keep one of them")
    if not path.is_dir():
        if not stems:
            raise _absent(path, languages)
        return Listing(folder, {"train": _both(path.name, stems[path.name], languages, folder)}, lines=True)
    splits: dict[str, tuple[Path, ...]] = {}
    for split, names in SPLIT_NAMES.items():
        if name := next((name for name in names if name in stems), None):
            splits[split] = _both(name, stems.pop(name), languages, folder)
        elif name := next((name for name in stems if name.lower() in names), None):
            raise DataError(
                f"data.path: {next(iter(stems[name].values()))} is not read as {split}, whose files begin with "
                f"{name.lower()}; rename it, and its counterpart"
            )
    for name, sides in stems.items():
        word = split_word(name)
        if word != "train" and OWN_NAME.fullmatch(name) and (len(sides) == 2 or word):
            splits[name] = _both(name, sides, languages, folder)
        else:
            others += sides.values()
    if splits:
        others = [file for file in others if _looks_like_data(file, languages)]
    return Listing(folder, splits, tuple(others), lines=True)


def _both(stem: str, sides: dict[str, Path], languages: tuple[str, str], folder: Path) -> tuple[Path, Path]:
    for language in languages:
        if language not in sides:
            raise DataError(
                f"data.path: {next(iter(sides.values()))} has no counterpart {folder / stem}.{language}; "
                "a split needs both languages"
            )
    return sides[languages[0]], sides[languages[1]]


def _looks_like_data(file: Path, languages: tuple[str, str]) -> bool:
    in_language = any(suffix[1:].lower() in map(str.lower, languages) for suffix in file.suffixes)
    # A link to nothing and a folder, too.
    return in_language or is_left_over(file) or (kind_of(file) in TABLES and bool(split_word(file.name)))


def _absent(path: Path, languages: tuple[str, str]) -> DataError:
    expected = f"a folder, or {path.name}.{languages[0]} and {path.name}.{languages[1]} in {path.parent}"
    if path.is_file():
        return DataError(
            f"data.path: {path} is a file; "
            f"give its folder, or for line files the path without .{languages[0]} (looked for {expected})"
        )
    return DataError(
        f"data.path: {path} does not exist (looked for {expected}); "
        "check data.path, source_language and target_language"
    )
