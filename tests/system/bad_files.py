"""Malformed and malicious files: sweep files, corpora and damaged runs."""

import json
import os
import pickle
import shutil
from functools import wraps

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rpr.data.vocabulary import Vocabulary, count_words
from tests.fake_records import edited

SWEEPS = {
    "ok": 'jobs: ["seed=1,2"]',
    "tab": "jobs:\n\t- seed=1",
    "bomb": "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\njobs: [*c]",
    "badgram": 'jobs: ["seed=[1"]',
    "notalist": "jobs: seed=1",
    "environment": "overrides: [+hydra.job.env_set.PYTHONPATH=evil]\njobs: [seed=1]",
    "target": "_target_: os.system\njobs: [seed=1]",
    "null": "jobs: [seed=1]",
    "pytag": 'jobs: !!python/object/apply:os.system ["touch pwned"]',
}
CALLS = "_target_: os.system\ncommand: touch pwned\n"


class Pwned:
    """Unpickling it creates the file `pwned`."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


def write_bad_files(here, model):
    """Write all of them into a folder; `model` is the text of a file of conf/model/."""
    for name, text in SWEEPS.items():
        (here / f"{name}.yaml").write_text(text + "\n")
    (here / "dir").mkdir()
    for name, text in {"file": "x", "in.txt": "a b\nc\n"}.items():
        (here / name).write_text(text)
    choices = {
        "model/evil.yaml": f"{model}\n{CALLS}",
        "../hidden/model/tiny.yaml": model,
    }
    for name, text in choices.items():
        (here / "confdir" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "confdir" / name).write_text(text)


def of_folder(change):
    """What changes a folder, called with all but the folder: it returns a function of that."""
    return lambda *given, **named: wraps(change)(lambda folder: change(folder, *given, **named))


# --- corpora: each function writes the files of a folder

PAIRS = [
    (f"{who} {does} the {what} .", f"{wer} {tut} {was} .")
    for who, wer in (("Ann", "Anna"), ("Bob", "Bernd"), ("Cy", "Claus"), ("Di", "Dora"), ("Ed", "Edwin"))
    for does, tut in (("sees", "sieht"), ("hears", "hört"), ("likes", "mag"), ("knows", "kennt"))
    for what, was in (("dog", "den Hund"), ("cat", "die Katze"), ("house", "das Haus"))
]


@of_folder
def line_files(folder, sources=None, targets=None, split="train"):
    """A valid train split; in `split`, these bytes replace those of either side."""
    for name in {"train", split}:
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in PAIRS).encode()
            own = (sources, targets)[side] if name == split else None
            (folder / f"{name}.{language}").write_bytes(text if own is None else own)


def files_named(*names):
    """The valid sides of train under other names; a side may be left out."""
    return lambda folder: [
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS)) for side, name in enumerate(names)
    ]


def parquet(**columns):
    return lambda folder: pq.write_table(pa.table(columns), folder / "train.parquet")


def text_files(**contents):
    """`train_csv="..."` is the file train.csv."""
    return lambda folder: [(folder / name.replace("_", ".")).write_text(text) for name, text in contents.items()]


# --- damage: each function changes the folder of a trained run


@of_folder
def edit_record(run, change):
    document = json.loads((run / "record.json").read_text())
    change(document)
    (run / "record.json").write_text(json.dumps(document))


def update_record(**fields):
    return edit_record(lambda document: document.update(fields))


def set_config(key, value, **fields):
    """Change a setting of the record's configuration, and fields of the record; ... deletes the setting."""
    return edit_record(lambda document: document.update(edited(document, {f"config.{key}": value}) | fields))


@of_folder
def replace_content(run, name, new):
    """`new`: bytes, text, or a function of the old bytes."""
    path = run / name
    path.write_bytes(new(path.read_bytes()) if callable(new) else new.encode() if isinstance(new, str) else new)


@of_folder
def replace_by_file(run, name):
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).write_text("x")


@of_folder
def replace_by_link(run, *names):
    """Replace files by links to a private file."""
    victim = run.parent / "victim"
    victim.write_text("".join(f"precious {number}\n" for number in range(24)))
    for path in [path for name in names for path in run.glob(name)] or [run / names[0]]:
        path.unlink(missing_ok=True)
        path.symlink_to(victim)


@of_folder
def edit_checkpoints(run, change, names="*.ckpt"):
    """Load, change and save checkpoints."""
    for path in (run / "checkpoints").glob(names):
        loaded = torch.load(path, weights_only=True)
        torch.save(change(loaded) or loaded, path)


@of_folder
def replace_checkpoints(run, new):
    """Replace every checkpoint: `new` is a function of the old bytes, or an object to save with torch."""
    for path in (run / "checkpoints").glob("*.ckpt"):
        path.write_bytes(new(path.read_bytes())) if callable(new) else torch.save(new, path)


PICKLED = replace_checkpoints(lambda old: pickle.dumps(Pwned()))
PICKLED_BY_TORCH = replace_checkpoints({"state_dict": {}, "callbacks": Pwned()})


def resize_weights(loaded):
    loaded["state_dict"] = {name: torch.zeros(3, *weight.shape) for name, weight in loaded["state_dict"].items()}


def replace_vocabulary(run):
    (run / "vocabulary.model").unlink()
    Vocabulary.learn(count_words([" ".join(pair) for pair in PAIRS]), 60).save(run / "vocabulary.model")


def interrupt(run):
    """Make it a run that was killed after its second checkpoint."""
    update_record(status="running")(run)
    (run / "checkpoints" / "step00000008.ckpt").unlink()


def all_of(*damages):
    return lambda run: [damage(run) for damage in damages]
