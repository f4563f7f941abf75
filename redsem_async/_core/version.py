"""The version of this library, as hubs report it."""

__version__ = "0.1.0"
