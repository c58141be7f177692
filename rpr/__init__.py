"""rpr: experiments on position representations in Transformers, after Shaw, Uszkoreit and Vaswani (2018)."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("rpr")
except PackageNotFoundError:  # a bare checkout that was never installed
    __version__ = "0+unknown"
