"""Sentence pairs read with the datasets library: the Hugging Face hub, or local parquet, JSON and CSV folders.

The functions import it themselves: that takes a second or two, for which not every command should wait.
"""

from __future__ import annotations

import pickle
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpr.config.train import DataConfig
from rpr.data.line_files import read_json, update_json
from rpr.data.pairs import SPLIT_NAMES, Chunk, Pairs, cache_root, local_path
from rpr.errors import DataError, did_you_mean

CHUNKS_PER_MAP = 20
DATA_SUFFIXES = (".parquet", ".arrow", ".jsonl", ".json", ".csv")
TEXT_TYPES = ("string", "large_string", "string_view")  # Arrow's type names
IN_WORDS = {"null": "only nulls", "extension<arrow.json>": "values of several types"}


class ArrowPairs(Pairs):
    """Rows of a memory-mapped datasets.Dataset, with one `translation` column of structs or one column per language.
    Raises DataError if a language has no column, or one that is not text.
    """

    def __init__(self, dataset: Any, data: DataConfig, split: str) -> None:
        self._languages = (data.source_language, data.target_language)
        self._translation = "translation" in dataset.column_names
        types = _arrow_types(dataset.features.arrow_schema)
        if self._translation:
            types = _arrow_types(types["translation"])
        columns = "translation column" if self._translation else "columns"
        place = f"in the {columns} of {split} in {data.path or data.hub}"
        for key, language in zip(("source", "target"), self._languages, strict=True):
            if language not in types:
                raise DataError(f"data.{key}_language: no {language!r} {place}{did_you_mean(language, types)}")
            if (held := str(types[language])) not in TEXT_TYPES:
                raise DataError(
                    f"data.{key}_language: {language!r} {place} holds {IN_WORDS.get(held, held)[:100]}, not text; "
                    "store its sentences as strings, or choose another column"
                )
        self._rows = dataset.with_format("arrow")

    def __len__(self) -> int:
        return len(self._rows)

    def chunks(self, start: int, stop: int, size: int) -> Iterator[Chunk]:
        for begin in range(start, stop, size):
            if (begin - start) % (size * CHUNKS_PER_MAP) == 0:
                # Reopening releases the mapped pages read so far, which count as memory of this process.
                rows = pickle.loads(pickle.dumps(self._rows))
            table = rows[begin : min(begin + size, stop)]
            if self._translation:
                column = table.column("translation").combine_chunks()
                sides = [column.field(language).to_pylist() for language in self._languages]
            else:
                sides = [table.column(language).to_pylist() for language in self._languages]
            yield Chunk(*sides)


def _arrow_types(fields: Any) -> dict[str, Any]:
    """Field types of a schema or struct by name; empty for a type without fields, such as text."""
    return {field.name: field.type for field in fields} if isinstance(fields, Iterable) else {}


def dataset_files(data: DataConfig) -> tuple[Path, list[Path]]:
    """The folder, and the sorted relative paths of its README and data files (only those of data.hub_config if that
    has its own subfolder).
    """
    root = local_path(data)
    within = root / data.hub_config if data.hub_config and (root / data.hub_config).is_dir() else root
    names = [file.relative_to(root) for file in within.rglob("*") if file.is_file() and file.suffix in DATA_SUFFIXES]
    names = sorted(name for name in names if not any(part.startswith(".") for part in name.parts))
    own = [cache_root(data)] if cache_root(data).is_relative_to(within.absolute()) else []
    own += [root / name for name in names if name.name == "record.json"]
    if own:
        raise DataError(
            f"data.path: {own[0]} is not of the corpus, but all files in {within} are read; "
            "keep data.cache_dir and runs_dir outside of it"
        )
    if not names:
        lines = " and ".join(f"train.{language}[.gz]" for language in (data.source_language, data.target_language))
        raise DataError(
            f"data.path: no usable files in {root}; "
            f"looked for {lines}, and for *{', *'.join(DATA_SUFFIXES)} with a translation column"
        )
    return root, [name for name in [Path("README.md")] if (root / name).is_file()] + names


def dataset_splits(data: DataConfig) -> dict[str, Pairs]:
    splits = _datasets_call(data, lambda config: _load(data, config))
    canonical = {name: split for split, names in SPLIT_NAMES.items() for name in names}
    canonical |= {name: name for name in splits if name.startswith("test")}
    return {canonical[name]: ArrowPairs(rows, data, name) for name, rows in splits.items() if name in canonical}


def _load(data: DataConfig, config: str | None) -> Any:
    """Load every split. Local CSV is read as plain text: `NA` and `null` stay words and `007` keeps its zeros, where
    the library's default would produce nulls and numbers.
    """
    import datasets

    if data.path is not None:
        source, cache = str(local_path(data)), str(cache_root(data) / "arrow")
        reading = _csv_as_text(datasets.load_dataset_builder(source, config, cache_dir=cache))
        return datasets.load_dataset(source, config, cache_dir=cache, **reading)
    assert data.hub is not None
    revision = hub_revision(data)
    return datasets.load_dataset(
        data.hub, config, revision=revision if re.fullmatch(r"[0-9a-f]{40}", revision) else None
    )


def _csv_as_text(builder: Any) -> dict[str, Any]:
    """Extra loading options that read every column as text, if this is the CSV builder; else none."""
    options = getattr(builder.config, "pd_read_csv_kwargs", None)
    if options is None:
        return {}
    import datasets
    import pandas  # type: ignore[import-untyped, unused-ignore]

    first = next(iter(builder.config.data_files.values()))[0]
    names = pandas.read_csv(first, **(options | {"nrows": 0, "chunksize": None})).columns
    # All columns, although two are needed: the reader requires types for all or none, and would infer different types
    # for a column with missing values in different parts of the file.
    text = datasets.Features({str(name): datasets.Value("string") for name in names})
    return {"features": text, "keep_default_na": False}


def hub_revision(data: DataConfig) -> str:
    """The commit of the hub dataset that this cache_dir is pinned to."""
    store = cache_root(data) / "hub_revisions.json"
    revision = read_json(store).get(str(data.hub))
    if not isinstance(revision, str):
        import datasets

        builder = _datasets_call(data, lambda config: datasets.load_dataset_builder(str(data.hub), config))
        revision = str(builder.hash)
        update_json(store, str(data.hub), revision)
    return revision


def _datasets_call(data: DataConfig, call: Callable[[str | None], Any]) -> Any:
    """Call with the config to load; every error becomes a one-line DataError."""
    import datasets

    source, config = str(local_path(data) if data.path is not None else data.hub), data.hub_config
    otherwise = "give a local copy (a folder with parquet or line files) as data.path=..."
    bars, verbosity = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are reported below, in one line
    try:
        with _offline_if_unreachable(local=data.path is not None):
            if data.path is not None:
                datasets.disable_progress_bars()
                config = _local_config(data)
            return call(config)
    except DataError:
        raise
    except ConnectionError:
        raise DataError(
            f"data.hub: {source} is not in the local cache and the hub is unreachable; {otherwise}"
        ) from None
    except datasets.exceptions.DatasetNotFoundError:
        raise DataError(
            f"data.hub: the hub has no dataset {source}, or it requires a login; check the name, or {otherwise}"
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
        raise DataError(f"data: {source} cannot be read as a dataset ({text[:300]}); fix it, or {otherwise}") from None
    finally:
        datasets.logging.set_verbosity(verbosity)
        if not bars:
            datasets.enable_progress_bars()


def _local_config(data: DataConfig) -> str | None:
    """data.hub_config if the folder has it; else its only config, if that is `default` (parquet files without README)
    or none was requested.
    """
    import datasets

    names = datasets.get_dataset_config_names(str(dataset_files(data)[0]))
    if data.hub_config in names:
        return data.hub_config
    if len(names) == 1 and (data.hub_config is None or names == ["default"]):
        return str(names[0])
    raise DataError(
        f"data.hub_config: no {data.hub_config!r} in {data.path}{did_you_mean(str(data.hub_config), names)}"
    )


@contextmanager
def _offline_if_unreachable(*, local: bool) -> Iterator[None]:
    """Avoid the library's 23 seconds of retries if the hub does not answer or is not needed; cached datasets still
    open.
    """
    import datasets
    from huggingface_hub import constants

    saved = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if local or not _reachable(constants.ENDPOINT):
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = saved


def _reachable(address: str) -> bool:
    url = urllib.parse.urlsplit(address)
    if url.scheme in urllib.request.getproxies() or "all" in urllib.request.getproxies():
        return True  # only the proxy knows
    try:
        socket.create_connection(
            (url.hostname or "", url.port or (80 if url.scheme == "http" else 443)), timeout=5
        ).close()
    except OSError:
        return False
    return True
