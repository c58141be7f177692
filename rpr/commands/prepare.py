"""rpr-cli prepare: corpus -> vocabulary -> token cache."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from rpr.commands.printing import table
from rpr.config.commands import PrepareConfig
from rpr.config.data import DataConfig
from rpr.data import cache
from rpr.io.resources import resident_peak
from rpr.kinds import TEXT
from rpr.progress import bars
from rpr.report.render import wrapped


def run(config: PrepareConfig) -> None:
    """Prepare a corpus, and print its splits and costs as a table or as one JSON document."""
    # 1. Prepare it.
    start = time.monotonic()
    with progress_bars(config.data) as report:
        data = cache.prepare(config.data, report)
    seconds, documents = time.monotonic() - start, config.data.kind is TEXT
    # 2. Its splits.
    items, splits = "documents" if documents else "pairs", dict[str, dict[str, Any]]()
    for name in data.splits:
        split = data.split(name)
        sides = {side: getattr(split, f"{side}_lengths") for side in ("source", "target")[documents:]}
        figures = {side: {"mean_pieces": float(of.mean()), "longest": int(of.max())} for side, of in sides.items()}
        splits[name] = {items: data.meta.counts[name], **figures}
    # 3. The document, or the same as a table.
    document = {
        "name": data.meta.name,
        "folder": str(data.directory),
        "items": items,
        "synthetic": data.meta.synthetic,
        "key": data.meta.key,
        "vocabulary_size": len(data.vocabulary),
        "dropped": data.meta.dropped,
        "notes": data.meta.notes,
        "bytes": sum(data.meta.file_sizes.values()),
        "splits": splits,
        "seconds": seconds,
        "peak_bytes": resident_peak(),
        "built": data.built_now,
    }
    print(json.dumps(document, indent=2) if config.format == "json" else _as_text(document))


def _as_text(document: dict[str, Any]) -> str:
    """The splits as a table, between what the corpus is and what preparing it took."""
    items, splits = document["items"], document["splits"]
    lost = "; ".join(
        f"{split}: " + ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in lost.items() if number)
        for split, lost in document["dropped"].items()
    )
    head = f"{document['name']}{' (synthetic)' if document['synthetic'] else ''}: vocabulary of "
    head += f"{document['vocabulary_size']:,} pieces, {f'{items} dropped ({lost})' if lost else f'no {items} dropped'}"
    sides = [side for side in ("source", "target") if all(side in split for split in splits.values())]
    rows = []
    for name, split in splits.items():
        pairs = ((f"{split[side]['mean_pieces']:,.1f}", f"{split[side]['longest']:,}") for side in sides)
        rows.append([name, f"{split[items]:,}", *(cell for pair in pairs for cell in pair)])
    costs = f"already prepared: opened in {document['seconds']:,.1f} s"
    if document["built"]:
        costs = f"prepared in {document['seconds']:,.1f} s; peak memory {_size(document['peak_bytes'])}"
    return "\n".join([
        document["folder"],
        *wrapped([f"{head}, {_size(document['bytes'])} on disk"]),
        *table(["split", items, *(f"{side}: {figure}" for side in sides for figure in ("pieces", "longest"))], rows),
        *wrapped([*document["notes"], costs]),
    ])  # fmt: skip


def progress_bars(data: DataConfig) -> AbstractContextManager[Callable[[int, int, str], None]]:
    """A bar for each part of preparing a corpus, in pairs, or in megabytes of documents."""
    return bars("MB" if data.kind is TEXT else "pairs", data.name)


def _size(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"
