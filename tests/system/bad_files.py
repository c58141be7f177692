"""Malformed and malicious files: sweep files, choices, and damage of runs: functions that change a run's folder."""

import json
import os
import pickle
import shutil

import torch

from rpr.data.vocabulary import Vocabulary, count_words
from tests.fake_records import edited

FILES = {
    "ok.yaml": 'jobs: ["seed=1,2"]',
    "tab.yaml": "jobs:\n\t- seed=1",
    "bomb.yaml": "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\njobs: [*c]",
    "badgram.yaml": 'jobs: ["seed=[1"]',
    "environment.yaml": "overrides: [+hydra.job.env_set.PYTHONPATH=evil]\njobs: [seed=1]",
    "target.yaml": "_target_: os.system\njobs: [seed=1]",
    "pytag.yaml": 'jobs: !!python/object/apply:os.system ["touch pwned"]',
    "file": "x",
    "in.txt": "a b\nc",
    "dir/.empty": "",
}
WORDS = (("Anna", "Bernd", "Claus", "Dora", "Edwin"), ("sees", "hears", "likes", "knows"), ("dog", "cat", "fox"))
LINES = "".join(f"{who} {does} the {what} .\n" for who in WORDS[0] for does in WORDS[1] for what in WORDS[2])


class Pwned:
    """Unpickling it creates the file `pwned`."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


def write_bad_files(here, model):
    """Write all of them into a folder; `model` is the text of a file of conf/model/."""
    evil = f"{model}\n_target_: os.system\ncommand: touch pwned"
    for name, text in (FILES | {"hidden/model/tiny.yaml": model, "confdir/model/evil.yaml": evil}).items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(f"{text}\n")


def update_record(**edits):
    """Other values at dotted keys of the record; ... deletes one."""

    def damage(run):
        path = run / "record.json"
        path.write_text(json.dumps(edited(json.loads(path.read_text()), edits)))

    return damage


def set_config(key, value, **fields):
    """Change a setting of the record's configuration, and fields of the record."""
    return update_record(**{f"config.{key}": value} | fields)


def replace_content(name, new):
    """`new`: text, or a function of the old bytes."""

    def damage(run):
        path = run / name
        path.write_bytes(new(path.read_bytes()) if callable(new) else new.encode())

    return damage


def replace_by_link(*names):
    """Replace files by links to a private file."""

    def damage(run):
        victim = run.parent / "victim"
        victim.write_text("".join(f"precious {number}\n" for number in range(24)))
        for path in [path for name in names for path in run.glob(name)] or [run / names[0]]:
            path.unlink(missing_ok=True)
            path.symlink_to(victim)

    return damage


def replace_checkpoints(new, names="*.ckpt"):
    """`new`: what to save instead, from the file's path; bytes, or an object for torch."""

    def damage(run):
        for path in (run / "checkpoints").glob(names):
            content = new(path)
            path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)

    return damage


def with_another_byte(path):
    content = bytearray(path.read_bytes())
    content[300] ^= 255  # of its pickle
    return bytes(content)


def _resized(path):
    loaded = torch.load(path, weights_only=True)
    weights = {name: torch.zeros(3, *weight.shape) for name, weight in loaded["state_dict"].items()}
    return loaded | {"state_dict": weights}


def resize_weights(names="*.ckpt"):
    return replace_checkpoints(_resized, names)


PICKLED = replace_checkpoints(lambda path: pickle.dumps(Pwned()))
PICKLED_BY_TORCH = replace_checkpoints(lambda path: {"state_dict": {}, "callbacks": Pwned()})


def replace_vocabulary(run):
    (run / "vocabulary.model").unlink()
    Vocabulary.learn(count_words([LINES]), 50).save(run / "vocabulary.model")


def remove_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


def all_of(*damages):
    return lambda run: [damage(run) for damage in damages]
