"""Files and folders with which the command line is attacked: what a person may have lying about, or has typed wrongly,
or was given by someone who wants to have code run.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

SWEEPS = {
    "ok": 'jobs: ["seed=1,2"]',
    "tab": "jobs:\n\t- seed=1",
    "anchor": "jobs: [*x]",
    "nul": 'jobs: ["name=a"]\n\0',
    "two": 'jobs: ["seed=1"]\n---\njobs: ["seed=2"]',
    "bomb": "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\njobs: [*c]",
    "unknown": "jobs: [seeed=1]",
    "badgram": 'jobs: ["seed=[1"]',
    "badval": "jobs: [seed=x]",
    "badchoice": "jobs: [model=huge]",
    "numjob": "jobs: [1]",
    "noeq": "jobs: [seed]",
    "atonce": "jobs: [jobs=2 seed=1]",
    "flag": "jobs: [--cfg job]",
    "open": 'jobs: ["name=\'a"]',
    "launcher": "jobs: [hydra.launcher._target_=os.system seed=1]",
    "callbacks": "overrides: [+hydra.callbacks.x._target_=builtins.print]\njobs: [seed=1]",
    "logging": "jobs: ['+hydra.job_logging.handlers={x:{class:os.system}}', seed=2]",
    "target": "_target_: os.system\njobs: [seed=1]",
    "pytag": 'jobs: !!python/object/apply:os.system ["touch pwned"]',
}
CALLED = "{_target_: os.system, command: touch pwned}"
CALLS = "_target_: os.system\ncommand: touch pwned\n"


class Pwned:
    """A pickle of it writes a file when it is read."""

    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def put(here: Path, model: str) -> None:
    """All of them into a folder; `model` is the text of a file of conf/model/."""
    for name, text in SWEEPS.items():
        (here / f"{name}.yaml").write_text(text + "\n")
    (here / "latin.yaml").write_bytes("description: Übung\njobs: [seed=1]\n".encode("latin-1"))
    (here / "folder.yaml").mkdir()
    (here / "dir").mkdir()
    for name, text in {"file": "x", "empty": "", "in.txt": "a b\nc\n"}.items():
        (here / name).write_text(text)
    (here / "binary").write_bytes(bytes(range(256)) * 10)
    (here / "evil.pickle").write_bytes(pickle.dumps(Pwned()))
    choices = {
        "hydra/launcher/evil.yaml": CALLS,
        "hydra/callbacks/evil.yaml": f"x:\n  {CALLS.strip().replace(chr(10), chr(10) + '  ')}\n",
        "model/evil.yaml": f"{model}\n{CALLS}",
        "evil.yaml": f"defaults: [train, _self_]\nhydra: {{callbacks: {{x: {CALLED}}}}}\n",
    }
    for name, text in choices.items():
        (here / "confdir" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "confdir" / name).write_text(text)


# --- corpora: each makes the files of a folder

Make = Callable[[Path], None]
NAMES = [
    (f"{who} {does} the {what} .", f"{wer} {tut} {was} .")
    for who, wer in (("Ann", "Anna"), ("Bob", "Bernd"), ("Cy", "Claus"), ("Di", "Dora"), ("Ed", "Edwin"))
    for does, tut in (("sees", "sieht"), ("hears", "hört"), ("likes", "mag"), ("knows", "kennt"))
    for what, was in (("dog", "den Hund"), ("cat", "die Katze"), ("house", "das Haus"))
]


def lines(sources: bytes | None = None, targets: bytes | None = None, split: str = "train") -> Make:
    """A good split of line files beside which one has these bytes in place of its own."""

    def make(folder: Path) -> None:
        for name in {"train", split}:
            for side, language in enumerate(("en", "de")):
                text = "".join(f"{pair[side]}\n" for pair in NAMES).encode()
                own = (sources, targets)[side] if name == split else None
                (folder / f"{name}.{language}").write_bytes(text if own is None else own)

    return make


def one_side(folder: Path) -> None:
    lines()(folder)
    (folder / "train.de").unlink()


def side_is_a_folder(folder: Path) -> None:
    one_side(folder)
    (folder / "train.de").mkdir()


def no_train(folder: Path) -> None:
    for file in (folder, lines()(folder))[0].glob("train.*"):
        file.rename(folder / f"test{file.suffix}")


def packed_badly(folder: Path) -> None:
    lines()(folder)
    (folder / "train.de").rename(folder / "train.de.gz")


def parquet(**columns: Any) -> Make:
    return lambda folder: pq.write_table(pa.table(columns), folder / "train.parquet")


def text_file(name: str, content: str | bytes) -> Make:
    return lambda folder: (
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode()) and None
    )


# --- runs: each damages the folder of a trained one


def record(change: Callable[[dict[str, Any]], Any]) -> Make:
    def damage(run: Path) -> None:
        document = json.loads((run / "record.json").read_text())
        change(document)
        (run / "record.json").write_text(json.dumps(document))

    return damage


def setting(key: str, value: Any) -> Make:
    """The record's configuration with another value; ... takes the setting away."""

    def change(document: dict[str, Any]) -> None:
        *path, last = key.split(".")
        section = document["config"]
        for part in path:
            section = section[part]
        section[last] = value
        if value is ...:
            del section[last]

    return record(change)


def content(name: str, new: str | bytes | Callable[[bytes], bytes]) -> Make:
    def damage(run: Path) -> None:
        path = run / name
        old = path.read_bytes()
        path.write_bytes(new(old) if callable(new) else new.encode() if isinstance(new, str) else new)

    return damage


def folder_instead(name: str) -> Make:
    def damage(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()

    return damage


def checkpoints(change: Callable[[dict[str, Any]], Any]) -> Make:
    """Every checkpoint, changed and written again."""

    def damage(run: Path) -> None:
        for path in (run / "checkpoints").glob("*.ckpt"):
            loaded = torch.load(path, weights_only=True)
            torch.save(change(loaded) or loaded, path)

    return damage


def newest(new: Callable[[bytes], bytes]) -> Make:
    """The newest checkpoint's bytes."""

    def damage(run: Path) -> None:
        path = max((run / "checkpoints").glob("*.ckpt"))
        path.write_bytes(new(path.read_bytes()))

    return damage


def all_checkpoints(new: bytes | Callable[[bytes], bytes]) -> Make:
    def damage(run: Path) -> None:
        for path in (run / "checkpoints").glob("*.ckpt"):
            path.write_bytes(new if isinstance(new, bytes) else new(path.read_bytes()))

    return damage


def other_sizes(loaded: dict[str, Any]) -> None:
    loaded["state_dict"] = {name: torch.zeros(3, *weight.shape) for name, weight in loaded["state_dict"].items()}


def renamed(loaded: dict[str, Any]) -> None:
    loaded["state_dict"] = {re.sub(r"\bmodel\.", "model.net.", name): w for name, w in loaded["state_dict"].items()}


def as_cut(run: Path) -> None:
    """As a run that was killed after its second checkpoint."""
    record(lambda document: document.update(status="running"))(run)
    (run / "checkpoints" / "step00000008.ckpt").unlink()


def together(*damages: Make) -> Make:
    def damage(run: Path) -> None:
        for one in damages:
            one(run)

    return damage
