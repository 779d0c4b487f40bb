"""The version of the package, read by the build and by `esa --version`."""

__version__ = "0.3.0"
