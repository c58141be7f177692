"""The token cache: an encoded corpus on disk, keyed by the hash of everything it was built from.

    <cache_dir>/<name>-<key, 12 hex digits>/
        meta.json                           counts, notes, key, and the size of every other file
        vocabulary.model
        <split>.<source|target>.pieces      all pieces, concatenated, EOS after each sentence, uint16 or uint32
        <split>.<source|target>.offsets     int64, N + 1: sentence i is pieces[offsets[i] : offsets[i + 1]]
        <split>.<source|target>.txt         the sentences, one per line; all splits except train
        <split>.names                       of documents, as lines of JSON; all splits except train

A cache is built in a hidden folder next to its final one, and renamed when it is complete; an interrupted build leaves
nothing, and starts again. A damaged cache is rebuilt, with a warning. Building: corpus -> vocabulary -> token files, in
constant memory, by one process, in which sentencepiece has threads.
"""

import glob
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpr.config.train import DataConfig
from rpr.data.corpora import SIDES, Corpus, Job, Progress, TextCorpus, load_corpus, load_documents
from rpr.data.files import cache_root, corpus_files, fingerprint
from rpr.data.vocabulary import BOS, ByteVocabulary, TextVocabulary, Vocabulary, Words
from rpr.errors import DataError
from rpr.io.atomic import exclusive, replacing

META_NAME, MODEL_NAME = "meta.json", "vocabulary.model"
CACHE_VERSION = 1  # increase it when the same corpus and settings produce different files
LARGE_VOCABULARY, TOKENS_FOR_A_PIECE = 1_000, 20  # of more pieces with fewer tokens of train for each, a note says so
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meta:
    """The contents of meta.json. Counts are pairs or documents; `dropped` the empty, too long, or held-out ones."""

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


class TokenSplit:
    """The encoded pairs of one split, or documents as targets without sources, in files mapped into memory."""

    def __init__(self, directory: Path, name: str, count: int, piece_type: str) -> None:
        self.directory, self.name, self._count, self._piece_type = directory, name, count, piece_type
        self._maps: dict[str, NDArray[Any]] = {}
        self.sides = SIDES if (directory / f"{name}.source.offsets").exists() else SIDES[1:]

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenSplit, (self.directory, self.name, self._count, self._piece_type)

    def __len__(self) -> int:
        return self._count

    def row(self, side: str, index: int) -> NDArray[Any]:
        """Token IDs of one source or target, EOS included; uint16 or uint32."""
        return self.rows(side, [index])[0]

    def first(self, side: str, most: int | None = None) -> list[list[int]]:
        """The token IDs of the first sources or targets, EOS included; None: of all."""
        return [self.row(side, index).tolist() for index in range(len(self))[:most]]

    def before(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """(B,) what stands before each target: BOS."""
        return np.full(len(indices), BOS, np.int64)

    def offsets(self, side: str) -> NDArray[np.int64]:
        """(N + 1,) source or target i has the tokens offsets[i] : offsets[i + 1]."""
        return self._mapped(f"{side}.offsets", np.int64)

    @cached_property
    def source_lengths(self) -> NDArray[np.int32 | np.int64]:
        """(N,) tokens per source, EOS included; documents have none."""
        return self._lengths("source") if "source" in self.sides else np.zeros(self._count, np.int32)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32 | np.int64]:
        """(N,) tokens per target, EOS included."""
        return self._lengths("target")

    def pieces(self, side: str) -> NDArray[Any]:
        """All token IDs of a side one after the other, not in memory until they are read."""
        return self._mapped(f"{side}.pieces", self._piece_type)

    def rows(self, side: str, indices: Sequence[int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The token IDs of the selected sources or targets, concatenated, and the length of each."""
        pieces, offsets = self.pieces(side), self.offsets(side)
        rows = [pieces[offsets[index] : offsets[index + 1]] for index in indices]
        return np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows))

    def hashes(self) -> Iterator[int]:
        """Of the tokens of each pair or document; other ones in another process."""
        return map(hash, zip(*map(self._contents, self.sides), strict=True))

    def _contents(self, side: str) -> Iterator[bytes]:
        pieces = self.pieces(side)
        return (pieces[start:end].tobytes() for start, end in itertools.pairwise(self.offsets(side)))

    def _lengths(self, side: str) -> NDArray[np.int32 | np.int64]:
        lengths = np.diff(self.offsets(side))
        return lengths.astype(np.int32) if lengths.max(initial=0) < 1 << 31 else lengths

    def _mapped(self, name: str, dtype: Any) -> NDArray[Any]:
        if name not in self._maps:
            self._maps[name] = np.asarray(np.memmap(self.directory / f"{self.name}.{name}", dtype, "r"))
        return self._maps[name]


@dataclass
class PreparedData:
    """A complete token cache; `built_now` by this process."""

    directory: Path
    meta: Meta
    vocabulary: Vocabulary
    built_now: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """train, validation, test, and any others the corpus has (long, for a generated one)."""
        return tuple(self.meta.counts)

    def split(self, name: str) -> TokenSplit:
        """The encoded pairs of a split. Raises DataError if the corpus has no split of that name."""
        if name not in self.meta.counts:
            raise DataError(f"data {self.meta.name}: no split {name!r} (available: {', '.join(self.splits)})")
        return TokenSplit(self.directory, name, self.meta.counts[name], self.meta.piece_type)

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """Normalised (sources, references) of a split, in the order of its pairs; those of train are not kept."""
        self.split(name)  # raises
        files = (self.directory / f"{name}.{side}.txt" for side in SIDES)
        sources, references = (file.read_text("utf-8").split("\n")[:-1] for file in files)
        return sources, references

    def set_name(self, split: str) -> str:
        """What records and tables call a split, such as `test_2016_flickr`."""
        return self.meta.split_names.get(split, f"{self.meta.name} {split}")


def prepare(data: DataConfig, progress: Progress = lambda done, total, what: None) -> PreparedData:
    """Open the token cache of this corpus and these settings, building it first if necessary.

    progress(done, total, what) is called regularly, in pairs, or in megabytes of documents. Raises DataError for a bad
    corpus, vocabulary size or cache folder, and a corpus that changes while it is read.
    """
    root, key = cache_root(data), cache_key(data)
    directory = root / f"{re.sub(r'[^A-Za-z0-9._-]', '_', data.name)}-{key[:12]}"
    try:
        if (prepared := _open(directory, key)) is None:
            with exclusive(root, glob.escape(directory.name), name=f".{directory.name}.lock"):
                if (prepared := _open(directory, key, warn=True)) is None:
                    with replacing(directory) as folder:
                        folder.mkdir()
                        try:
                            _build(data, key, folder, progress)
                        finally:  # whatever happens with files that change meanwhile, they are the reason
                            if cache_key(data) != key:
                                changed = f"data.path: {data.path} changed while it was read"
                                raise DataError(f"{changed}; run the same command again") from None
                    prepared = _open(directory, key, warn=True)
                    assert prepared is not None, "a cache that was just built is complete"
                    prepared.built_now = True
    except OSError as error:
        raise DataError(f"data.cache_dir: {root} cannot be used ({error.strerror}); choose another") from None
    # What is beside the files is not part of the key.
    if not (data.generated or data.on_hub) and (beside := corpus_files(data).not_read):
        prepared.meta = replace(prepared.meta, notes=[*prepared.meta.notes, beside])
    return prepared


def cache_key(data: DataConfig) -> str:
    """sha256 of everything that determines the files: corpus content, settings, CACHE_VERSION."""
    parts: list[Any] = [CACHE_VERSION, fingerprint(data), data.vocabulary_size, data.max_length, data.train_limit]
    parts += [[data.source_language, data.target_language], [data.name, data.validation_name, data.test_name]]
    parts += [] if data.tokenizer == "bpe" else [data.tokenizer]
    if data.text is not None:
        parts += [data.text.column, data.text.rows]
        parts += ["whole lines"] if data.tokenizer == "bpe" else []  # are encoded since then
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _open(directory: Path, key: str, warn: bool = False) -> PreparedData | None:
    """The cache, or None if it is absent or damaged (with `warn`, a warning is logged)."""
    if not directory.is_dir():
        return None
    try:
        meta = Meta(**json.loads((directory / META_NAME).read_text("utf-8")))
        vocabulary = Vocabulary.load(directory / MODEL_NAME)
        sizes = {name: (directory / name).stat().st_size for name in meta.file_sizes}
        if (meta.key, meta.file_sizes, meta.vocabulary_digest) != (key, sizes, vocabulary.digest):
            raise DataError("its files are not those that were written")
        return PreparedData(directory, meta, vocabulary)
    except (OSError, ValueError, TypeError, AttributeError, DataError) as error:
        if warn:
            log.warning("token cache %s is damaged (%s); rebuilding it", directory, error)
        return None


# Building


def _build(data: DataConfig, key: str, directory: Path, progress: Progress) -> None:
    """Write every file into an empty folder. Raises DataError for a bad corpus."""
    # 1. The vocabulary, of the train split, and the pieces.
    corpus = load_corpus(data) if data.text is None else load_documents(data)
    job = Job(data, directory, progress, [*corpus.notes], {}, {})
    vocabulary = _learn(corpus, job)
    vocabulary.save(directory / MODEL_NAME)
    corpus.encode(job, vocabulary)
    # 2. What is in train too: by the names of documents, and by the files of a user's own splits, nothing keeps it out.
    splits = {split: TokenSplit(directory, split, count, vocabulary.piece_type) for split, count in job.counts.items()}
    hashes = {split: [*tokens.hashes()] for split, tokens in splits.items() if split != "train"}
    repeated = set(itertools.chain(*hashes.values())).intersection(splits["train"].hashes())
    for split, of_split in hashes.items():
        if number := sum(each in repeated for each in of_split):
            job.notes.append(f"{split}: {number} of {len(of_split)} are in train too, token for token")
    # 3. A vocabulary of which most pieces are seen too seldom to be learned.
    tokens, size = sum(splits["train"].pieces(side).size for side in splits["train"].sides), len(vocabulary)
    if data.tokenizer == "bpe" and size >= LARGE_VOCABULARY and tokens < TOKENS_FOR_A_PIECE * size:
        job.notes.append(
            f"vocabulary: {size:,} pieces are many for {tokens:,} tokens of train, {tokens / size:.0f} for each; with "
            f"{TOKENS_FOR_A_PIECE} or more they are learned better: lower data.vocabulary_size"
        )
    # 4. Last, what says that the cache is complete.
    meta = Meta(
        key=key,
        **data.model_dump(include={"name", "source_language", "target_language"}),
        synthetic=data.generated,
        split_names=dict(corpus.split_names),
        notes=[*dict.fromkeys(job.notes)],
        counts=job.counts,
        dropped={split: reasons for split, reasons in job.dropped.items() if any(reasons.values())},
        piece_type=vocabulary.piece_type,
        vocabulary_digest=vocabulary.digest,
        file_sizes={file.name: file.stat().st_size for file in sorted(directory.iterdir())},
    )
    (directory / META_NAME).write_text(json.dumps(asdict(meta), indent=1, ensure_ascii=False), "utf-8")


def _learn(corpus: Corpus | TextCorpus, job: Job) -> Vocabulary:
    """The vocabulary of train; bytes need no learning."""
    data, words = job.data, Words()
    if data.tokenizer == "bytes":
        return ByteVocabulary()
    for _, counts in job.counting(corpus.words(), itemgetter(0), corpus.size(), "reading for the vocabulary"):
        words.add(counts)
    if data.text is not None:
        return TextVocabulary.learn_text(words.learned(), data.vocabulary_size)
    return Vocabulary.learn(words.learned(), data.vocabulary_size, data.tokenizer)
