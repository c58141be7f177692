"""rpr-cli prepare: corpus -> vocabulary -> token cache."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from rpr.commands.printing import table
from rpr.config.commands import PrepareConfig
from rpr.config.train import DataConfig
from rpr.data import cache
from rpr.io.system import resident_peak
from rpr.kinds import TEXT
from rpr.progress import bars
from rpr.records.record import flat


def run(config: PrepareConfig) -> None:
    """Prepare a corpus, and print its facts, with a table of its splits, or one JSON document."""
    # 1. Prepare it.
    start = time.monotonic()
    with progress_bars(config.data) as report:
        data = cache.prepare(config.data, report)
    document: dict[str, Any] = {
        "name": data.meta.name,
        "folder": str(data.directory),
        "synthetic": data.meta.synthetic,
        "key": data.meta.key,
        "vocabulary_size": len(data.vocabulary),
        "dropped": data.meta.dropped,
        "notes": data.meta.notes,
        "megabytes": sum(data.meta.file_sizes.values()) / 1e6,
        "seconds": time.monotonic() - start,
        "peak_megabytes": resident_peak() / 1e6,
        "built": data.built_now,
    }
    # 2. Its splits.
    documents, splits = config.data.kind is TEXT, dict[str, dict[str, Any]]()
    for name in data.splits:
        splits[name] = {"documents" if documents else "pairs": data.meta.counts[name]}
        for side in ("source", "target")[documents:]:
            lengths = getattr(data.split(name), f"{side}_lengths")
            splits[name][side] = {"mean_pieces": float(lengths.mean()), "longest": int(lengths.max())}
    # 3. Print both.
    if config.format == "json":
        print(json.dumps(document | {"splits": splits}, indent=2))
        return
    facts = [f"{name}: {_text(value)}" for name, value in document.items() if value or value is False]
    rows = [[name, *map(_text, flat(split).values())] for name, split in splits.items()]
    print("\n".join([*facts, *table(["split", *flat(splits["train"])], rows)]))


def _text(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


def progress_bars(data: DataConfig) -> AbstractContextManager[Callable[[int, int, str], None]]:
    """A bar for each part of preparing a corpus, in pairs, or in megabytes of documents."""
    return bars("MB" if data.kind is TEXT else "pairs", data.name)
