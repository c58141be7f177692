"""Fake run records for the tests of this folder."""

from tests.fake_records import by_length, document, interval, make, score

__all__ = ["by_length", "document", "interval", "make", "score"]
