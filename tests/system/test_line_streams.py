"""rpr.commands.line_streams: batching and reading ahead of pipes and files, and output files without partial lines."""

import os
import threading
import time

import pytest

from rpr.commands import line_streams
from rpr.commands.line_streams import DescriptorOutput, FileOutput, LineReader, count_lines
from rpr.errors import DataError


@pytest.fixture
def pipe():
    """The reading end of a pipe, and functions to write to and close the other end."""
    reading, writing = os.pipe()
    open_ends = {reading, writing}

    def write(content):
        os.write(writing, content)

    def close():
        open_ends.discard(writing)
        os.close(writing)

    yield reading, write, close
    for end in open_ends:
        os.close(end)


def batches_of_file(path, content, max_lines):
    path.write_bytes(content)
    with path.open("rb") as file:
        return list(LineReader(file.fileno(), "input", max_lines).batches())


def test_reader_yields_available_lines_without_waiting(pipe):
    reading, write, close = pipe
    batches = LineReader(reading, "input", 4).batches()
    write(b"one\n")
    assert next(batches) == [b"one"]
    write(b"two\nthree\nfo")
    assert next(batches) == [b"two", b"three"]
    write(b"ur\n" + b"more\n" * 5)
    assert next(batches) == [b"four", b"more", b"more", b"more"]
    assert next(batches) == [b"more", b"more"]
    write(b"last")
    close()
    assert list(batches) == [[b"last"]]


def test_reader_waits_for_end_of_line(pipe):
    reading, write, close = pipe
    write(b"be")
    later = threading.Timer(0.1, lambda: (write(b"gun\n"), close()))
    later.start()
    assert list(LineReader(reading, "input", 4).batches()) == [[b"begun"]]
    later.join()


def test_reader_batches_rapid_writes(pipe):
    reading, write, close = pipe
    later = threading.Thread(target=lambda: ([write(b"line\n") for _ in range(50)], close()))
    later.start()
    batches = list(LineReader(reading, "input", 1000).batches())
    later.join()
    assert sum(map(len, batches)) == 50 and len(batches) < 25


def test_batches_of_file_are_full(tmp_path):
    lines = [f"line {number} ".encode() * 20 for number in range(2500)]  # several chunks
    batches = batches_of_file(tmp_path / "in", b"\n".join(lines), 600)
    assert [len(batch) for batch in batches] == [600, 600, 600, 600, 100]
    assert [line for batch in batches for line in batch] == lines


def test_batch_size_is_limited_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(line_streams, "MAX_BATCH_BYTES", 1000)
    content = b"\n".join([b"a" * 400, b"b" * 400, b"c" * 400, b"d" * 5000, b"e", b"f"])
    assert [len(batch) for batch in batches_of_file(tmp_path / "in", content, 600)] == [2, 1, 1, 2]


def test_reader_reads_little_ahead_of_endless_input():
    """The writer gets no further than the batches taken, the pipe and a chunk."""
    reading, writing = os.pipe()
    written = 0

    def write_on():
        nonlocal written
        try:
            while True:
                written += os.write(writing, b"0123456\n" * 512)
        except BrokenPipeError:
            return

    writer = threading.Thread(target=write_on)
    writer.start()
    batches = LineReader(reading, "input", 100).batches()
    for _ in range(20):
        assert len(next(batches)) == 100
    time.sleep(0.2)
    assert written <= 20 * 800 + 3 * line_streams.CHUNK_BYTES
    os.close(reading)
    writer.join()
    os.close(writing)


def test_line_over_size_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(line_streams, "MAX_LINE_BYTES", 2**20)
    assert batches_of_file(tmp_path / "in", b"a\n" + b"b" * 2**20, 10) == [[b"a"], [b"b" * 2**20]]
    with pytest.raises(DataError, match="^input: line 2 has more than 1 MiB; give text with one sentence per line$"):
        batches_of_file(tmp_path / "in", b"a\n" + b"b" * (2**20 + 1), 10)


def test_count_lines_starts_at_file_position(tmp_path, pipe):
    (tmp_path / "in").write_bytes(b"a\nb\x0b\x85\r\nc")
    with (tmp_path / "in").open("rb", buffering=0) as file:
        assert file.readline() == b"a\n"
        assert count_lines(file.fileno()) == 2 and file.read() == b"b\x0b\x85\r\nc"
    assert count_lines(pipe[0]) is None


def test_output_file_appears_when_finished(tmp_path):
    path = tmp_path / "out"
    path.write_text("earlier")
    (tmp_path / "out.part").write_text("of an earlier one, and longer than what comes now")
    output = FileOutput(path)
    assert (tmp_path / "out.part").read_text().startswith("of an earlier one")
    output.write(b"one\n")
    output.write(b"two\n")
    assert (path.read_text(), (tmp_path / "out.part").read_text()) == ("earlier", "one\ntwo\n")
    output.finish()
    assert path.read_text() == "one\ntwo\n" and os.listdir(tmp_path) == ["out"]
    FileOutput(path).finish()  # without any lines
    assert path.read_text() == ""


def test_failed_finish_keeps_part_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    output = FileOutput(tmp_path / "out")
    output.write(b"one\n")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"^output .*out: cannot be written \(No space left on device\); see .*\.part$"):
        output.finish()
    assert os.listdir(tmp_path) == ["out.part"] and (tmp_path / "out.part").read_bytes() == b"one\n"


def test_second_writer_of_same_file_is_refused(tmp_path):
    first = FileOutput(tmp_path / "out")
    first.write(b"one\n")
    with pytest.raises(DataError, match=r"^output: another process is writing .*out\.part; wait for it"):
        FileOutput(tmp_path / "out")
    first.finish()
    second = FileOutput(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"one\n"
    second.write(b"two\n")
    second.finish()
    assert (tmp_path / "out").read_bytes() == b"two\n" and not (tmp_path / "out.part").exists()


def test_abandoned_output_ends_with_whole_line(tmp_path, monkeypatch):
    output = FileOutput(tmp_path / "out")
    output.write(b"one\ntwo\n")
    real = os.write

    def full(descriptor, content):
        if len(content) < 8:
            raise OSError(28, "No space left on device")
        return real(descriptor, content[:5])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataError, match=r"out\.part: cannot be written \(No space left on device\)$"):
        output.write(b"three\nfour\n")
    monkeypatch.undo()
    assert (tmp_path / "out.part").read_bytes() == b"one\ntwo\nthree"
    assert output.give_up() == f" in {tmp_path / 'out.part'}; {tmp_path / 'out'} was not written"
    assert (tmp_path / "out.part").read_bytes() == b"one\ntwo\n" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("earlier", [None, "lines of an earlier process\n"])
def test_output_abandoned_before_first_line_changes_nothing(tmp_path, earlier):
    part = tmp_path / "out.part"
    if earlier is not None:
        part.write_text(earlier)
    assert FileOutput(tmp_path / "out").give_up() == ""
    assert (part.read_text() if part.exists() else None) == earlier


def test_full_disk_is_an_error():
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(DataError, match=r"^output: cannot be written \(No space left on device\)$"):
        DescriptorOutput(full).write(b"a\n")
    os.close(full)
