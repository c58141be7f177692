"""Which files of a corpus are read, split by split; what is listed here is hashed and read, and nothing else.

    listing = list_files(root, suffixes, config)        # a folder, as of the hub or any other, or one file
    listing.splits                                      # {"train": (files...), "test": (files...), ...}
    listing.fingerprint(store)                          # labels and sha256 of exactly these files
    rpr.data.tables.describe(file), read_columns(...)   # their columns, as text, in batches
    rpr.data.content.open_file(file)                    # or their bytes, unpacked

Files are matched by their names, never by the patterns of a library, so any character may stand in a path.
"""

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rpr.data.content import UNPACKED, is_packed, open_file
from rpr.errors import DataError, did_you_mean
from rpr.io.atomic import replace_file
from rpr.io.locks import exclusive

SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
# In the names of files and folders, as the datasets library reads them.
SPLIT_WORDS = {word: split for split, words in SPLIT_NAMES.items() for word in words} | {
    "training": "train",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
# Suffixes of what lies beside a corpus. All other files may be data: people keep splits in .zip, .sgm, .xlsx, .zst ...
BESIDE_DATA = {
    *(".md", ".rst", ".html", ".pdf", ".tex", ".py", ".pyc", ".ipynb", ".sh", ".pl", ".c", ".cpp", ".h", ".js", ".css"),
    *(".yaml", ".yml", ".toml", ".cfg", ".ini", ".lock", ".log", ".out", ".err", ".png", ".jpg", ".jpeg", ".svg"),
    *(".md5", ".sha1", ".sha256", ".crc", ".asc", ".sig", ".bak", ".swp", ".pt", ".ckpt", ".model", ".vocab"),
}
NOT_READ = {".zip", ".zst", ".tar", ".tgz", ".7z", ".rar", ".lz4"}  # archives and packed files that may be data
NOT_DATA = {"config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"}
README_KEYS = {"config_name", "data_files", "data_dir", "default", "description", "sep", "delimiter"}
OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a split: it becomes part of file names
SETTLED_NS = 2_000_000_000  # a file that changed within that time may change again without a new time
SHARD = re.compile(r"[-._](?!(?:19|20)\d\d$)\d{1,5}(?:-of-\d+.*)?$")  # train-00000-of-00001, test_1, but not test_2016


@dataclass(frozen=True)
class Listing:
    """The files that are read.

    root: the folder. splits: the files of each split, in the order in which they are read; of line files (`lines`) the
    source and the target. left_over: files that look like data and are not read. readme: the README, hashed as it may
    decide which they are, and does if `configured`. separator: of CSV fields, if the README sets it.
    """

    root: Path
    splits: Mapping[str, tuple[Path, ...]]
    left_over: tuple[Path, ...] = ()
    lines: bool = False
    readme: Path | None = None
    configured: bool = False
    separator: str | None = None

    def fingerprint(self, store: Path) -> list[str]:
        """A label and the sha256 of each file, sorted; the digests are cached in `store`."""
        if self.lines:
            named = [
                (f"{split} {side}", file)
                for split, files in sorted(self.splits.items())
                for side, file in enumerate(files)
            ]
        else:
            files = sorted(file.relative_to(self.root) for files in self.splits.values() for file in files)
            named = [(str(name), self.root / name) for name in files]
            if self.readme is not None:
                named.insert(0, ("README.md", self.readme))
        digests = file_digests([file for _, file in named], store)
        return [f"{label} {digest}" for (label, _), digest in zip(named, digests, strict=True)]


def kind_of(file: Path) -> str:
    """The suffix that says how a file is read: `.jsonl` of x.jsonl, of X.JSONL and of x.jsonl.gz."""
    *_, before, last = ("", "", *map(str.lower, file.suffixes))
    return before if last in UNPACKED else last


def standard_split(name: str, names: Collection[object]) -> str:
    """The standard split of a name: validation for the first of validation, valid, val, dev in `names`; or itself."""
    usual = {next((word for word in same if word in names), None): split for split, same in SPLIT_NAMES.items()}
    return usual.get(name, name)


def split_word(name: str) -> str | None:
    """The standard split that a word of a name stands for: test of `en-de.test` and `test_2016`; or None."""
    return next((SPLIT_WORDS[word] for word in re.split(r"[-._ \d]+", name.lower()) if word in SPLIT_WORDS), None)


def list_files(root: Path, suffixes: Collection[str], config: str | None = None) -> Listing:
    """The files of a folder whose kind is one of `suffixes`, also those in sub-folders and behind links, by split; a
    path to one file is its train split.

    The README decides, if it has `configs`: of these, `config` or the only one. Otherwise `config` may be a sub-folder.
    A file belongs to the split that its folder or its name speaks of; if there are several such groups of files for
    validation or test (test, test_2016, eval), all but the usual one are splits of their own names; if no file speaks
    of a split, all are train. Files of datasets' `save_to_disk` are those that its state.json names. Raises DataError
    if there are none, for two kinds of files in a split, and for what the README names that cannot be followed.
    """
    if root.is_file():
        return Listing(root.parent, {"train": (root,)})
    readme = root / "README.md"
    configs = _readme_configs(readme) if readme.is_file() else {}
    within = root / config if config and not configs and (root / config).is_dir() else root
    everything = dict(_walk(root, within))
    data = {name: file for name, file in everything.items() if _is_data(file, suffixes)}
    if configs:
        name = config if config in configs else next(iter(configs)) if len(configs) == 1 else None
        if name is None or (config not in (None, name) and name != "default"):
            raise DataError(f"data.hub_config: no {config!r} in {root}{did_you_mean(str(config), configs)}")
        chosen = {each: _readme_splits(readme, settings, data) for each, settings in configs.items()}
        splits, separator = chosen[name], _separator(configs[name])
    else:
        splits, separator = _splits_by_name(data), None
        chosen = {"": splits}
    used = {file for each in chosen.values() for files in each.values() for file in files}
    for split, files in splits.items():
        check_alike(split, files)
    left = [file for name, file in everything.items() if file not in used and (name in data or is_left_over(file))]
    given = readme if readme.is_file() else None
    return Listing(root, splits, tuple(left), readme=given, configured=bool(configs), separator=separator)


def is_left_over(file: Path) -> bool:
    """Whether a file that is not read may be data: packed in a way that is not read, or its name speaks of a split, and
    its suffix does not say that it is no data.
    """
    return bool({file.suffix.lower(), kind_of(file)} & NOT_READ) or (
        file.suffix.lower() not in BESIDE_DATA and split_word(file.name) is not None
    )


def _is_data(file: Path, suffixes: Collection[str]) -> bool:
    kind = kind_of(file)
    if file.name in NOT_DATA or kind not in suffixes or (is_packed(file) and kind in (".parquet", ".arrow")):
        return False
    state = file.with_name("state.json")
    if kind == ".arrow" and state.is_file():
        return {"filename": file.name} in read_json(state).get("_data_files", [])
    return True


def _walk(root: Path, within: Path) -> Iterator[tuple[str, Path]]:
    """The visible files, by their names relative to root, sorted by folder. DataError: a folder is there twice."""

    def unreadable(error: OSError) -> NoReturn:
        raise DataError(
            f"data.path: {error.filename} cannot be read ({error.strerror}); make it readable, or move it away"
        )

    seen: dict[str, str] = {}
    for folder, folders, names in os.walk(within, onerror=unreadable, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            raise DataError(
                f"data.path: {folder} and {seen[real]} are one folder, whose files would be read twice; remove the link"
            )
        seen[real] = folder
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(names):
            if not name.startswith((".", "__")):
                file = Path(folder, name)
                yield file.relative_to(root).as_posix(), file


def check_alike(split: str, files: Iterable[Path]) -> None:
    """Raises DataError if a file is there twice, packed in two ways or not at all, or their formats differ."""
    if not OWN_NAME.fullmatch(split):
        raise DataError(
            f"data.path: {split[:100]!r} cannot name a split, as it becomes part of file names; name it like test_2016"
        )
    first: dict[str, Path] = {}  # of each format, and of each file, packed or not
    for file in files:
        unpacked = file.with_suffix("") if is_packed(file) else file
        bare = str(unpacked.with_suffix(unpacked.suffix.lower()))
        other = first.get(bare) or next(iter(first.values()), file)
        if bare in first or kind_of(other) != kind_of(file):
            raise DataError(
                f"data.path: {other} and {file} are both of split {split}, and would be read one after the other; "
                "keep one of them, or store all files of a split in one format"
            )
        first[bare] = file


def _splits_by_name(data: Mapping[str, Path]) -> dict[str, tuple[Path, ...]]:
    groups: dict[str, list[Path]] = {}
    for name, file in data.items():
        groups.setdefault(group_of(name, kind_of(file)), []).append(file)
    lower = Counter(group.lower() for group in groups)
    if like := [files[0] for name, files in groups.items() if lower[name.lower()] > 1]:
        raise DataError(f"data.path: {like[0]} and {like[1]} are of splits that differ in case alone; rename one")
    if set(groups) == {""}:
        return {"train": tuple(groups[""])}
    named = {group: split_word(group) or group for group in groups if group}
    alike, words = Counter(named.values()), [group for group in named if group.lower() in SPLIT_WORDS]
    words.sort(key=lambda word: -[*SPLIT_WORDS].index(word.lower()))
    usual = {named[word]: word for word in words}  # the last one: test, before eval
    splits: dict[str, list[Path]] = {}
    for group, split in named.items():
        own = alike[split] > 1 and split != "train" and group != usual.get(split)
        splits.setdefault(group if own else split, []).extend(groups[group])
    return {split: tuple(files) for split, files in splits.items()}


def group_of(name: str, kind: str) -> str:
    """What a file's nearest folder, or its own name, says of its split: test_2016 of a/test_2016/x.csv; or nothing."""
    *folders, last = name.split("/")
    stem = last[: last.lower().rindex(kind)]
    own = SHARD.sub("", stem)
    if folders[-1:] == ["data"] and re.search(r"-\d{5}-of-\d{5}", stem):  # the hub's layout, for splits of any name
        return own
    return next((part for part in (*reversed(folders), own) if split_word(part)), "")


# The README of a hub dataset


def _readme_configs(readme: Path) -> dict[str, dict[str, Any]]:
    """The entries of `configs` in its YAML header, by name."""
    import yaml

    try:
        header = re.match(r"\s*---\s*\n(.*?)\n---\s*(\n|$)", readme.read_text("utf-8-sig"), re.DOTALL)
        content = yaml.safe_load(header[1]) if header else None
        entries = content.get("configs") or [] if isinstance(content, dict) else []
        configs = {str(entry.get("config_name", "default")): entry for entry in entries}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise DataError(
            f"data.path: the header of {readme} cannot be read ({' '.join(str(error).split())[:200]}); fix or remove it"
        ) from None
    for name, entry in configs.items():
        if unknown := sorted(set(entry) - README_KEYS, key=str):
            raise DataError(
                f"data.path: {readme} sets {unknown[0]!r} for {name}, which rpr cannot follow; it reads "
                f"{', '.join(sorted(README_KEYS))}: remove it, and convert the files if they need it"
            )
        separator = _separator(entry)
        if separator is not None and not (isinstance(separator, str) and len(separator) == 1):
            raise DataError(f"data.path: {readme} sets the separator {separator!r} for {name}; set one character")
    return configs


def _separator(entry: Mapping[str, Any]) -> Any:
    return entry.get("sep", entry.get("delimiter"))


def _readme_splits(readme: Path, entry: Mapping[str, Any], data: Mapping[str, Path]) -> dict[str, tuple[Path, ...]]:
    from fsspec.utils import glob_translate  # type: ignore[import-untyped]

    prefix = _inside(readme, entry["data_dir"]) + "/" if entry.get("data_dir") else ""
    given = entry.get("data_files")
    if given is None:
        return _splits_by_name({name: file for name, file in data.items() if name.startswith(prefix)})
    if isinstance(given, str) or (isinstance(given, list) and all(isinstance(each, str) for each in given)):
        given = {"train": given}
    elif isinstance(given, list) and all(isinstance(each, dict) and {"split", "path"} <= set(each) for each in given):
        given = {str(each["split"]): each["path"] for each in given}
    if not isinstance(given, dict) or not all(isinstance(patterns, (str, list)) for patterns in given.values()):
        raise DataError(f"data.path: data_files in {readme} is not a list of splits and paths; fix it")
    splits: dict[str, tuple[Path, ...]] = {}
    for split, patterns in given.items():
        files: list[Path] = []
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            wanted = prefix + _inside(readme, pattern)
            try:
                matches = re.compile(glob_translate(wanted))
            except ValueError as error:
                raise DataError(f"data.path: {readme} lists {pattern!r} for {split} ({error}); correct it") from None
            listed = [data[wanted]] if wanted in data else [data[name] for name in data if matches.fullmatch(name)]
            if not listed:
                raise DataError(
                    f"data.path: {readme} lists {pattern!r} for {split}, which is no readable data file there; "
                    "add it, or correct the README"
                )
            files += [file for file in listed if file not in files]
        name = standard_split(str(split), given)
        splits[name] = (*splits.get(name, ()), *files)
    return splits


def _inside(readme: Path, pattern: object) -> str:
    parts = [part for part in str(pattern).split("/") if part not in ("", ".")]
    if ".." in parts or str(pattern).startswith(("/", "~")) or "::" in str(pattern) or "://" in str(pattern):
        raise DataError(
            f"data.path: {readme} takes {str(pattern)!r} from outside of its folder; only files within are read: "
            "copy or link it into the folder, and name it there"
        )
    return "/".join(parts)


# Digests


def file_digests(files: Iterable[Path], store: Path) -> list[str]:
    """sha256 of each file's content, cached in `store` by path, size, inode, and times of modification and of change:
    who restores a modification time, or puts another file of the same size and time in place, changes one of the last.
    """
    known, new, now = read_json(store), dict[str, Any](), time.time_ns()  # before a file is read, which may take long
    digests = []
    for file in files:
        with open_file(file, packed=True) as handle:
            status = os.fstat(handle.fileno())
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            entry = known.get(str(file))
            if not isinstance(entry, list) or entry[:-1] != stamp:
                entry = [*stamp, hashlib.file_digest(handle, "sha256").hexdigest()]  # type: ignore[arg-type]
                if now - max(stamp[1:3]) > SETTLED_NS:
                    new[str(file)] = entry
        digests.append(str(entry[-1]))
    if new:
        update_json(store, new)
    return digests


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def update_json(path: Path, values: Mapping[str, Any]) -> None:
    """Set keys of a JSON file. Write errors are ignored: only the next start is slower."""
    with suppress(OSError), exclusive(path.parent, path.name, quiet=True):
        replace_file(path, json.dumps({**read_json(path), **values}, indent=1))
