"""Malformed and malicious files: sweep files, choices, and damage of runs: functions that change a run's folder."""

import json
import os
import pickle
import shutil

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
    "pytag": 'jobs: !!python/object/apply:os.system ["touch pwned"]',
}
WHO, DOES, WHAT = (
    ("Anna", "Bernd", "Claus", "Dora", "Edwin"),
    ("sees", "hears", "likes", "knows"),
    ("dog", "cat", "fox"),
)
LINES = "".join(f"{who} {does} the {what} .\n" for who in WHO for does in DOES for what in WHAT)  # of a corpus


class Pwned:
    """Unpickling it creates the file `pwned`."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


def write_bad_files(here, model):
    """Write all of them into a folder; `model` is the text of a file of conf/model/."""
    texts = {f"{name}.yaml": f"{text}\n" for name, text in SWEEPS.items()}
    texts |= {"file": "x", "in.txt": "a b\nc\n", "dir/.empty": "", "hidden/model/tiny.yaml": model}
    texts["confdir/model/evil.yaml"] = f"{model}\n_target_: os.system\ncommand: touch pwned\n"
    for name, text in texts.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)


def edit_record(change):
    """`change` gets the record as a document."""

    def damage(run):
        document = json.loads((run / "record.json").read_text())
        change(document)
        (run / "record.json").write_text(json.dumps(document))

    return damage


def update_record(**fields):
    return edit_record(lambda document: document.update(fields))


def set_config(key, value, **fields):
    """Change a setting of the record's configuration, and fields of the record; ... deletes the setting."""
    return edit_record(lambda document: document.update(edited(document, {f"config.{key}": value}) | fields))


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


def replace_checkpoints(new):
    """`new`: a function of the old bytes, or an object to save with torch."""

    def damage(run):
        for path in (run / "checkpoints").glob("*.ckpt"):
            path.write_bytes(new(path.read_bytes())) if callable(new) else torch.save(new, path)

    return damage


PICKLED = replace_checkpoints(lambda old: pickle.dumps(Pwned()))
PICKLED_BY_TORCH = replace_checkpoints({"state_dict": {}, "callbacks": Pwned()})


def resize_weights(names="*.ckpt"):
    def damage(run):
        for path in (run / "checkpoints").glob(names):
            loaded = torch.load(path, weights_only=True)
            weights = {name: torch.zeros(3, *weight.shape) for name, weight in loaded["state_dict"].items()}
            torch.save(loaded | {"state_dict": weights}, path)

    return damage


def replace_vocabulary(run):
    (run / "vocabulary.model").unlink()
    Vocabulary.learn(count_words([LINES]), 50).save(run / "vocabulary.model")


def remove_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


def interrupt(run):
    """Make it a run that was killed after its second checkpoint."""
    update_record(status="running")(run)
    (run / "checkpoints" / "step00000008.ckpt").unlink()


def all_of(*damages):
    return lambda run: [damage(run) for damage in damages]
