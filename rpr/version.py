"""The version of this package; a leaf, which any module may import."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("rpr")
except PackageNotFoundError:  # a bare checkout that was never installed
    __version__ = "0+unknown"
