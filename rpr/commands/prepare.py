"""rpr-cli prepare: corpus -> vocabulary -> token cache."""

import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any

from rpr.config.commands import PrepareConfig
from rpr.config.data import DataConfig
from rpr.data.cache import PreparedData, cache_key, prepare
from rpr.io.resources import num_cores, resident_peak
from rpr.kinds import TEXT
from rpr.progress import bars
from rpr.records.measurement import single
from rpr.records.provenance import git_state, versions
from rpr.tables.grid import Column, Grid
from rpr.tables.render import terminal, wrapped


def run(config: PrepareConfig) -> None:
    """Prepare a corpus, and print its splits and costs as a table or as one JSON document."""
    start = time.monotonic()
    cache_key(config.data)  # digests of the corpus files: takes seconds the first time, cached afterwards
    digest_seconds = time.monotonic() - start
    with progress_bars(config.data) as report:
        data = prepare(config.data, report, config.processes)
    build = data.built_by
    document: dict[str, Any] = {
        "cores": num_cores(),
        "git": git_state().model_dump(),
        "versions": versions(),
        "config": config.model_dump(mode="json"),
        "data": _data(data, documents=config.data.kind is TEXT),
        "seconds": time.monotonic() - start,
        "cpu_seconds": sum(os.times()[:4]),  # of this process and its finished workers
        "digest_seconds": digest_seconds,
        "peak_bytes": resident_peak(),
        "build": None if build is None else {"processes": build},
    }
    if config.format == "json":
        print(json.dumps(document, indent=2))
    else:
        print(data.directory)
        print(as_text(document))


def _data(data: PreparedData, *, documents: bool) -> dict[str, Any]:
    splits = {}
    items = "documents" if documents else "pairs"
    for name in data.splits:
        sides = {} if documents else {"source": data.split(name).source_lengths}
        sides |= {"target": data.split(name).target_lengths}
        pieces = {
            side: {"mean_pieces": float(lengths.mean()), "longest": int(lengths.max())}
            for side, lengths in sides.items()
        }
        splits[name] = {items: data.meta.counts[name], **pieces}
    return {
        "name": data.meta.name,
        "items": items,
        "synthetic": data.meta.synthetic,
        "key": data.meta.key,
        "vocabulary_size": len(data.vocabulary),
        "dropped": data.meta.dropped,
        "notes": data.meta.notes,
        "bytes": sum(data.meta.file_sizes.values()),
        "splits": splits,
    }


def as_text(document: dict[str, Any]) -> str:
    """The splits as a table, followed by their costs."""
    data, build = document["data"], document["build"]
    synthetic, items = " (synthetic)" if data["synthetic"] else "", data["items"]
    columns = [
        Column("split", "split", itemgetter(0), label=True),
        Column(items, items, lambda row: single(row[1][items]), digits=0),
    ]
    for side in ("source", "target") if items == "pairs" else ("target",):
        prefix = f"{side}: " if items == "pairs" else ""
        columns.append(_pieces(side, "mean_pieces", f"{prefix}pieces", 1))
        columns.append(_pieces(side, "longest", f"{prefix}longest", 0))
    rows = tuple(data["splits"].items())
    table = terminal(Grid("splits", "", tuple(columns), rows)).splitlines() if rows else []
    time = f"{document['seconds']:,.1f} s"
    if build is None:
        costs = [f"already prepared: opened in {time}"]
    else:
        workers = f" by {build['processes']} processes" if build["processes"] > 1 else ""
        costs = [f"prepared in {time}{workers}; peak memory {_bytes(document['peak_bytes'])}"]
    dropped = "; ".join(
        f"{split}: " + ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in lost.items() if number)
        for split, lost in data["dropped"].items()
    )
    head = (
        f"{data['name']}{synthetic}: vocabulary of {data['vocabulary_size']:,} pieces, "
        f"{f'{items} dropped ({dropped})' if dropped else f'no {items} dropped'}, {_bytes(data['bytes'])} on disk"
    )
    return "\n".join([*wrapped([head]), *table, *wrapped([*data["notes"], *costs])])


def _pieces(side: str, key: str, heading: str, digits: int) -> Column:
    return Column(f"{side}_{key}", heading, lambda row: single(row[1][side][key]), digits)


def progress_bars(data: DataConfig) -> AbstractContextManager[Callable[[int, int, str], None]]:
    """A bar for each part of preparing a corpus, in pairs, or in megabytes of documents."""
    return bars("MB" if data.kind is TEXT else "pairs", data.name)


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"
