"""The tables of the hand-written pages in this folder, from documents.jsonl beside them; those of speed.md and gpu.md
are as `rpr-cli bench` printed them.

`python sweeps/measured/pages.py [RUN ...]` prints the tables, after the rows of these runs, if any, in the documents on
exports were made from their export cards.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rpr.config.train import config_from_record
from rpr.export import ctranslate2
from rpr.export.transformers import unrepresentable as of_transformers
from rpr.records.measurement import mean
from rpr.records.position import position_of
from rpr.records.record import Record, find_records, read_record
from rpr.records.scores import METRIC_NAMES
from rpr.report.render import figure_text

MEASURED = Path(__file__).resolve().parent
RESULTS = MEASURED.parent / "results"
FILE = MEASURED / "documents.jsonl"
DOCUMENTS = {
    f"{line['page']}/{line['name']}": line["document"] for line in map(json.loads, FILE.read_text("utf-8").splitlines())
}
EN_FR = 36_000_000  # about the pairs of WMT14 EN-FR
Document = list[dict[str, Any]]
Runs = dict[str, dict[int, dict[str, float]]]  # scores by label, seed and column


def named(pattern: str) -> list[str]:
    """The documents `PAGE/NAME` of a pattern, sorted."""
    return sorted(name for name in DOCUMENTS if fnmatch(name, pattern))


def read(name: str) -> Any:
    return DOCUMENTS[name]


def runs(*folders: str) -> list[tuple[Path, Record]]:
    """The committed records of sweeps."""
    return [found for folder in folders for found in find_records(RESULTS / folder).records]


SPEEDS, PEERS = named("speed/*"), named("peers/*")


def markdown(head: str, rows: Iterable[str], *, left: int = 1) -> str:
    """A table whose first `left` columns are left-aligned, the others right-aligned; cells are separated by ` | `."""
    columns = head.count(" | ") + 1
    return "\n".join(f"| {line} |" for line in (head, " | ".join(["---"] * left + ["---:"] * (columns - left)), *rows))


def spread(values: Sequence[float], digits: int = 0) -> str:
    low, high = min(values), max(values)
    return f"{median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def by_label(document: Document) -> dict[str, Document]:
    """The rounds of each toolkit."""
    return {label: [one for one in document if one["label"] == label] for label in {x["label"]: 0 for x in document}}


def fastest(speeds: dict[str, float]) -> float:
    """The highest speed of the PyTorch toolkits other than ours."""
    return max(speed for label, speed in speeds.items() if not label.startswith(("ours", "ct2")))


def medians(document: Document, name: str) -> dict[str, float]:
    return {label: median(run[name] for run in runs) for label, runs in by_label(document).items()}


# Training steps next to other toolkits'


def peers(path: str) -> str:
    names, rows = by_label(read(path)), []
    for label, runs in names.items():
        speeds = [run["target_tokens_per_s"] for run in runs]
        ratios = [mine["target_tokens_per_s"] / its for mine, its in zip(names["ours"], speeds, strict=True)]
        version = f"{runs[0]['version']} ({runs[0]['torch'].partition('+')[0]}) | {runs[0]['parameters']:,}"
        peak = max(run["peak_rss_mb"] for run in runs)
        rows.append(f"{label} | {version} | {spread(speeds)} | {spread(ratios, 2)} | {peak:,}")
    head = " | version (torch) | parameters | target tokens/s (min to max) | ours / it (min to max) | peak MB"
    return markdown(head, rows, left=2)


# Preparation and batches by the size of the corpus


def pairs(document: dict[str, Any]) -> int:
    return int(document["data"]["splits"]["train"]["pairs"])


def scale(kind: str) -> Document:
    """`prepare`: the cache was built; `ready`: it existed. By ascending number of pairs."""
    return sorted(map(read, named(f"scale/{kind}-*")), key=pairs)


def extrapolated(points: list[tuple[float, float]], place: float) -> float:
    (one, low), (other, high) = points
    return high + (place - other) * (high - low) / (other - one)


def preparation() -> str:
    found = scale("prepare")
    rows = []
    for one in found:
        sizes = one["peak_bytes"], one["build"]["worker_peak_bytes"], one["data"]["bytes"]
        times = f"{one['digest_seconds']:.2f} | {one['seconds']:.0f} | {one['cpu_seconds']:.0f}"
        rows.append(f"{pairs(one):,} | {times} | {' | '.join(f'{size / 1e9:.2f}' for size in sizes)}")
    last = [(pairs(one), one["digest_seconds"], one["cpu_seconds"], one["data"]["bytes"]) for one in found[-2:]]
    digests, cpu, size = (extrapolated([(one[0], one[at]) for one in last], EN_FR) for at in (1, 2, 3))
    seconds = cpu / found[-1]["cores"]
    rows.append(f"{EN_FR:,} (extrapolated) | {digests:.1f} | {seconds:.0f} | {cpu:.0f} |  |  | {size / 1e9:.2f}")
    head = "pairs | digests, s | all, s | CPU, s | peak memory, GB | of a worker, GB | cache, GB"
    return markdown(head, rows, left=0)


def start() -> str:
    row = "{import_seconds:.1f} | {open_seconds:.2f} | {plan_seconds:.2f} | {first_batch_seconds:.2f} | "
    row += "{order_seconds:.2f} | {tokens_per_second:,.0f} | {padding_waste:.1%}"
    found = scale("ready")
    loaders = [(pairs(one), one["loader"]) for one in found]
    rows = [f"{count:,} | {row.format(**one)} | {one['peak_bytes'] / 1e9:.2f}" for count, one in loaders]
    row = "{pairs:,} (plan alone) |  |  | {plan_seconds:.2f} |  | {order_seconds:.2f} |  | {padding_waste:.1%} | "
    rows.append(f"{row.format(**found[-1]['copies'])}{found[-1]['copies']['peak_bytes'] / 1e9:.2f}")
    head = (
        "pairs | imports, s | open, s | plan, s | first batch, s | order of an epoch, s | source and target tokens/s "
        "| padding | peak memory, GB"
    )
    return markdown(head, rows, left=0)


# Decoding


def toolkits() -> str:
    names = by_label(read("decoding/toolkits"))
    speeds = {label: [run["tokens_per_cpu_s"] for run in runs] for label, runs in names.items()}
    best = fastest({label: median(found) for label, found in speeds.items()})
    rows = []
    for label, found in speeds.items():
        version, torch = names[label][0]["version"], names[label][0]["torch"]
        whole = f"{version} ({torch.partition('+')[0]})" if torch else version
        rows.append(f"{label} | {whole} | {spread(found)} | {median(found) / best:.2f}")
    return markdown(" | version (torch) | tokens a CPU second (min to max) | to the fastest PyTorch toolkit", rows)


def engines() -> str:
    row = "{engine} {version} | {products} | {threads} | {cpu:.2f} | {all:.2f} | {tokens_per_cpu_s:,.0f} | "
    row += "{tokens_per_s:,.0f} | {sacrebleu:.2f}"
    found = read("decoding/engines")
    rows = [row.format(**run, cpu=median(run["cpu_seconds"]), all=median(run["seconds"])) for run in found]
    return markdown(" | products | threads | CPU s | s | tokens a CPU second | tokens/s | sacreBLEU", rows)


def scores() -> str:
    rows = []
    for name, score in ((name, one) for name, run in read("decoding/scores").items() for one in run["scores"]):
        interval, signature = score["interval"], score["signature"].replace("|", "\\|")
        figures = f"{score['score']:.2f} | {interval['low']:.2f} to {interval['high']:.2f} | `{signature}`"
        test_set = f"{score['test_set']} ({score['num_sentences']:,})"
        rows.append(f"{name} | {test_set} | {METRIC_NAMES[score['metric']]} | {figures}")
    return markdown("model | test set (sentences) | score |  | 95% interval | signature", rows)


def parity() -> str:
    row = "{identical} of {sentences} ({split}) | {largest_difference:.1e} | {tolerance:.1e}"
    cards = read("decoding/parity").items()
    int8 = {name: "" if card["int8_identical"] is None else f"{card['int8_identical']:.1%}" for name, card in cards}
    rows = [f"{name} | {row.format(**card['parity'])} | {int8[name]}" for name, card in cards]
    head = "export | greedy translations identical | log p differs by at most | allowed | int8 as float32"
    return markdown(head, rows)


def checks() -> str:
    rows = []
    for name, check in ((name, one) for name, run in read("decoding/verify").items() for one in run["checks"]):
        difference = "" if check["difference"] is None else f"{check['difference']:.1e}"
        rows.append(f"{name} | {check['name']} | {check['outcome']} | {difference} | {check['sentences']}")
    return markdown("model | check | outcome | largest difference | sentences", rows)


# Language models beside other libraries'


def language_models(documents: str, by: str, cell: str) -> str:
    """A row for each model, a column for each of these documents below lm_speed/, by one part of the shape."""
    found = sorted(map(read, named(f"lm_speed/{documents}")), key=lambda one: one["shape"][by])
    cells = [{row["label"]: cell.format(**row) for row in one["rows"]} for one in found]
    rows = [" | ".join([label, *(column.get(label, "") for column in cells)]) for label in max(cells, key=len)]
    return markdown(" | ".join(["", *(f"{one['shape'][by]:,}" for one in found)]), rows)


STEP = "{tokens_per_second:,.0f} ({ratio:.2f}; {mfu:.0%})"
LANGUAGE_MODELS = {
    **{f"steps_{width}": (f"steps-d{width}-*[0-9]", "length", STEP) for width in (128, 384, 768)},
    **{f"bf16_{width}": (f"bf16-d{width}-*[0-9]", "length", STEP) for width in (128, 384, 768)},
    "memory": ("memory-d128-*", "length", "{peak_megabytes:,}"),
    "scoring": ("forward-d128-*", "length", "{peak_megabytes:,}"),
    "generation": ("generate-d384-*", "batch", "{tokens_per_second:,.0f} ({ratio:.2f})"),
    "ctranslate2": ("ctranslate2-d384-*", "batch", "{tokens_per_second:,.0f}"),
}


def step_shares() -> str:
    """What a training step's processor time is spent on, by size and model."""
    documents = [read(name) for name in named("lm_speed/shares-*")]
    rows = []
    for shape, row in [(document["shape"], row) for document in documents for row in document["rows"]]:
        shares = " | ".join(f"{share:.1%}" for kind, share in row.items() if kind != "label")
        rows.append((shape["d_model"], f"d {shape['d_model']}, {shape['length']:,} | {row['label']} | {shares}"))
    kinds = " | ".join(kind for kind in documents[0]["rows"][0] if kind != "label")
    return markdown(f"size, context |  | {kinds}", [row for _, row in sorted(rows, key=lambda pair: pair[0])], left=2)


# Shaw's key table and its descendant


LENGTHS, SLIDING = ("64", "256", "1,024", "4,096"), ("256, sliding", "1,024, sliding", "4,096, sliding")


def bits_by_length(*folders: str) -> Runs:
    """Bits per byte of the runs in these folders by positions, seed and length, `1,024` or `1,024, sliding`."""
    found: Runs = {}
    for _, record in runs(*folders):
        [scores] = record.by_context
        of_length = found.setdefault(position_of(record).label, {}).setdefault(record.seed, {})
        for score in scores.scores:
            of_length[f"{score.length:,}{', sliding' * (score.windows == 'sliding')}"] = score.bits_per_byte
    return found


def compared(found: Runs, labels: Sequence[str], columns: Sequence[str], digits: int = 3) -> str:
    """A row for each label, the first of which is the baseline, and its change from that by common seed."""
    base, rows = found[labels[0]], []
    for label in labels:
        runs = dict(sorted(found[label].items()))
        figures = [mean([scores[column] for scores in runs.values()]) for column in columns]
        rows.append(f"{label} | {' | '.join(' '.join(figure_text(one, digits)) for one in figures)}")
        if label != labels[0]:
            common = [(runs[seed], base[seed]) for seed in runs if seed in base]
            figures = [mean([own[column] - its[column] for own, its in common]) for column in columns]
            rows.append(f"change | {' | '.join(' '.join(figure_text(one, digits, signed=True)) for one in figures)}")
    return markdown(" | ".join(["", *columns]), rows)


def key_tables(folder: str, extent: int) -> str:
    """Bits per byte by length of windows, and the change from keys alone, at equal tokens."""
    logits = f"relative logits, rank 4{f', extent {extent}' * (extent != 1024)}"  # 1,024 is the released one
    found = bits_by_length(folder)
    labels = [label for label in ("keys only, k = 16", "relative, k = 16", logits, "T5", "RoPE") if label in found]
    return compared(found, labels, (*LENGTHS, *SLIDING[1:]))


def second_text(folder: str) -> str:
    """Bits per byte by length of relative positions, and the change with ALiBi."""
    return compared(bits_by_length(folder), ("relative, k = 16", "ALiBi"), (*LENGTHS, *SLIDING[1:]))


def dropped(lengths: Sequence[str]) -> str:
    """Bits per byte of models with RoPE that went on with it or without positions, and of models that never had any."""
    labels = ("RoPE, from RoPE after 2,000 steps", "none, from RoPE after 2,000 steps", "none")
    return compared(bits_by_length("lm_length", "drope"), labels, lengths)


# RoPE stretched without training

SCALINGS = {"none": "as trained", "linear": "linear", "ntk": "NTK", "yarn": "YaRN"}


def stretched(windows: str, *, longer: bool) -> str:
    """Bits per byte by factor and the change from none, at the longer length or at that of training."""
    document, found = read("lm_extension/rope")["rows"], Runs()
    trained = min(row["length"] for row in document)
    columns = {row["factor"]: f"{'' if longer else 'for '}{row['factor'] * trained:,}" for row in document}
    for row in document:
        if row["windows"] == windows and (row["length"] > trained) == longer:
            of_seed = found.setdefault(SCALINGS[row["scaling"]], {}).setdefault(row["seed"], {})
            of_seed[columns[row["factor"]]] = row["bits_per_byte"]
    return compared(found, [*SCALINGS.values()], [columns[factor] for factor in sorted(columns)], 2)


STRETCHED = {
    "separate": partial(stretched, "separate", longer=True),
    "sliding": partial(stretched, "sliding", longer=True),
    "trained": partial(stretched, "separate", longer=False),
}


# Exports


FORMATS = {"ctranslate2": ctranslate2.unrepresentable, "transformers": partial(of_transformers, tokenizer="bytes")}


def make_exports(run: Path) -> None:
    """The row of a run in the document of its architecture, made anew: for each format the comparison on the export's
    card, or why it is refused.
    """
    record = read_record(run / "record.json")
    config = config_from_record(record.config)
    model = config.transformer(1000)
    stacks = [stack.scheme for stack in model.stacks()]
    row: dict[str, Any] = {
        "positions": position_of(record).label,
        "sharing": stacks[0].sharing if len({*stacks}) == 1 else None,
        "schemes": sorted({scheme.scheme for scheme in stacks}),
        "model": record.model_name,
        "steps": record.steps,
        "commit": record.git.commit,
    }
    one_stack = model.architecture == "decoder_only"
    for name, unrepresentable in FORMATS.items() if one_stack else [("ctranslate2", ctranslate2.unrepresentable)]:
        result: dict[str, Any] = {"refused": unrepresentable(model)}
        if result["refused"] is None:
            card = json.loads((run / "exports" / name / "card.json").read_text("utf-8"))
            names = ("sentences", "longest", "identical", "largest_difference", "tolerance")
            result |= {key: card["parity"][key] for key in names if card["parity"].get(key) is not None}
            result |= {"version": card["versions"][name]}
            if name == "transformers":
                settings = json.loads((run / "exports" / name / "config.json").read_text("utf-8"))
                result["class"] = settings["architectures"][0]
        row[name] = result
    rows = {(each["positions"], each["sharing"]): each for each in DOCUMENTS.get(f"exports/{model.architecture}", [])}
    rows[row["positions"], row["sharing"]] = row
    DOCUMENTS[f"exports/{model.architecture}"] = sorted(
        rows.values(), key=lambda row: (row["ctranslate2"]["refused"] is not None, row["schemes"], row["positions"])
    )
    lines = [
        dict(zip(("page", "name"), name.split("/"), strict=True)) | {"document": DOCUMENTS[name]} for name in named("*")
    ]
    packed = (json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines)
    FILE.write_text("".join(line + "\n" for line in packed), encoding="utf-8")


def exported(row: dict[str, Any]) -> str:
    return row["positions"] + (", shared by heads" if row["sharing"] == "shared_by_heads" else "")


def exports() -> str:
    cells, rows = "{identical} of {sentences} | {largest_difference:.1e} | {int8}", []
    for row in read("exports/encoder_decoder"):
        result = row["ctranslate2"]
        reason = (result["refused"] or "").partition(": ")[2].partition(";")[0]
        int8 = f"{result['int8_identical']:.1%}" if "int8_identical" in result else "–"  # measured by rpr 0.1.0
        rows.append(
            f"{exported(row)} | {f'refused: {reason} | – | –' if reason else cells.format(**result, int8=int8)}"
        )
    return markdown("positions | greedy translations equal | largest difference of log p | int8 as float32", rows)


def decoder_only_exports() -> str:
    """The largest difference of log p in each format."""
    rows = []
    for row in read("exports/decoder_only"):
        cells = [row[name] for name in ("ctranslate2", "transformers")]
        words = ["refused" if cell["refused"] else f"{cell['largest_difference']:.1e}" for cell in cells]
        rows.append(f"{exported(row)} | {' | '.join(words)} | {cells[1].get('class', '–')}")
    return markdown("positions | CTranslate2's Generator | transformers | its class", rows)


def precision(exact: str, bf16: str, head: str, metric: str, digits: int) -> str:
    """Scores after training in exact float32, as the runs below one folder, and in bf16, and their change seed by seed;
    of documents by the length of separate windows.
    """
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for _, record in runs(exact, bf16):
        of_text = [(score.split, score.score) for score in record.scores if score.metric == metric]
        by_context = [score for each in record.by_context for score in each.scores if score.windows == "separate"]
        for part, value in [(f"{score.length:,}", score.bits_per_byte) for score in by_context] or of_text:
            key = (position_of(record).label, part, str(record.setting("hardware.precision")))
            found.setdefault(key, {})[record.seed] = value
    rows = []
    of_bf16 = sorted((label, len(part), part) for label, part, arithmetic in found if arithmetic == "bf16")
    for label, _, part in of_bf16:  # lengths in order
        scores, others = found[label, part, "bf16"], found[label, part, "32"]
        means = [mean([values[seed] for seed in sorted(scores)]) for values in (others, scores)]
        change = mean([scores[seed] - others[seed] for seed in scores])
        cells = [figure_text(figure, digits)[0] for figure in means]
        cells.append(" ".join(figure_text(change, digits, signed=True)))
        rows.append(f"{label} | {part} | {' | '.join(cells)}")
    return markdown(f"positions | {head} | exact float32 | bf16 | change", rows, left=2)


TABLES: dict[tuple[str, str], Callable[[], str]] = {
    **{("peers.md", path.partition("/")[2]): lambda path=path: peers(path) for path in PEERS},  # type: ignore[misc]
    **{("scale.md", table.__name__): table for table in (preparation, start)},
    **{("decoding.md", table.__name__): table for table in (toolkits, engines, scores, parity, checks)},
    **{("exports.md", table.__name__): table for table in (exports, decoder_only_exports)},
    **{("lm_speed.md", name): partial(language_models, *of) for name, of in LANGUAGE_MODELS.items()},
    ("lm_speed.md", "step_shares"): step_shares,
    ("lm_speed.md", "losses"): partial(precision, "lm_length", "lm_precision", "context", "bits_per_byte", 3),
    ("keys.md", "key_tables"): partial(key_tables, "lm_length", 256),
    ("keys.md", "key_tables_1024"): partial(key_tables, "lm_length_1024", 1024),
    **{("second_text.md", of): partial(second_text, of) for of in ("lm_state_union", "lm_length")},
    ("drope.md", "drope_separate"): partial(dropped, LENGTHS[1:]),
    ("drope.md", "drope_sliding"): partial(dropped, SLIDING),
    **{("lm_extension.md", name): table for name, table in STRETCHED.items()},
}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        make_exports(Path(argument))
    for (_, name), table in TABLES.items():
        print(name, table(), sep="\n\n", end="\n\n")
