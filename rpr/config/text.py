"""The typed configuration of a corpus of documents, for language models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rpr.validation import StrictModel

NUM_BYTE_PIECES = 260  # of data.tokenizer=bytes: 256 and the special pieces


class TextConfig(StrictModel):
    """Documents instead of pairs: of Python's standard library, or read from data.path or data.hub.

    `column` has the documents of a table, one in each row, or the lines of one document. Training windows are cut from
    one stream of all documents, with EOS between them, or each from one document.
    """

    python_library: bool
    column: str = Field(min_length=1)
    rows: Literal["documents", "lines"]
    windows: Literal["stream", "documents"]
