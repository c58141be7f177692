"""The position variant of a run, from its record."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache

from pydantic import TypeAdapter, ValidationError

from rpr.config.train import Origin
from rpr.errors import RecordError
from rpr.model.positions import COLOURS, SCHEMES, AnyPositions, Positions, Scheme, changed_code
from rpr.records.record import Record
from rpr.validation import validate

OTHER = "other"
_OFF = (False, None, "", "none")  # values of settings that say nothing
# Settings of every scheme, unused.
_COMMON = {"query_log_scale": 0, "random_positions": None, "key_offset": "none", "initial_std": None}
_ADAPTER: TypeAdapter[Positions] = TypeAdapter(AnyPositions)


@dataclass(frozen=True)
class Position:
    """A position variant, one row of a table. Equal variants are one row.

    `kind` is the scheme's, or `other` for schemes and settings unknown to this version.
    """

    kind: str
    label: str
    clip_distance: int | None
    tables: str | None
    identity: str = field(repr=False)  # every setting that affects results
    code: str = ""  # the end of the label: versions of the scheme's code, where others differ in them alone
    plain: bool = True  # whether the settings that every scheme has, as random positions, are not used
    as_published: bool = True  # whether its other settings but k and RoPE's share of the width are those of its paper

    @property
    def order(self) -> tuple[int, str, int, str]:
        """The sort key of rows: by scheme and kind, then by k; unknown kinds last. Other code has the same place."""
        place, label = [*COLOURS, self.kind].index(self.kind), self.label.removesuffix(self.code)
        own = label if self.kind in SCHEMES or self.kind not in COLOURS else ""
        return place, own, -1 if self.clip_distance is None else self.clip_distance, f"{self.tables} {label}"


def position_of(record: Record) -> Position:
    """The variant of one run, as in `positions_of`."""
    return positions_of([record])[0]


def name_of(record: Record) -> str:
    """`rope`; of a run that started from another's weights `rope-from-a441cb86`, with their settings."""
    origin = record.setting("origin.settings_id")
    return str(record.setting("position.name")) + ("" if origin is None else f"-from-{origin}")


def names_of(record: Record) -> Set[str]:
    """What a command line calls the variant of a run: its name and kind, each also with its clip distance."""
    position, name = position_of(record), name_of(record)
    names = {name} if record.setting("origin") else {name, position.kind}
    return names | {f"{name}-k{position.clip_distance}" for name in names if position.clip_distance is not None}


def called(name: str, records: Iterable[Record]) -> list[Record]:
    """The runs of the variant that a command line names, by the label of its row or as in `names_of`. Of several with
    this name, those whose label adds nothing that the others lack, as `RoPE` beside `RoPE, base 500000`; without such
    a label, all.
    """
    labels = [(record, position_of(record).label) for record in records]
    named = [pair for pair in labels if pair[1] == name] or [pair for pair in labels if name in names_of(pair[0])]
    plain = [record for record, label in named if all(f"{other},".startswith(f"{label},") for _, other in named)]
    return plain or [record for record, _ in named]


def positions_of(records: Sequence[Record]) -> list[Position]:
    """The variant of each run. Versions of a scheme's code distinguish variants where these records name several."""
    origins, codes = _origins(records), code_differences(records)
    return [_position(run, origin, code) for run, origin, code in zip(records, origins, codes, strict=True)]


def _origins(records: Sequence[Record]) -> list[str]:
    """For each run that started from another's weights, `RoPE after 1,500 steps`, with the seed of those weights if a
    run of these positions with another seed started from them too, and with the id of the other's settings where
    several read alike; empty for the others.
    """
    origins = {at: validate(Origin, run.config["origin"]) for at, run in enumerate(records) if run.config.get("origin")}
    starts = {at: json.dumps([records[at].config["position"], of.weights]) for at, of in origins.items()}
    several = {starts[at] for at, origin in origins.items() if origin.seed != records[at].seed}
    texts = {at: of.words(None if starts[at] in several else records[at].seed) for at, of in origins.items()}
    alike = Counter(text for text, _ in {(texts[at], origin.settings_id) for at, origin in origins.items()})
    words = {at: text + f" ({origins[at].settings_id})" * (alike[text] > 1) for at, text in texts.items()}
    return [words.get(at, "") for at in range(len(records))]


def code_differences(records: Sequence[Record]) -> list[dict[str, str]]:
    """For each run, the versions of its schemes' code of which these records name more than one, by `code of NAME`."""
    codes = [run.schemes or {} for run in records]
    names = [name for name, _ in {version for code in codes for version in code.items()}]
    return [{f"code of {name}": of[:10] for name, of in code.items() if names.count(name) > 1} for code in codes]


def corpus_differences(records: Sequence[Record]) -> list[str | None]:
    """For each run the hash of its corpus, if others of these runs read another one with the same settings, which only
    name the files; else None. A run that ended before it read its corpus is taken to have the first one's.
    """
    settings = [json.dumps(run.config["data"] | {"cache_dir": None, "path": None}, sort_keys=True) for run in records]
    keys: dict[str, dict[str, None]] = {text: {} for text in settings}  # in the order of the runs
    for text, run in zip(settings, records, strict=True):
        keys[text] |= {run.data.key: None} if run.data else {}
    alike = ((run, [*keys[text]]) for text, run in zip(settings, records, strict=True))
    return [(run.data.key if run.data else own[0])[:12] if len(own) > 1 else None for run, own in alike]


def check_same_code(positions: Positions, record: Record) -> None:
    """Raises RecordError if the code of a scheme has changed since the run was started, whose weights would meet other
    equations. Older records do not say.
    """
    if changes := changed_code((positions.encoder, positions.decoder), record.schemes):
        commit = record.git.commit
        of_commit = f" (commit {commit[:10]}{', with changes' if record.git.dirty else ''})" if commit else ""
        raise RecordError(
            f"position.scheme: {changes[0]} since {record.name} was trained; restore it as it was with rpr "
            f"{record.versions.get('rpr', '?')}{of_commit}, or train the run again: rpr-cli train ... again=true"
        )


def _as_published(scheme: Scheme) -> bool:
    share = {"rotated_share": 1} if hasattr(scheme, "rotated_share") else {}
    return not scheme.model_copy(update=share).details()


@lru_cache(maxsize=4096)  # a report has thousands of records, of a few variants
def _read(settings: str) -> Positions | None:
    try:
        return _ADAPTER.validate_json(settings)
    except ValidationError:
        return None


def _position(record: Record, origin: str, code: Mapping[str, str]) -> Position:
    # 1. Its settings, if this version knows them.
    settings, name = json.dumps(record.config["position"], sort_keys=True), record.setting("position.name")
    if (known := _read(settings)) is None:
        given = ((key, value) for key, value in json.loads(settings).items() if key != "name" and value not in _OFF)
        parts = [str(name), *(f"{key} = {value}" for key, value in given)]
        position = Position(OTHER, record.label or ", ".join(parts), None, None, settings)
    else:
        identity = json.dumps([known.scheme, known.identity()], sort_keys=True)
        sides = (known.encoder, known.decoder)
        plain = all(getattr(side, key) == off for side in sides for key, off in {**_COMMON, "windowed": False}.items())
        published = all(map(_as_published, sides))
        position = Position(known.kind, known.label, known.k, known.sharing, identity, "", plain, published)
    # 2. Where it started.
    if origin:
        identity = json.dumps([position.identity, origin])
        position = replace(position, kind=OTHER, label=f"{position.label}, from {origin}", identity=identity)
    # 3. Another version of its code is another variant, but of the same kind: what it is compared with stays.
    if code:
        text = "".join(f", {key} = {version}" for key, version in code.items())
        identity = json.dumps([position.identity, *code.items()])
        position = replace(position, label=position.label + text, identity=identity, code=text)
    return position
