"""Sentence pairs of the Hugging Face hub, read with the datasets library at a pinned commit.

The functions import it themselves: that takes a second or two, for which not every command should wait.
"""

from __future__ import annotations

import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpr.config.data import DataConfig
from rpr.data.files import read_json, standard_split, update_json
from rpr.data.pairs import cache_root
from rpr.errors import DataError


def hub_files(data: DataConfig) -> dict[str, list[Path]]:
    """The Arrow files of each split, by its standard name, as the library has downloaded and converted them."""
    import datasets

    revision = hub_revision(data)
    commit = revision if re.fullmatch(r"[0-9a-f]{40}", revision) else None
    splits = _datasets_call(
        data, lambda: datasets.load_dataset(str(data.hub), data.hub_config, revision=commit, keep_in_memory=False)
    )
    return {
        standard_split(str(name)): [Path(file["filename"]) for file in rows.cache_files]
        for name, rows in splits.items()
    }


def hub_revision(data: DataConfig) -> str:
    """The commit of the hub dataset that this cache_dir is pinned to."""
    store = cache_root(data) / "hub_revisions.json"
    revision = read_json(store).get(str(data.hub))
    if not isinstance(revision, str):
        import datasets

        builder = _datasets_call(data, lambda: datasets.load_dataset_builder(str(data.hub), data.hub_config))
        revision = str(builder.hash)
        update_json(store, str(data.hub), revision)
    return revision


def _datasets_call(data: DataConfig, call: Callable[[], Any]) -> Any:
    """Call the library; every error becomes a one-line DataError with its innermost reason."""
    import datasets

    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are reported below, in one line
    try:
        with _offline_if_unreachable():
            return call()
    except Exception as error:
        reason: BaseException = error
        while isinstance(reason, datasets.exceptions.DatasetGenerationError) and (
            reason.__cause__ or reason.__context__
        ):
            reason = reason.__cause__ or reason.__context__ or reason
        raise DataError(
            f"data.hub: {data.hub} ({data.hub_config or 'its only configuration'}) cannot be read "
            f"({' '.join(str(reason).split())[:300]}); check data.hub, data.hub_config and the connection, or give a "
            "local copy (a folder with parquet or line files) as data.path=..."
        ) from None
    finally:
        datasets.logging.set_verbosity(verbosity)


@contextmanager
def _offline_if_unreachable() -> Iterator[None]:
    """Avoid the library's 23 seconds of retries if the hub does not answer; cached datasets still open."""
    import datasets
    from huggingface_hub import constants

    saved = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if not _reachable(constants.ENDPOINT):
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = saved


def _reachable(address: str) -> bool:
    url = urllib.parse.urlsplit(address)
    if url.scheme in urllib.request.getproxies() or "all" in urllib.request.getproxies():
        return True  # only the proxy knows
    port = url.port or (80 if url.scheme == "http" else 443)
    try:  # as the library would retry for long
        socket.create_connection((url.hostname or "", port), timeout=5).close()  # noqa: TID251
    except OSError:
        return False
    return True
