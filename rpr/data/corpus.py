"""The files of a corpus, at data.path, of the Hugging Face hub or of Python's standard library; which of its splits are
missing; and a digest of its content.
"""

import hashlib
import sysconfig
from pathlib import Path

from rpr.config.data import DataConfig
from rpr.data.files import SPLIT_NAMES, TABLES, TEXT, Listing, cache_root, list_documents, list_pairs, split_word
from rpr.data.generated import synthetic
from rpr.data.hub import hub_files, hub_revision
from rpr.errors import DataError
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path

HELD_OUT = ("test", "validation")
NOT_OF_THE_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def corpus_files(data: DataConfig) -> Listing:
    """The files at data.path, of the hub, or of Python's standard library. Raises DataError if there are none that can
    be used, as `list_pairs` and `list_documents`.
    """
    if data.on_hub:
        files = hub_files(data)
        standard = {split: files[split] for split in SPLIT_NAMES if split in files}
        return Listing(cache_root(data), files if data.text is None else standard)
    if data.text is not None and data.text.python_library:
        root = Path(sysconfig.get_paths()["stdlib"])
        inside = (file.relative_to(root) for file in root.rglob("*.py"))
        names = sorted(name for name in inside if not NOT_OF_THE_LIBRARY & set(name.parts))
        return Listing(root, {"train": tuple(root / name for name in names)} if names else {})
    assert data.path is not None
    path, languages = user_path(data.path).absolute(), (data.source_language, data.target_language)
    looked_for = f"train.{languages[0]} and train.{languages[1]} (or .gz)"
    if data.text is None:
        listing = list_pairs(path, languages)
    elif not path.exists():
        raise DataError(f"data.path: {path} does not exist; give a folder or a file of documents")
    elif cache_root(data).is_relative_to(path):
        raise DataError(f"data.path: data.cache_dir is in {path}, of which all is read; keep it outside")
    else:
        listing, looked_for = list_documents(path), f"*{TEXT} (or .gz)"
    if not listing.splits:
        raise DataError(
            f"data.path: no usable files in {path}; looked for {looked_for}, train*{', train*'.join(TABLES)}, "
            f"also in {path / 'data'}; {not_read(listing)}".removesuffix("; ")
        )
    return listing


def not_read(listing: Listing) -> str:
    names = ", ".join(escape_control_characters(file.name) for file in listing.left_over[:5])
    return f"not read: {names}{' ...' * (len(listing.left_over) > 5)}" if names else ""


def missing_splits(data: DataConfig, listing: Listing) -> tuple[str, ...]:
    """Those of test and validation that have to be held out of train; test sets of other names are enough instead of
    test. Raises DataError if there is no train, or a file that is not read speaks of a missing split.
    """
    splits = sorted(listing.splits)
    if "train" not in splits:
        prefix = f"; for one pair of files as train give data.path={listing.root / splits[0]}" if listing.lines else ""
        raise DataError(
            f"data {data.name}: {data.path or data.hub} has no train split (available: {', '.join(splits)}){prefix}"
        )
    own_test = any(word in split for split in set(splits) - set(SPLIT_NAMES) for word in ("test", "tst"))
    missing = tuple(split for split in HELD_OUT if split not in splits and not (split == "test" and own_test))
    for file in listing.left_over:
        speaks_of = set(map(split_word, file.relative_to(listing.root).parts))
        if split := next((split for split in missing if split in speaks_of), None):
            raise DataError(
                f"data.path: {file} is not read, and {split} would be held out of train instead; store it as {split} "
                "in the format of the other files (or .gz), or move it away"
            )
    return missing


def splits_of_files(data: DataConfig) -> list[str]:
    """The splits of a corpus of files, by their names. Raises DataError as `corpus_files`, `missing_splits`."""
    listing = corpus_files(data)
    return [*listing.splits, *missing_splits(data, listing)]


def fingerprint(data: DataConfig) -> str:
    """sha256 that changes with the content of the corpus, computed without reading it where possible.

    Generated: the parameters and the generator's version. Local: the content of the files that are read. Hub: the
    commit, pinned in cache_dir/hub_revisions.json at first use; delete its line there to update.
    """
    # Parts in words tell caches apart from those of earlier versions, which read such corpora in another way.
    if data.task is not None:
        parts = [data.task.model_dump_json(), data.task.VERSION]
    elif data.synthetic is not None:
        parts = [data.synthetic.model_dump_json(), synthetic.VERSION]
    elif data.on_hub:
        parts = [str(data.hub), str(data.hub_config), hub_revision(data)]
        parts += ["rows counted over the files of a split"] if data.text is not None else []
    else:
        listing = corpus_files(data)
        missing = missing_splits(data, listing)  # raises, also where there is a cache from before such a file
        parts = listing.fingerprint(cache_root(data) / "digests.json")
        parts.append("" if listing.lines else str(data.hub_config))
        if own := sorted(set(listing.splits) - set(SPLIT_NAMES)):
            parts += ["own splits", *own]
        if data.text is None and missing:
            parts.append("held-out pairs up to max_length")
        if data.text is not None and data.hub is not None and missing:
            parts.append("held-out by name")
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()
