"""Datasets of the Hugging Face hub, read with the datasets library at a pinned commit.

The functions import it themselves: that takes a second or two, for which not every command should wait.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rpr.config.data import DataConfig
from rpr.data.files import cache_root, read_json, standard_splits, update_json
from rpr.errors import DataError

REVISIONS_NAME = "hub_revisions.json"


def hub_files(data: DataConfig) -> dict[str, tuple[Path, ...]]:
    """The Arrow files of each split, by its standard name, as the library has downloaded and converted them."""
    import datasets

    revision, pins = hub_revision(data), cache_root(data) / REVISIONS_NAME
    # Without the hub the library takes the newest commit that it has stored, whatever was asked for.
    if (there := str(_call(data, datasets.load_dataset_builder, revision=revision).hash)) != revision:
        raise DataError(
            f"data.hub: {data.hub} is pinned to commit {revision[:12]} in {pins}, but only {there[:12]} can be read "
            "here; connect to the hub (unset HF_HUB_OFFLINE), or delete its line there for another commit"
        )
    splits = _call(data, datasets.load_dataset, revision=revision, keep_in_memory=False)
    usual = standard_splits([*map(str, splits)])
    files = {str(name): tuple(Path(file["filename"]) for file in rows.cache_files) for name, rows in splits.items()}
    return {usual.get(name, name): of_split for name, of_split in files.items()}


def hub_revision(data: DataConfig) -> str:
    """The commit of the hub dataset that this cache_dir is pinned to. Raises DataError if there is none."""
    revision = pinned_revision(data)
    if revision is None:
        import datasets

        revision = str(_call(data, datasets.load_dataset_builder).hash)
        if re.fullmatch("[0-9a-f]{40}", revision) is None:
            raise DataError(
                f"data.hub: {data.hub} is read from a folder of this name, which has no commit; give it as "
                "data.path=..., or work in another directory"
            )
        update_json(cache_root(data) / REVISIONS_NAME, {str(data.hub): revision})
    return revision


def pinned_revision(data: DataConfig) -> str | None:
    """The same if it is pinned already; never asks the hub. Raises DataError if the file of pins is damaged."""
    path = cache_root(data) / REVISIONS_NAME
    pins = read_json(path)
    if not pins and path.exists():
        raise DataError(f"data.cache_dir: {path} is no JSON object with the commits of its corpora; mend or delete it")
    revision = pins.get(str(data.hub))
    return revision if isinstance(revision, str) else None


def _call(data: DataConfig, function: Callable[..., Any], **arguments: Any) -> Any:
    """Call the library; every error becomes a one-line DataError."""
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are reported below, in one line
    try:
        return function(data.hub, data.hub_config, **arguments)
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise DataError(
            f"data.hub: {data.hub} ({data.hub_config or 'its only configuration'}) cannot be read ({reason}); check "
            "data.hub, data.hub_config and the connection, or give a local copy (a folder with parquet or line files) "
            "as data.path=..."
        ) from None
