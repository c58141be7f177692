"""The version of this package, and of what it writes; a leaf, which any module may import."""

from importlib.metadata import PackageNotFoundError, version

SCHEMA = 3  # of records, and in the ids of runs

try:
    __version__ = version("rpr")
except PackageNotFoundError:  # a bare checkout that was never installed
    __version__ = "0+unknown"
