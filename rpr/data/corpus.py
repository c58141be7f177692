"""Where sentence pairs come from: generated, a local folder or pair of line files, or the Hugging Face hub. Read as
they are needed, never held whole.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import re
import socket
import time
import unicodedata
import urllib.parse
import urllib.request
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rpr.config import DataConfig
from rpr.errors import DataError, did_you_mean

Pair = tuple[str, str]
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 20  # a missing split takes the last min(1000, a twentieth) of train
DATA_SUFFIXES = (".parquet", ".arrow", ".jsonl", ".json", ".csv")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def normalise(text: str) -> str:
    """One sentence as one line: NFC, no control characters or byte order mark, every run of white space (U+2028 and
    no-break too) one blank.
    """
    if not text.isprintable():
        text = _CONTROL.sub(" ", text.replace("\ufeff", ""))
    return unicodedata.normalize("NFC", " ".join(text.split()))


class Pairs(ABC):
    """A split: pairs of normalised sentences, read from where they lie. Iteration streams; an index may cost a scan
    of line files.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, start: int, stop: int) -> Iterator[Pair]:
        """The pairs start, ..., stop - 1."""

    def where(self, index: int) -> str:
        """How an error message names one pair."""
        return f"pair {index + 1}"

    def __iter__(self) -> Iterator[Pair]:
        return self.read(0, len(self))

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return next(self.read(index, index + 1))


class ListPairs(Pairs):
    """Pairs in memory: the generated corpus."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def read(self, start: int, stop: int) -> Iterator[Pair]:
        return ((normalise(source), normalise(target)) for source, target in itertools.islice(self._pairs, start, stop))


class Part(Pairs):
    """The pairs start, ..., stop - 1 of another split."""

    def __init__(self, whole: Pairs, start: int, stop: int) -> None:
        assert 0 <= start <= stop <= len(whole)
        self._whole, self._start, self._stop = whole, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def read(self, start: int, stop: int) -> Iterator[Pair]:
        return self._whole.read(self._start + start, min(self._start + stop, self._stop))

    def where(self, index: int) -> str:
        return self._whole.where(self._start + index)


class LinePairs(Pairs):
    """Line i of one file is the translation of line i of the other. Raises DataError when their numbers of lines
    differ.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._files = (source, target)
        num_source, num_target = _count_lines(source), _count_lines(target)
        if num_source != num_target:
            raise DataError(
                f"data.path: {source} has {num_source} lines and {target} has {num_target}; "
                "line i of one must translate line i of the other: mend or realign the files"
            )
        self._len = num_source

    def __len__(self) -> int:
        return self._len

    def where(self, index: int) -> str:
        return f"line {index + 1} of {self._files[0]} and {self._files[1].name}"

    def read(self, start: int, stop: int) -> Iterator[Pair]:
        return zip(*(_read_lines(file, start, stop) for file in self._files), strict=True)


class ArrowPairs(Pairs):
    """Rows of a memory-mapped datasets.Dataset, with one `translation` column of structs or with one column per
    language.
    """

    def __init__(self, dataset: Any, data: DataConfig, split: str) -> None:
        self._languages = (data.source_language, data.target_language)
        self._translation = "translation" in dataset.column_names
        available = dataset.column_names
        if self._translation:
            feature = dataset.features["translation"]  # a Translation, or a plain struct
            available = list(getattr(feature, "languages", feature))
        for key, language in zip(("source", "target"), self._languages, strict=True):
            if language not in available:
                column = "translation column" if self._translation else "columns"
                raise DataError(
                    f"data.{key}_language: no {language!r} in the {column} of {split} in {data.path or data.hub}"
                    f"{did_you_mean(language, available)}"
                )
        self._rows = dataset.with_format("arrow")

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, start: int, stop: int) -> Iterator[Pair]:
        for begin in range(start, stop, 10_000):
            table = self._rows[begin : min(begin + 10_000, stop)]
            if self._translation:
                column = table.column("translation").combine_chunks()
                sides = [column.field(language).to_pylist() for language in self._languages]
            else:
                sides = [table.column(language).to_pylist() for language in self._languages]
            for source, target in zip(*sides, strict=True):
                yield normalise(source or ""), normalise(target or "")


@dataclass(frozen=True)
class Corpus:
    """All splits of one corpus. `split_names` says what validation and test are (newstest2013); `notes` what a
    reader of scores must know.
    """

    name: str
    source_language: str
    target_language: str
    synthetic: bool
    splits: Mapping[str, Pairs]
    held_out: frozenset[str]
    split_names: Mapping[str, str]
    notes: tuple[str, ...]

    def iter_pairs(self, split: str, start: int = 0) -> Iterator[Pair]:
        """Normalised pairs from `start` on. A side may be empty in train and in what was held out of it; elsewhere
        that raises DataError.
        """
        pairs = self.splits[split]
        strict = split != "train" and split not in self.held_out
        for index, pair in enumerate(pairs.read(start, len(pairs)), start):
            if strict and not (pair[0] and pair[1]):
                side = "target" if pair[0] else "source"
                raise DataError(
                    f"data {self.name}: the {side} of {pairs.where(index)} of {split} is empty; "
                    "a split that is scored must be whole: mend or remove the pair"
                )
            yield pair


def cache_root(data: DataConfig) -> Path:
    """The folder for everything derived from corpora, absolute."""
    return Path(data.cache_dir).expanduser().absolute()


def load_corpus(data: DataConfig) -> Corpus:
    """Open the corpus: the generated one, else data.path, else data.hub. Missing validation and test are held out of
    train, as its last pairs.

    Raises DataError: nothing at data.path, files of unequal length, not UTF-8, a language or hub config that is not
    there, an empty split, a hub out of reach.
    """
    held_out: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    if data.synthetic is not None:
        splits = _generated(data)
    else:
        files = _line_files(data) if data.path is not None else {}
        found: dict[str, Pairs] = (
            {split: LinePairs(*sides) for split, sides in files.items()} if files else _dataset_splits(data)
        )
        for split, pairs in found.items():
            if not len(pairs):
                raise DataError(
                    f"data {data.name}: split {split} of {data.path or data.hub} is empty; it needs at least one pair"
                )
        splits, notes = _hold_out(data, found)
        held_out = frozenset(splits) - frozenset(found)
    if data.train_limit is not None and data.train_limit < len(splits["train"]):
        notes += (f"train: the first {data.train_limit} of {len(splits['train'])} pairs",)
        splits["train"] = Part(splits["train"], 0, data.train_limit)
    named = {split: split for split in splits if split != "train"}
    named |= {"validation": data.validation_name, "test": data.test_name} | {
        split: f"held-out-{split}" for split in held_out
    }
    return Corpus(
        data.name,
        data.source_language,
        data.target_language,
        data.synthetic is not None,
        splits,
        held_out,
        named,
        notes,
    )


def fingerprint(data: DataConfig) -> str:
    """sha256 that changes with the content of the corpus, found without reading it where possible.

    Generated: the parameters and the generator's source files. Local: the files' content (digests are remembered by
    path, size and time of change in cache_dir). Hub: the commit, which is pinned in cache_dir/hub_revisions.json at
    first use; delete its line there to take a newer one.
    """
    parts: list[str]
    if data.synthetic is not None:
        generator = sorted(Path(__file__).parent.glob("synthetic*.py"))
        parts = [
            data.synthetic.model_dump_json(),
            *(hashlib.sha256(file.read_bytes()).hexdigest() for file in generator),
        ]
    elif data.path is not None:
        if lines := _line_files(data):
            files = [
                (f"{split} {side}", file) for split, sides in sorted(lines.items()) for side, file in enumerate(sides)
            ]
        else:
            root, names = _dataset_files(data)
            files = [(str(name), root / name) for name in names]
        digests = _file_digests([file for _, file in files], cache_root(data) / "digests.json")
        parts = [f"{label} {digest}" for (label, _), digest in zip(files, digests, strict=True)]
        parts.append("" if lines else str(data.hub_config))
    else:
        assert data.hub is not None
        parts = [data.hub, str(data.hub_config), _hub_revision(data)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _generated(data: DataConfig) -> dict[str, Pairs]:
    from rpr.data import synthetic

    assert data.synthetic is not None
    try:
        generated = synthetic.generate(**data.synthetic.model_dump())
    except ValueError as error:
        raise DataError(f"data.synthetic: {error}") from None
    return {split: ListPairs([(pair.source, pair.target) for pair in pairs]) for split, pairs in generated.items()}


def _hold_out(data: DataConfig, found: Mapping[str, Pairs]) -> tuple[dict[str, Pairs], tuple[str, ...]]:
    """Give a missing test, then a missing validation split, the last pairs of train."""
    if "train" not in found:
        raise DataError(
            f"data {data.name}: {data.path or data.hub} has no train split "
            f"(available: {', '.join(sorted(found))}); it needs one"
        )
    splits, notes = dict(found), []
    train = found["train"]
    number = min(HELD_OUT_PAIRS, max(1, len(train) // HELD_OUT_SHARE))
    end = len(train)
    for split in ("test", "validation"):
        if split not in found:
            splits[split] = Part(train, max(0, end - number), end)
            end -= number
            notes.append(f"{split}: pairs {end + 1} to {end + number} of train, held out of it")
    if end <= 0:
        raise DataError(
            f"data {data.name}: {len(train)} train pairs are too few to hold out "
            f"{' and '.join(sorted(set(splits) - set(found)))}; add pairs or files"
        )
    if end < len(train):
        splits["train"] = Part(train, 0, end)
    return splits, tuple(notes)


# Line files


def _local_path(data: DataConfig) -> Path:
    assert data.path is not None
    return Path(data.path).expanduser().absolute()


def _line_files(data: DataConfig) -> dict[str, tuple[Path, Path]]:
    """The (source, target) files of each split, or none where data.path is a folder without any; .gz files count.
    DataError where one side lacks.
    """
    path, languages = _local_path(data), (data.source_language, data.target_language)
    stems: list[tuple[str, Path]] = [("train", path)]
    if path.is_dir():
        stems = [(split, path / name) for split, names in SPLIT_NAMES.items() for name in names]
        more = {re.sub(r"\.gz$", "", file.name) for file in path.glob(f"test?*.{languages[0]}*")}
        stems += [
            (name.removesuffix(f".{languages[0]}"), path / name.removesuffix(f".{languages[0]}"))
            for name in sorted(more)
        ]
    found: dict[str, tuple[Path, Path]] = {}
    for split, stem in stems:
        sides = [
            next((file for end in ("", ".gz") if (file := Path(f"{stem}.{language}{end}")).is_file()), None)
            for language in languages
        ]
        if sides[0] and sides[1]:
            found.setdefault(split, (sides[0], sides[1]))
        elif sides[0] or sides[1]:
            lacking = languages[0] if sides[1] else languages[1]
            raise DataError(
                f"data.path: {sides[0] or sides[1]} is there but {stem}.{lacking} is not; a split needs both languages"
            )
    if not found and not path.is_dir():
        expected = f"a folder, or {path.name}.{languages[0]} and {path.name}.{languages[1]} in {path.parent}"
        if path.is_file():
            raise DataError(
                f"data.path: {path} is a file; "
                f"give its folder, or for line files the path without .{languages[0]} (looked for {expected})"
            )
        raise DataError(
            f"data.path: {path} does not exist (looked for {expected}); "
            "check data.path, source_language and target_language"
        )
    return found


@contextmanager
def _reading(file: Path, *, packed: bool = False) -> Iterator[IO[bytes]]:
    """The file open for bytes, unpacked if it ends in .gz unless `packed`; whatever goes wrong while it is read is
    a DataError.
    """
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" and not packed else file.open("rb") as handle:
            yield handle  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"data.path: {file} cannot be read ({' '.join(str(error).split())}); make it readable or fetch it again"
        ) from None


def _count_lines(file: Path) -> int:
    lines, last = 0, b"\n"
    with _reading(file) as handle:
        while chunk := handle.read(1 << 22):
            lines, last = lines + chunk.count(b"\n"), chunk[-1:]
    return lines + (last != b"\n")


def _read_lines(file: Path, start: int, stop: int) -> Iterator[str]:
    with _reading(file) as handle:
        for number, line in enumerate(itertools.islice(handle, start, stop), start + 1):
            try:
                yield normalise(line.decode())
            except UnicodeDecodeError as error:
                raise DataError(
                    f"data.path: line {number} of {file} is not UTF-8 "
                    f"(byte 0x{line[error.start]:02x} at {error.start}); "
                    "convert the file, for example with iconv"
                ) from None


def _file_digests(files: Sequence[Path], store: Path) -> list[str]:
    """sha256 of each file's content, from the store where path, size and time of change are those it was computed
    for.
    """
    known = _read_json(store)
    digests = []
    for file in files:
        status = file.stat()
        entry = known.get(str(file))
        if not isinstance(entry, list) or entry[:2] != [status.st_size, status.st_mtime_ns]:
            with _reading(file, packed=True) as handle:
                entry = [status.st_size, status.st_mtime_ns, hashlib.file_digest(handle, "sha256").hexdigest()]  # type: ignore[arg-type]
            if (
                time.time_ns() - status.st_mtime_ns > 2_000_000_000
            ):  # a younger file may change again within the clock's grain
                _update_json(store, str(file), entry)
        digests.append(str(entry[2]))
    return digests


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _update_json(path: Path, key: str, value: object) -> None:
    """Set one key of a small JSON file; a folder that cannot be written costs only the speed of a next start."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        partial.write_text(json.dumps(_read_json(path) | {key: value}, indent=1))
        os.replace(partial, path)
    except OSError:
        pass


# Folders and hubs that the datasets library reads


def _datasets() -> Any:
    """The library; imported only where it is needed, as it takes a second or two."""
    import datasets  # type: ignore[import-untyped, unused-ignore]

    return datasets


def _dataset_files(data: DataConfig) -> tuple[Path, list[Path]]:
    """The folder and what in it makes the dataset, sorted, relative to it: data files (of data.hub_config, where it
    has its own folder) and README.
    """
    root = _local_path(data)
    within = root / data.hub_config if data.hub_config and (root / data.hub_config).is_dir() else root
    names = [file.relative_to(root) for file in within.rglob("*") if file.is_file() and file.suffix in DATA_SUFFIXES]
    names = sorted(name for name in names if not any(part.startswith(".") for part in name.parts))
    if not names:
        lines = " and ".join(f"train.{language}[.gz]" for language in (data.source_language, data.target_language))
        raise DataError(
            f"data.path: no usable files in {root}; "
            f"looked for {lines}, and for *{', *'.join(DATA_SUFFIXES)} with a translation column"
        )
    return root, [name for name in [Path("README.md")] if (root / name).is_file()] + names


def _dataset_splits(data: DataConfig) -> dict[str, Pairs]:
    splits = _datasets_call(data, _load)
    canonical = {name: split for split, names in SPLIT_NAMES.items() for name in names}
    canonical |= {name: name for name in splits if name.startswith("test")}
    return {canonical[name]: ArrowPairs(rows, data, name) for name, rows in splits.items() if name in canonical}


def _load(data: DataConfig, config: str | None) -> Any:
    datasets = _datasets()

    if data.path is not None:
        return datasets.load_dataset(str(_local_path(data)), config, cache_dir=str(cache_root(data) / "arrow"))
    assert data.hub is not None
    revision = _hub_revision(data)
    return datasets.load_dataset(
        data.hub, config, revision=revision if re.fullmatch(r"[0-9a-f]{40}", revision) else None
    )


def _hub_revision(data: DataConfig) -> str:
    """The commit of the hub's dataset that this cache_dir is pinned to."""
    store = cache_root(data) / "hub_revisions.json"
    revision = _read_json(store).get(str(data.hub))
    if not isinstance(revision, str):
        revision = str(_datasets_call(data, _builder).hash)
        _update_json(store, str(data.hub), revision)
    return revision


def _builder(data: DataConfig, config: str | None) -> Any:
    datasets = _datasets()

    assert data.hub is not None
    return datasets.load_dataset_builder(data.hub, config)


def _datasets_call(data: DataConfig, call: Callable[[DataConfig, str | None], Any]) -> Any:
    """Call with the config to load, all that may go wrong told as DataError in one line."""
    datasets = _datasets()

    source, config = (
        (str(_local_path(data)), _local_config(data)) if data.path is not None else (str(data.hub), data.hub_config)
    )
    otherwise = "give a local copy (a folder with parquet or line files) as data.path=..."
    bars = datasets.are_progress_bars_disabled()
    try:
        with _offline_where_out_of_reach(local=data.path is not None):
            if data.path is not None:
                datasets.disable_progress_bars()
            return call(data, config)
    except DataError:
        raise
    except ConnectionError:
        raise DataError(
            f"data.hub: {source} is not in the local cache and the hub is out of reach; {otherwise}"
        ) from None
    except datasets.exceptions.DatasetNotFoundError:
        raise DataError(
            f"data.hub: the hub has no dataset {source}, or it asks for a login; check the name, or {otherwise}"
        ) from None
    except Exception as error:
        root: BaseException = error
        while isinstance(root, datasets.exceptions.DatasetGenerationError) and (root.__cause__ or root.__context__):
            root = root.__cause__ or root.__context__ or root
        text = " ".join(str(root).split())
        if "BuilderConfig" in text or "onfig name is missing" in text:
            raise DataError(
                f"data.hub_config: {config!r} of {source}: {text[:300]}; set data.hub_config=... to one of them"
            ) from None
        raise DataError(f"data: {source} cannot be read as a dataset ({text[:300]}); mend it, or {otherwise}") from None
    finally:
        if not bars:
            datasets.enable_progress_bars()


def _local_config(data: DataConfig) -> str | None:
    """data.hub_config where the folder has it; else `default` where that is all it has, as a folder of parquet
    files without README does.
    """
    datasets = _datasets()

    names = datasets.get_dataset_config_names(str(_dataset_files(data)[0]))
    if data.hub_config in names:
        return data.hub_config
    if len(names) == 1 and (data.hub_config is None or names == ["default"]):
        return str(names[0])
    raise DataError(
        f"data.hub_config: no {data.hub_config!r} in {data.path}{did_you_mean(str(data.hub_config), names)}"
    )


@contextmanager
def _offline_where_out_of_reach(*, local: bool) -> Iterator[None]:
    """Spare the library's 23 seconds of retries where the hub's host does not answer, or is not needed; what was
    loaded before still opens.
    """
    datasets = _datasets()
    from huggingface_hub import constants

    saved = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if local or not _answers(constants.ENDPOINT):
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = saved


def _answers(address: str) -> bool:
    url = urllib.parse.urlsplit(address)
    if url.scheme in urllib.request.getproxies() or "all" in urllib.request.getproxies():
        return True  # only the proxy can tell
    try:
        socket.create_connection(
            (url.hostname or "", url.port or (80 if url.scheme == "http" else 443)), timeout=5
        ).close()
    except OSError:
        return False
    return True
