"""The token cache: a corpus as pieces on disk, memory-mapped, found again by the hash of everything it was made from.

    <cache_dir>/<name>-<key, 12 hex digits>/
        meta.json                           counts, notes, key, and the size of every other file
        vocabulary.model
        <split>.<source|target>.pieces      all pieces in a row, EOS behind each sentence, uint16 or uint32
        <split>.<source|target>.offsets     int64, N + 1: sentence i is pieces[offsets[i] : offsets[i + 1]]
        <split>.<source|target>.txt         the sentences themselves, one a line; all splits but train

A cache is built beside its place and renamed when it is complete. A damaged one is built again, with a warning.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from rpr.config import DataConfig
from rpr.data.corpus import Corpus, fingerprint, load_corpus
from rpr.data.pairs import cache_root
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import Vocabulary, training_sentences
from rpr.errors import DataError

CACHE_VERSION = 1  # raise it when the same corpus and settings give other files
ENCODED_AT_ONCE = 20_000  # pairs held in memory while building
SIDES = ("source", "target")
Progress = Callable[[int, int, str], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meta:
    """What meta.json says. Counts are pairs; `dropped` counts, for each split that lost any, those with an empty
    and with a too long side.
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


def prepare(data: DataConfig, progress: Progress | None = None) -> PreparedData:
    """Open the token cache of this corpus and these settings, or build it first; progress(done, total, what) is called
    now and then, in pairs.

    Of two processes that need the same cache, one builds and one waits. Raises DataError for whatever is wrong with the
    corpus, the vocabulary's size or the cache folder.
    """
    root = cache_root(data)
    key = cache_key(data)
    directory = root / f"{re.sub(r'[^A-Za-z0-9._-]', '_', data.name)}-{key[:12]}"
    try:
        if (prepared := _open(directory, key)) is not None:
            return prepared
        root.mkdir(parents=True, exist_ok=True)
        with _only_one_builds(root / f".{directory.name}.lock"):
            if (prepared := _open(directory, key, warn=True)) is not None:
                return prepared
            for abandoned in root.glob(f".{directory.name}.*.tmp"):  # by builders that were killed: we hold their lock
                shutil.rmtree(abandoned, ignore_errors=True)
            partial = root / f".{directory.name}.{os.getpid()}.tmp"
            try:
                partial.mkdir()
                _build(data, key, partial, progress or (lambda done, total, what: None))
                if directory.exists():
                    damaged = partial.with_name(f".{directory.name}.damaged.{os.getpid()}.tmp")
                    directory.rename(damaged)
                    shutil.rmtree(damaged, ignore_errors=True)
                partial.rename(directory)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"data.cache_dir: {root} cannot be used ({error.strerror or error}); "
            "free some space or choose another folder"
        ) from None
    prepared = _open(directory, key, warn=True)
    assert prepared is not None, "a cache that was just built is complete"
    return prepared


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
        vocabulary = Vocabulary.load(directory / "vocabulary.model")
        if vocabulary.digest != meta.vocabulary_digest:
            raise DataError("vocabulary.model is not the one the pieces were made with")
    except (OSError, ValueError, TypeError, AttributeError, DataError) as error:
        if warn:
            log.warning("token cache %s is damaged (%s); building it again", directory, error)
        return None
    return PreparedData(directory, meta, vocabulary)


@contextmanager
def _only_one_builds(lock: Path) -> Iterator[None]:
    """Hold the lock file; the kernel lets go of it when the process ends, however it ends. The file stays: deleting
    it would let two in.
    """
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process is building %s; waiting for it", lock.name[1:-5])
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            log.warning("no file locks on %s: let only one process prepare a corpus there", lock.parent)
        yield


def _build(data: DataConfig, key: str, directory: Path, progress: Progress) -> None:
    """Write every file of the cache into `directory`."""
    corpus = load_corpus(data)
    num_train = len(corpus.splits["train"])
    sentences = training_sentences(
        _told(corpus.iter_pairs("train"), num_train, "reading for the vocabulary", progress), num_train
    )
    vocabulary = Vocabulary.train(
        (sentence for sentence in sentences if sentence), data.vocabulary_size, directory / "vocabulary.model"
    )
    piece_type = "uint16" if len(vocabulary) <= 1 << 16 else "uint32"
    counts: dict[str, int] = {}
    dropped: dict[str, dict[str, int]] = {}
    for split in ["train", *(split for split in corpus.splits if split != "train")]:
        counts[split], lost = _encode_split(corpus, split, vocabulary, data.max_length, directory, piece_type, progress)
        if any(lost.values()):
            dropped[split] = lost
        if not counts[split]:
            raise DataError(
                f"data {data.name}: no usable pair in {split} ({lost['empty']} with an empty side, "
                f"{lost['too_long']} above data.max_length = {data.max_length} pieces); "
                "check the corpus or raise data.max_length"
            )
    sizes = {file.name: file.stat().st_size for file in sorted(directory.iterdir())}
    meta = Meta(
        key=key,
        name=corpus.name,
        source_language=corpus.source_language,
        target_language=corpus.target_language,
        synthetic=corpus.synthetic,
        split_names=dict(corpus.split_names),
        notes=list(corpus.notes),
        counts=counts,
        dropped=dropped,
        piece_type=piece_type,
        vocabulary_digest=vocabulary.digest,
        file_sizes=sizes,
    )
    (directory / "meta.json").write_text(json.dumps(asdict(meta), indent=1, ensure_ascii=False), "utf-8")


def _told(pairs: Iterator[tuple[str, str]], total: int, what: str, progress: Progress) -> Iterator[tuple[str, str]]:
    for done, pair in enumerate(pairs):
        if done % ENCODED_AT_ONCE == 0:
            progress(done, total, what)
        yield pair
    progress(total, total, what)


def _encode_split(
    corpus: Corpus,
    split: str,
    vocabulary: Vocabulary,
    max_length: int,
    directory: Path,
    piece_type: str,
    progress: Progress,
) -> tuple[int, dict[str, int]]:
    """Write one split's files, some thousand pairs at a time. Returns the number of pairs kept, and of those
    dropped by reason.
    """
    lost = {"empty": 0, "too_long": 0}
    kept = 0
    ends = [0, 0]
    kinds = ("pieces", "offsets") if split == "train" else ("pieces", "offsets", "txt")
    with ExitStack() as stack:
        files = {
            (side, kind): stack.enter_context((directory / f"{split}.{side}.{kind}").open("wb"))
            for side in SIDES
            for kind in kinds
        }
        for side in SIDES:
            files[side, "offsets"].write(np.zeros(1, np.int64).tobytes())
        pairs = _told(corpus.iter_pairs(split), len(corpus.splits[split]), f"encoding {split}", progress)
        while chunk := list(itertools.islice(pairs, ENCODED_AT_ONCE)):
            whole = [pair for pair in chunk if pair[0] and pair[1]]
            lost["empty"] += len(chunk) - len(whole)
            encoded = [vocabulary.encode_batch([pair[side] for pair in whole], eos=True) for side in (0, 1)]
            if split == "train":
                fits = [
                    len(source) <= max_length and len(target) <= max_length
                    for source, target in zip(*encoded, strict=True)
                ]
                lost["too_long"] += len(fits) - sum(fits)
                encoded = [list(itertools.compress(sentences, fits)) for sentences in encoded]
            kept += len(encoded[0])
            for number, side in enumerate(SIDES):
                ends[number] = _write(
                    encoded[number], ends[number], piece_type, files[side, "pieces"], files[side, "offsets"]
                )
                if split != "train":
                    files[side, "txt"].writelines(f"{pair[number]}\n".encode() for pair in whole)
    return kept, lost


def _write(sentences: Sequence[Sequence[int]], end: int, piece_type: str, pieces_file: Any, offsets_file: Any) -> int:
    """Append sentences and their ends to one side's two files; returns the new end."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    total = int(lengths.sum())
    pieces_file.write(np.fromiter(itertools.chain.from_iterable(sentences), piece_type, total).tobytes())
    offsets_file.write((end + np.cumsum(lengths)).tobytes())
    return end + total
