"""The typed configuration of a corpus, of sentence pairs or of documents for language models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt

from rpr.data.generated import AnyTask
from rpr.data.generated import SyntheticConfig as SyntheticConfig
from rpr.errors import Problem
from rpr.kinds import Kind, kind_of
from rpr.validation import Name, StrictModel

NUM_BYTE_PIECES = 260  # of data.tokenizer=bytes: 256 and the special pieces


class TextConfig(StrictModel):
    """Documents instead of pairs: of Python's standard library, or read from data.path or data.hub.

    `column` has the documents of a table, one in each row, or the lines of one document. Training windows are cut from
    one stream of all documents, with EOS between them, or each from one document. In those of `stream_masked` each
    document is read as if it were alone, from position 0 at its start in the window.
    """

    python_library: bool
    column: str = Field(min_length=1)
    rows: Literal["documents", "lines"]
    windows: Literal["stream", "stream_masked", "documents"]


class DataConfig(StrictModel):
    """Where sentence pairs or documents (`text`) come from, and how they become tokens.

    `max_length` is of pairs, `context_length` of the windows that documents are cut into; the other one is None.
    """

    name: Name
    source_language: Name
    target_language: Name
    synthetic: SyntheticConfig | None
    task: AnyTask | None
    text: TextConfig | None
    hub: str | None = Field(min_length=1)
    hub_config: Name | None
    # A folder as completion writes it, with a slash, is the same corpus, and the same run.
    path: Annotated[str, Field(min_length=1), AfterValidator(lambda path: path.rstrip("/") or "/")] | None
    validation_name: str
    test_name: str
    tokenizer: Literal["bpe", "word", "bytes"]
    vocabulary_size: int = Field(ge=5, le=1_000_000)
    max_length: int | None = Field(ge=2)
    context_length: int | None = Field(ge=2)
    train_limit: PositiveInt | None
    cache_dir: str = Field(min_length=1)

    def problems(self) -> Iterator[str | Problem]:
        documents = self.text is not None
        # 1. Lengths and pieces.
        used, unused, kind = ("max_length", "context_length", "pairs")
        if documents:
            used, unused, kind = unused, used, "documents"
        if getattr(self, used) is None or getattr(self, unused) is not None:
            wrong = unused if getattr(self, unused) is not None else used
            yield f"{wrong}: a corpus of {kind} has data.{used}; set it, and data.{unused}=null"
        if self.tokenizer == ("word" if documents else "bytes"):
            choice = "bytes or bpe, which keep every character" if documents else "bpe or word"
            yield Problem("tokenizer", self.tokenizer, f"is not for a corpus of {kind}", f"choose {choice}")
        least = NUM_BYTE_PIECES + 3  # newline and tab besides, and one to learn
        if documents and self.tokenizer == "bpe" and self.vocabulary_size < least:
            yield Problem("vocabulary_size", self.vocabulary_size, f"must be {least} or more, or bpe learns nothing")
        if self.tokenizer == "bytes" and self.vocabulary_size != NUM_BYTE_PIECES:
            yield Problem("vocabulary_size", self.vocabulary_size, f"must be {NUM_BYTE_PIECES} with tokenizer=bytes")
        task_side = self.task.longest_train_side if self.task is not None and self.tokenizer == "word" else 0
        if self.max_length is not None and self.max_length <= task_side:
            yield Problem("max_length", self.max_length, f"drops training pairs, of up to {task_side} tokens")
        # 2. One source of examples.
        library = self.text.python_library if self.text is not None else False
        makers = {"synthetic": self.synthetic, "task": self.task, "text.python_library": library or None}
        made = [key for key, maker in makers.items() if maker is not None]
        read = ["path", "hub", "hub_config", *(() if library else ["text"])]
        sources = [*made, *(key for key in read if getattr(self, key) is not None)]
        if made and len(sources) > 1:
            choice = "choose data=custom or data=text to read data.path"
            yield f"{sources[1]}: the {self.name} corpus is already made by data.{made[0]}; {choice}"
        if not made and self.path is None and self.hub is None:
            files = "a file of documents" if documents else "a pair of line files"
            yield f"path: {self.name} is not on a hub; give a folder or {files} as data.path=..."

    @property
    def kind(self) -> Kind:
        return kind_of(self)

    @property
    def on_hub(self) -> bool:
        """Whether the corpus is read from the Hugging Face hub."""
        return self.hub is not None and self.path is None

    @property
    def generated(self) -> bool:
        """Whether the pairs are generated, not read."""
        return self.synthetic is not None or self.task is not None
