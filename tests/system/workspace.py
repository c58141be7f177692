"""A folder in which a command is hit by a fault, with its state before, and after the command without the fault."""

import os
import shutil
from pathlib import Path

from tests.data.helpers import write_lines
from tests.system.faults import CommandResult, Fault, ForkServer

TRAINING = (
    "optim.max_steps=4", "optim.warmup_steps=4", "optim.checkpoint_every_n_steps=2", "optim.validate_every_n_steps=4",
    "evaluation.test_splits=[test]", "position.clip_distance=3",
    "position.tables=shared_by_heads",  # CTranslate2 supports no others
)  # fmt: skip
NAMES = (
    "prepare", "prepare files", "evaluate", "export safetensors", "export ctranslate2", "report",
    "report run", "translate",
)  # fmt: skip
UNFINISHED = (".tmp", ".old", ".partial", ".part")  # suffixes of temporary files and folders
KEPT = (
    ".partial",  # a build that is resumed
    ".part",  # the first lines of a translation
    ".old",  # a replaced folder, partly removed; the next command removes the rest
)  # fmt: skip

Snapshot = dict[str, bytes | None]  # every path below a folder with its content; None: a folder


class Workspace:
    """A trained run, a corpus and a text to translate; with `overwrite` also an earlier result of the command."""

    def __init__(self, folder: Path, tiny: tuple[str, ...], server: ForkServer) -> None:
        self.home, self._kept, self.server = folder / "home", folder / "kept", server
        self.home.mkdir()
        self._kept.mkdir()
        in_txt, out_txt, corpus = (self.home / name for name in ("in.txt", "out.txt", "corpus"))
        threads, cache = "hardware.threads=1", f"data.cache_dir={self.home / 'cache'}"
        runs, reports = f"runs_dir={self.home / 'runs'}", f"output_dir={self.home / 'reports'}"
        done = self.command(["train", *tiny, *TRAINING, threads, cache, runs])
        assert done.code == 0, done.err
        (self.run_dir,) = (path.parent for path in self.home.glob("runs/*/record.json"))
        in_txt.write_text("".join(f"Line {number} of a text.\n" for number in range(1, 31)))
        for split, number in (("train", 400), ("validation", 8), ("test", 8)):
            rows = [f"{split} {index % 37} {index * index % 41}" for index in range(number)]
            write_lines(corpus / split, [(f"en {row}", f"de {row}") for row in rows])
        of_run = [f"run={self.run_dir}", threads]
        synthetic = [word for word in tiny if word.startswith("data.")]
        files = ["data=multi30k_en_de", f"data.path={corpus}", "data.vocabulary_size=100"]
        prepared = f"data.cache_dir={self.home / 'prepared'}"
        export, of_last = ["export", *of_run, "sentences=4"], "average_checkpoints=1"
        report = ["report", runs, reports]
        in_and_out = ["--", str(in_txt), str(out_txt)]
        # The words of each command, and what is added for the new and for the earlier result.
        commands: dict[str, tuple[list[str], list[str], list[str]]] = {
            "prepare": (["prepare", *synthetic, prepared], [], []),
            "prepare files": (["prepare", *files, prepared], [], []),
            "evaluate": (["evaluate", *of_run, of_last, "beam_size=2"], ["splits=[test]"], ["splits=[long]"]),
            "export safetensors": ([*export, "format=safetensors"], [], [of_last]),
            "export ctranslate2": ([*export, "format=ctranslate2"], [], [of_last]),
            "report": (report, [], ["title=Earlier"]),
            "report run": (["report", *of_run], ["validation_sentences=4"], ["validation_sentences=2"]),
            "translate": (
                ["translate", *of_run, "beam_size=2", "lines_per_batch=4"], in_and_out, ["beam_size=1", *in_and_out]
            ),
        }  # fmt: skip
        self.arguments = {name: [*words, *new] for name, (words, new, _) in commands.items()}
        self._earlier = {name: [*words, *earlier] for name, (words, _, earlier) in commands.items()}
        self._states: dict[tuple[str, bool], Path] = {}
        self._expected: dict[tuple[str, bool], tuple[Snapshot, CommandResult]] = {}
        self.home.rename(self._kept / "new")

    def command(self, arguments: list[str], fault: Fault | None = None) -> CommandResult:
        return self.server.run(arguments, self.home, fault)

    def restore(self, name: str, overwrite: bool) -> Snapshot:
        """Reset the folder to its state before the command."""
        if (name, overwrite) not in self._states:
            self._states[name, overwrite] = self._kept / "new"
            if overwrite:
                self.restore(name, False)
                done = self.command(self._earlier[name])
                assert done.code == 0, done.err
                for file in self.home.glob("prepared/*/train.*.pieces"):  # only a damaged cache is rebuilt
                    os.truncate(file, 10)
                self._states[name, overwrite] = self._kept / f"overwrite {name}"
                self.home.rename(self._states[name, overwrite])
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self._states[name, overwrite], self.home)
        return self.snapshot()

    def expected(self, name: str, overwrite: bool) -> tuple[Snapshot, CommandResult]:
        """The folder after the command without a fault, and its result."""
        if (name, overwrite) not in self._expected:
            self.restore(name, overwrite)
            done = self.command(self.arguments[name])
            assert done.code == 0, done.err
            assert not temporary_files(self.snapshot(), ())
            self._expected[name, overwrite] = self.snapshot(), done
        return self._expected[name, overwrite]

    def assert_contains(self, expected: Snapshot, where: object) -> None:
        found = self.snapshot()
        differing = {key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)}
        assert found == expected, (differing, where)

    def snapshot(self) -> Snapshot:
        paths = {str(path.relative_to(self.home)): path for path in self.home.rglob("*")}
        return {name: None if path.is_dir() else path.read_bytes() for name, path in paths.items()}


def temporary_files(found: Snapshot, allowed: tuple[str, ...]) -> list[str]:
    """Names of temporary files, except those with an allowed suffix."""
    return [name for name in found if name.endswith(UNFINISHED) and not name.endswith(allowed or "\0")]


def assert_no_partial_files(before: Snapshot, found: Snapshot, expected: Snapshot) -> None:
    """Each final name has its old or its new content; a folder that is replaced as a whole is all old or all new."""
    temporary = [name for name in found if any(part.endswith(UNFINISHED) for part in name.split("/"))]
    final = {name: found[name] for name in found.keys() - temporary}
    for name, content in final.items():
        assert name in before or name in expected, name
        assert content in [state[name] for state in (before, expected) if name in state], name
    for name in expected:
        if name.startswith("prepared/") or "/exports/" in name:
            folder = "/".join(name.split("/")[: 2 if name.startswith("prepared/") else 4])
            parts = [{key: state[key] for key in state if key.startswith(f"{folder}/")} for state in (before, expected)]
            assert {key: final[key] for key in final if key.startswith(f"{folder}/")} in [{}, *parts], folder
