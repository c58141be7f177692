"""A folder in which a command is hit by a fault: as it was before, as it is, and as it would be without the fault."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.system.faults import Ended, Fault, Starter

TRAINING = (
    "optim.max_steps=4",
    "optim.warmup_steps=4",
    "optim.checkpoint_every_n_steps=2",
    "optim.validate_every_n_steps=4",
    "evaluation.test_splits=[test]",
    "position.tables=shared_by_heads",  # the ones that CTranslate2 can hold
    "position.clip_distance=3",
)
NAMES = (
    "prepare", "prepare files", "evaluate", "export safetensors", "export ctranslate2", "report", "report results",
    "report run", "translate",
)  # fmt: skip
UNFINISHED = (".tmp", ".old", ".partial", ".part")  # how names end that are not final
KEPT = (
    ".partial",  # a build goes on there
    ".part",  # the first lines of a translation
    ".old",  # what gives way to the new: half removed, and gone with the next command
)  # fmt: skip

Snapshot = dict[str, bytes | None]  # every path below a folder with its content; None: a folder


class World:
    """A folder in which a command is at work, as it was before: a trained run, a corpus, a text to translate; and,
    `again`, an earlier result in the place of the new one.
    """

    def __init__(self, folder: Path, tiny: tuple[str, ...], starter: Starter) -> None:
        self.home, self._kept, self.starter = folder / "home", folder / "kept", starter
        self.home.mkdir()
        self._kept.mkdir()
        in_txt, out_txt, corpus = (self.home / name for name in ("in.txt", "out.txt", "corpus"))
        threads, cache = "hardware.threads=1", f"data.cache_dir={self.home / 'cache'}"
        runs, reports = f"runs_dir={self.home / 'runs'}", f"output_dir={self.home / 'reports'}"
        done = self.command(["train", *tiny, *TRAINING, threads, cache, runs])
        assert done.code == 0, done.err
        (self.run_dir,) = (path.parent for path in self.home.glob("runs/*/record.json"))
        in_txt.write_text("".join(f"Line {number} of a text.\n" for number in range(1, 31)))
        corpus.mkdir()
        for split, number in (("train", 400), ("validation", 8), ("test", 8)):
            for side in ("en", "de"):
                file = corpus / f"{split}.{side}"
                file.write_text(
                    "".join(f"{side} {split} {index % 37} {index * index % 41}\n" for index in range(number))
                )
                os.utime(file, (1e9, 1e9))  # of long ago, so that its digest is remembered
        of_run = [f"run={self.run_dir}", threads]
        synthetic = [word for word in tiny if word.startswith("data.")]
        files = ["data=multi30k_en_de", f"data.path={corpus}", "data.vocabulary_size=100"]
        prepared = f"data.cache_dir={self.home / 'prepared'}"
        evaluate = ["evaluate", *of_run, "average_checkpoints=1", "beam_size=2"]
        report = ["report", runs, reports]
        results = [*report, f"results_page={self.home / 'RESULTS.md'}"]
        of_positions = ["report", *of_run]
        translate = ["translate", *of_run, "beam_size=2", "lines_per_batch=4"]
        self.arguments = {
            "prepare": ["prepare", *synthetic, prepared],
            "prepare files": ["prepare", *files, prepared],
            "evaluate": [*evaluate, "splits=[test]"],
            "export safetensors": ["export", *of_run, "sentences=4", "format=safetensors"],
            "export ctranslate2": ["export", *of_run, "sentences=4", "format=ctranslate2"],
            "report": report,
            "report results": results,
            "report run": [*of_positions, "validation_sentences=4"],
            "translate": [*translate, "--", str(in_txt), str(out_txt)],
        }
        self._earlier = {
            **self.arguments,
            "evaluate": [*evaluate, "splits=[long]"],
            "export safetensors": ["export", *of_run, "sentences=4", "format=safetensors", "average_checkpoints=1"],
            "export ctranslate2": ["export", *of_run, "sentences=4", "format=ctranslate2", "average_checkpoints=1"],
            "report": [*report, "title=Earlier"],
            "report results": [*results, "title=Earlier"],
            "report run": [*of_positions, "validation_sentences=2"],
            "translate": [*translate, "n_best=2", "--", str(in_txt), str(out_txt)],
        }
        self._states: dict[tuple[str, bool], Path] = {}
        self._expected: dict[tuple[str, bool], tuple[Snapshot, Ended]] = {}
        self.home.rename(self._kept / "new")

    def command(self, arguments: list[str], fault: Fault | None = None) -> Ended:
        return self.starter.run(arguments, self.home, fault)

    def restore(self, name: str, again: bool) -> Snapshot:
        """The folder as it is before the command."""
        if (name, again) not in self._states:
            self._states[name, again] = self._kept / "new"
            if again:
                self.restore(name, False)
                done = self.command(self._earlier[name])
                assert done.code == 0, done.err
                for file in self.home.glob("prepared/*/train.*.pieces"):  # a cache is made again when it is damaged
                    os.truncate(file, 10)
                self._states[name, again] = self._kept / f"again {name}"
                self.home.rename(self._states[name, again])
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self._states[name, again], self.home)
        return self.now()

    def expected(self, name: str, again: bool) -> tuple[Snapshot, Ended]:
        """The folder after the command that was left alone, and how that ended."""
        if (name, again) not in self._expected:
            self.restore(name, again)
            done = self.command(self.arguments[name])
            assert done.code == 0, done.err
            assert not left_over(self.now(), ())
            self._expected[name, again] = self.now(), done
        return self._expected[name, again]

    def now(self) -> Snapshot:
        paths = {str(path.relative_to(self.home)): path for path in self.home.rglob("*")}
        return {name: None if path.is_dir() else path.read_bytes() for name, path in paths.items()}


def left_over(found: Snapshot, allowed: tuple[str, ...]) -> list[str]:
    """Names that are not final, nor of a kind that is allowed to stay."""
    return [name for name in found if name.endswith(UNFINISHED) and not name.endswith(allowed or "\0")]


def assert_whole(before: Snapshot, found: Snapshot, expected: Snapshot) -> None:
    """Under each final name lies the old content or the new one, and in a folder that is put in its place as a whole
    all of it is old or all of it new.
    """
    final = {
        name: content
        for name, content in found.items()
        if not any(part.endswith(UNFINISHED) for part in name.split("/"))
    }
    for name, content in final.items():
        assert name in before or name in expected, name
        if name.endswith("/digests.json"):  # grows by a file of the corpus at a time
            assert json.loads(content or b"").items() <= json.loads(expected[name] or b"").items()
            continue
        assert content in [state[name] for state in (before, expected) if name in state], name
    for name in expected:
        if name.startswith("prepared/") or "/exports/" in name:
            folder = "/".join(name.split("/")[: 2 if name.startswith("prepared/") else 4])
            parts = [{key: state[key] for key in state if key.startswith(f"{folder}/")} for state in (before, expected)]
            assert {key: final[key] for key in final if key.startswith(f"{folder}/")} in [{}, *parts], folder
