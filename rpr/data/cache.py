"""The token cache: an encoded corpus on disk, keyed by the hash of everything it was built from.

    <cache_dir>/<name>-<key, 12 hex digits>/
        meta.json                           counts, notes, key, and the size of every other file
        vocabulary.model
        <split>.<source|target>.pieces      all pieces, concatenated, EOS after each sentence, uint16 or uint32
        <split>.<source|target>.offsets     int64, N + 1: sentence i is pieces[offsets[i] : offsets[i + 1]]
        <split>.<source|target>.txt         the sentences, one per line; all splits except train
        <split>.names                       of documents, as lines of JSON; all splits except train

A cache is built (rpr/data/build.py) in .<name>-<key>.partial next to its final folder, and renamed when it is complete.
A killed build is resumed by the next one with the same key; otherwise its folder stays and may be deleted. A damaged
cache is rebuilt, with a warning.
"""

import glob
import hashlib
import json
import logging
import re
import shutil
from pathlib import Path

from rpr.config.data import DataConfig
from rpr.data.build import META_NAME, Meta, Progress, build, read_cache
from rpr.data.corpus import fingerprint, load_corpus
from rpr.data.documents import load_documents
from rpr.data.encode import SIDES
from rpr.data.pairs import cache_root
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import Vocabulary
from rpr.data.workers import Workers
from rpr.errors import DataError
from rpr.io.atomic import put_in_place, remove_folder, remove_leftovers
from rpr.io.locks import lock

CACHE_VERSION = 1  # increase it when the same corpus and settings produce different files
log = logging.getLogger(__name__)


class PreparedData:
    """A complete token cache."""

    def __init__(self, directory: Path, meta: Meta, vocabulary: Vocabulary) -> None:
        self.directory, self.meta, self.vocabulary = directory, meta, vocabulary
        self.built_by: Workers | None = None  # set if this process built the cache

    @property
    def splits(self) -> tuple[str, ...]:
        """train, validation, test, and any others the corpus has (long, for a generated one)."""
        return tuple(self.meta.counts)

    def split(self, name: str) -> TokenSplit:
        """The encoded pairs of a split. Raises DataError if the corpus has no split of that name."""
        self._check(name)
        return TokenSplit(self.directory, name, self.meta.counts[name], self.meta.piece_type)

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """Normalised (sources, references) of a split, in the order of its pairs. Raises DataError for train, whose
        text is not kept.
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

    def set_name(self, split: str) -> str:
        """What records and tables call a split, such as `test_2016_flickr`."""
        return self.meta.split_names.get(split, f"{self.meta.name} {split}")

    def _check(self, name: str) -> None:
        if name not in self.meta.counts:
            raise DataError(f"data {self.meta.name}: no split {name!r} (available: {', '.join(self.splits)})")


def prepare(data: DataConfig, progress: Progress | None = None, processes: int | None = None) -> PreparedData:
    """Open the token cache of this corpus and these settings, building it first if necessary.

    A large corpus is built by `processes` worker processes, by default one per core; progress(done, total, what) is
    called regularly, in pairs, or in megabytes of documents. If two processes need the same cache, one builds it and
    the other waits. Raises DataError for a bad corpus, vocabulary size or cache folder; RunError when a worker process
    dies.
    """
    root = cache_root(data)
    key = cache_key(data)
    directory = root / f"{re.sub(r'[^A-Za-z0-9._-]', '_', data.name)}-{key[:12]}"
    partial = root / f".{directory.name}.partial"
    try:
        if (prepared := _open(directory, key)) is not None:
            return prepared
        root.mkdir(parents=True, exist_ok=True)
        # The lock file is never deleted: that would let two processes build at once.
        with (root / f".{directory.name}.lock").open("w") as file:
            if not lock(file.fileno(), f"another process is building {directory.name}"):
                log.warning("%s does not support file locks: run only one process that prepares a corpus there", root)
            remove_leftovers(root, glob.escape(directory.name))
            if (prepared := _open(directory, key, warn=True)) is not None:
                return prepared
            workers = _build(data, key, partial, progress or (lambda done, total, what: None), processes)
            remove_folder(directory)  # before the rename: opening the new cache does not remove leftovers
            put_in_place(partial, directory)
    except OSError as error:
        kept = "; the partial build is kept: rerun the same command to resume it"
        raise DataError(
            f"data.cache_dir: {root} cannot be used ({error.strerror or error}); "
            f"free some space or choose another folder{kept if (partial / META_NAME).exists() else ''}"
        ) from None
    prepared = _open(directory, key, warn=True)
    assert prepared is not None, "a cache that was just built is complete"
    prepared.built_by = workers
    return prepared


def _build(data: DataConfig, key: str, partial: Path, progress: Progress, processes: int | None) -> Workers:
    """Build in `partial`, which is removed after a corpus error, or an interruption before anything is finished."""
    # Outside of `try`: an unreachable hub does not cost what an earlier build finished.
    corpus = load_corpus(data) if data.text is None else load_documents(data)
    partial.mkdir(exist_ok=True)
    try:
        workers = build(corpus, data, key, partial, progress, processes)
        if cache_key(data) != key:
            raise DataError(f"data.path: {data.path} changed while it was read; run the same command again")
    except BaseException as error:
        if isinstance(error, DataError) or not (partial / META_NAME).exists():
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return workers


def cache_key(data: DataConfig) -> str:
    """sha256 of everything that determines the files: corpus content, settings, CACHE_VERSION."""
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
        *([] if data.text is None else [data.text.column, data.text.rows]),
        *(["whole lines"] if data.text is not None and data.tokenizer == "bpe" else []),  # are encoded since then
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _open(directory: Path, key: str, warn: bool = False) -> PreparedData | None:
    """The cache, or None if it is absent or damaged (with `warn`, a warning is logged)."""
    if not directory.is_dir():
        return None
    try:
        return PreparedData(directory, *read_cache(directory, key))
    except (OSError, ValueError, TypeError, AttributeError, DataError) as error:
        if warn:
            log.warning("token cache %s is damaged (%s); rebuilding it", directory, error)
        return None
