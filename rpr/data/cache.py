"""The token cache: an encoded corpus on disk, keyed by the hash of everything it was built from.

    <cache_dir>/<name>-<key, 12 hex digits>/
        meta.json                           counts, notes, key, and the size of every other file
        vocabulary.model
        <split>.<source|target>.pieces      all pieces, concatenated, EOS after each sentence, uint16 or uint32
        <split>.<source|target>.offsets     int64, N + 1: sentence i is pieces[offsets[i] : offsets[i + 1]]
        <split>.<source|target>.txt         the sentences, one per line; all splits except train
        <split>.names                       of documents, as lines of JSON; all splits except train

A cache is built (rpr/data/build.py) in a hidden folder next to its final one, and renamed when it is complete; an
interrupted build leaves nothing, and starts again. A damaged cache is rebuilt, with a warning.
"""

import glob
import hashlib
import json
import logging
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

from rpr.config.data import DataConfig
from rpr.data.build import MODEL_NAME, SIDES, Meta, Progress, build
from rpr.data.corpus import corpus_files, fingerprint, not_read
from rpr.data.documents import load_documents
from rpr.data.files import cache_root
from rpr.data.pairs import load_corpus
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import Vocabulary
from rpr.errors import DataError
from rpr.io.atomic import remove_leftovers, replacing
from rpr.io.locks import lock

META_NAME = "meta.json"
CACHE_VERSION = 1  # increase it when the same corpus and settings produce different files
log = logging.getLogger(__name__)


class PreparedData:
    """A complete token cache; `built_now` by this process."""

    def __init__(self, directory: Path, meta: Meta, vocabulary: Vocabulary) -> None:
        self.directory, self.meta, self.vocabulary = directory, meta, vocabulary
        self.built_now = False

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
        """Normalised (sources, references) of a split, in the order of its pairs. Raises DataError for train, whose
        text is not kept.
        """
        self.split(name)
        if name == "train":
            raise DataError(
                f"data {self.meta.name}: the text of train is not kept in the token cache; "
                f"choose one of {', '.join(self.splits[1:])}"
            )
        files = (self.directory / f"{name}.{side}.txt" for side in SIDES)
        sources, references = (file.read_text("utf-8").split("\n")[:-1] for file in files)
        return sources, references

    def set_name(self, split: str) -> str:
        """What records and tables call a split, such as `test_2016_flickr`."""
        return self.meta.split_names.get(split, f"{self.meta.name} {split}")


def prepare(data: DataConfig, progress: Progress = lambda done, total, what: None) -> PreparedData:
    """Open the token cache of this corpus and these settings, building it first if necessary.

    progress(done, total, what) is called regularly, in pairs, or in megabytes of documents. If two processes need the
    same cache, one builds it and the other waits. Raises DataError for a bad corpus, vocabulary size or cache folder,
    and a corpus that changes while it is read.
    """
    root, key = cache_root(data), cache_key(data)
    directory, built_now = root / f"{re.sub(r'[^A-Za-z0-9._-]', '_', data.name)}-{key[:12]}", False
    try:
        if (prepared := _open(directory, key)) is None:
            root.mkdir(parents=True, exist_ok=True)
            # The lock file is never deleted: that would let two processes build at once.
            with (root / f".{directory.name}.lock").open("w") as file:
                if lock(file.fileno(), f"another process is building {directory.name}"):
                    remove_leftovers(root, glob.escape(directory.name))
                else:
                    log.warning("%s has no file locks: run only one process that prepares a corpus there", root)
                if (prepared := _open(directory, key, warn=True)) is None:
                    built_now = True
                    with replacing(directory) as folder:
                        _build(data, key, folder, progress)
    except OSError as error:
        raise DataError(
            f"data.cache_dir: {root} cannot be used ({error.strerror or error}); "
            "free some space or choose another folder"
        ) from None
    prepared = prepared or _open(directory, key, warn=True)
    assert prepared is not None, "a cache that was just built is complete"
    prepared.built_now = built_now
    # What is beside the files is not part of the key.
    if not (data.generated or data.on_hub) and (beside := not_read(corpus_files(data))):
        prepared.meta = replace(prepared.meta, notes=[*prepared.meta.notes, beside])
    return prepared


def _build(data: DataConfig, key: str, folder: Path, progress: Progress) -> None:
    """Write a cache into a new folder. Whatever happens with files that change meanwhile, they are the reason."""
    folder.mkdir()
    try:
        corpus = load_corpus(data) if data.text is None else load_documents(data)
        meta = build(corpus, data, key, folder, progress)
        (folder / META_NAME).write_text(json.dumps(asdict(meta), indent=1, ensure_ascii=False), "utf-8")
    finally:
        if cache_key(data) != key:
            raise DataError(f"data.path: {data.path} changed while it was read; run the same command again") from None


def cache_key(data: DataConfig) -> str:
    """sha256 of everything that determines the files: corpus content, settings, CACHE_VERSION."""
    parts = [
        CACHE_VERSION,
        fingerprint(data),
        data.vocabulary_size,
        data.max_length,
        data.train_limit,
        [data.source_language, data.target_language],
        [data.name, data.validation_name, data.test_name],
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
        content = json.loads((directory / META_NAME).read_text("utf-8"))
        if set(content) != {field.name for field in fields(Meta)} or content["key"] != key:
            raise DataError(f"{META_NAME} belongs to another version or corpus")
        meta = Meta(**content)
        for name, size in meta.file_sizes.items():
            if (actual := (directory / name).stat().st_size) != size:
                raise DataError(f"{name} has {actual} bytes, not {size}")
        vocabulary = Vocabulary.load(directory / MODEL_NAME)
        if vocabulary.digest != meta.vocabulary_digest:
            raise DataError(f"{MODEL_NAME} is not the one the corpus was encoded with")
        return PreparedData(directory, meta, vocabulary)
    except (OSError, ValueError, TypeError, AttributeError, DataError) as error:
        if warn:
            log.warning("token cache %s is damaged (%s); rebuilding it", directory, error)
        return None
