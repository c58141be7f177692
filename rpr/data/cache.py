"""The token cache: a corpus as pieces on disk, memory-mapped, found again by the hash of everything it was made from.

    <cache_dir>/<name>-<key, 12 hex digits>/
        meta.json                           counts, notes, key, and the size of every other file
        vocabulary.model
        <split>.<source|target>.pieces      all pieces in a row, EOS behind each sentence, uint16 or uint32
        <split>.<source|target>.offsets     int64, N + 1: sentence i is pieces[offsets[i] : offsets[i + 1]]
        <split>.<source|target>.txt         the sentences themselves, one a line; all splits but train

A cache is built (rpr/data/build.py) beside its place, in .<name>-<key>.partial, and renamed when it is complete. What a
killed build leaves there is finished by the next one of the same key; with other settings it stays, and may be deleted.
A damaged cache is built again, with a warning.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rpr.config.train import DataConfig
from rpr.data.build import MODEL, STATE, Built, Progress, build
from rpr.data.corpus import fingerprint
from rpr.data.encode import SIDES
from rpr.data.pairs import cache_root
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import Vocabulary
from rpr.errors import DataError
from rpr.io.atomic import put_in_place, remove_folder, remove_leftovers, replace_file
from rpr.io.locks import lock

CACHE_VERSION = 1  # raise it when the same corpus and settings give other files
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meta:
    """What meta.json says. Counts are pairs; `dropped` counts, for each split that lost any, those with an empty
    and with a too long side, and of train, if there are any, those that equal a held-out pair.
    """

    key: str
    name: str
    source_language: str
    target_language: str
    synthetic: bool
    split_names: dict[str, str]
    notes: list[str]
    counts: dict[str, int]
    dropped: dict[str, dict[str, int]]
    piece_type: str
    vocabulary_digest: str
    file_sizes: dict[str, int]


class PreparedData:
    """A complete token cache."""

    def __init__(self, directory: Path, meta: Meta, vocabulary: Vocabulary) -> None:
        self.directory, self.meta, self.vocabulary = directory, meta, vocabulary
        self.built: Built | None = None  # how, where this process built it

    @property
    def splits(self) -> tuple[str, ...]:
        """train, validation, test, and what else the corpus has (long, for the generated one)."""
        return tuple(self.meta.counts)

    def split(self, name: str) -> TokenSplit:
        """Pieces of a split. Raises DataError when the corpus has none of that name."""
        self._check(name)
        return TokenSplit(self.directory, name, self.meta.counts[name], self.meta.piece_type)

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """Normalised (sources, references) of a split, in the order of its pieces. Raises DataError for train,
        whose text is not kept.
        """
        self._check(name)
        if name == "train":
            raise DataError(
                f"data {self.meta.name}: the text of train is not kept in the token cache; "
                f"choose one of {', '.join(self.splits[1:])}"
            )
        sources, references = (
            (self.directory / f"{name}.{side}.txt").read_text("utf-8").split("\n")[:-1] for side in SIDES
        )
        return sources, references

    def _check(self, name: str) -> None:
        if name not in self.meta.counts:
            raise DataError(f"data {self.meta.name}: no split {name!r} (available: {', '.join(self.splits)})")


def prepare(data: DataConfig, progress: Progress | None = None, processes: int | None = None) -> PreparedData:
    """Open the token cache of this corpus and these settings, or build it first; progress(done, total, what) is called
    now and then, in pairs. A large corpus is built by `processes` beside this one, by default one for each core.

    Of two processes that need the same cache, one builds and one waits. Raises DataError for whatever is wrong with the
    corpus, the vocabulary's size or the cache folder; RunError when one of the processes dies.
    """
    root = cache_root(data)
    key = cache_key(data)
    directory = root / f"{re.sub(r'[^A-Za-z0-9._-]', '_', data.name)}-{key[:12]}"
    partial = root / f".{directory.name}.partial"
    built: Built | None = None
    try:
        if (prepared := _open(directory, key)) is not None:
            return prepared
        root.mkdir(parents=True, exist_ok=True)
        with _only_one_builds(root / f".{directory.name}.lock"):
            remove_leftovers(root, glob.escape(directory.name))
            if (prepared := _open(directory, key, warn=True)) is not None:
                return prepared
            if _open(partial, key) is None:  # else an earlier build was stopped just before the end
                partial.mkdir(exist_ok=True)
                built = _built(data, key, partial, progress or (lambda done, total, what: None), processes)
            (partial / STATE).unlink(missing_ok=True)
            remove_folder(directory)  # before the new one is there: whoever opens that looks for no leftovers
            put_in_place(partial, directory)
    except OSError as error:
        kept = "; what was built is kept, and the same command goes on there" if (partial / STATE).exists() else ""
        raise DataError(
            f"data.cache_dir: {root} cannot be used ({error.strerror or error}); "
            f"free some space or choose another folder{kept}"
        ) from None
    prepared = _open(directory, key, warn=True)
    assert prepared is not None, "a cache that was just built is complete"
    prepared.built = built
    return prepared


def _built(data: DataConfig, key: str, partial: Path, progress: Progress, processes: int | None) -> Built:
    """Build in `partial`. What a fault of the corpus leaves there is of no use, as is what was done in no time."""
    try:
        built = build(data, partial, progress, processes)
        meta = json.dumps(asdict(_meta(data, key, partial, built)), indent=1, ensure_ascii=False)
        replace_file(partial / "meta.json", meta)
    except DataError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except BaseException:
        if not (partial / STATE).exists():
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return built


def cache_key(data: DataConfig) -> str:
    """sha256 of all that decides the files: content of the corpus, settings, version of this code."""
    languages = [data.source_language, data.target_language]
    names = [data.name, data.validation_name, data.test_name]
    parts = [
        CACHE_VERSION,
        fingerprint(data),
        data.vocabulary_size,
        data.max_length,
        data.train_limit,
        languages,
        names,
        *([] if data.tokenizer == "bpe" else [data.tokenizer]),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _open(directory: Path, key: str, warn: bool = False) -> PreparedData | None:
    """The cache, or None when it is absent or damaged (with a warning if asked)."""
    if not directory.is_dir():
        return None
    try:
        content = json.loads((directory / "meta.json").read_text("utf-8"))
        if set(content) != {field.name for field in fields(Meta)} or content["key"] != key:
            raise DataError("meta.json is of another version or corpus")
        meta = Meta(**content)
        for name, size in meta.file_sizes.items():
            if (actual := (directory / name).stat().st_size) != size:
                raise DataError(f"{name} has {actual} bytes, not {size}")
        vocabulary = Vocabulary.load(directory / MODEL)
        if vocabulary.digest != meta.vocabulary_digest:
            raise DataError("vocabulary.model is not the one the pieces were made with")
    except (OSError, ValueError, TypeError, AttributeError, DataError) as error:
        if warn:
            log.warning("token cache %s is damaged (%s); building it again", directory, error)
        return None
    return PreparedData(directory, meta, vocabulary)


@contextmanager
def _only_one_builds(path: Path) -> Iterator[None]:
    """Hold the lock file of a cache. It stays: other corpora are built beside it, and deleting it would let two in."""
    with path.open("w") as file:
        if not lock(file.fileno(), f"another process is building {path.name[1:-5]}"):
            log.warning("no file locks on %s: let only one process prepare a corpus there", path.parent)
        yield


def _dropped(built: Built) -> dict[str, dict[str, int]]:
    if not built.corpus.repeated:
        return built.dropped
    train = built.dropped.get("train", {"empty": 0, "too_long": 0}) | {"held_out": built.corpus.repeated}
    return {"train": train} | {split: lost for split, lost in built.dropped.items() if split != "train"}


def _meta(data: DataConfig, key: str, directory: Path, built: Built) -> Meta:
    sizes = {file.name: file.stat().st_size for file in sorted(directory.iterdir()) if not file.name.startswith(STATE)}
    return Meta(
        key=key,
        name=built.corpus.name,
        source_language=built.corpus.source_language,
        target_language=built.corpus.target_language,
        synthetic=built.corpus.synthetic,
        split_names=dict(built.corpus.split_names),
        notes=list(built.corpus.notes),
        counts=built.counts,
        dropped=_dropped(built),
        piece_type=built.piece_type,
        vocabulary_digest=built.vocabulary.digest,
        file_sizes=sizes,
    )
