"""The version of this library, which hubs say of themselves."""

__version__ = "0.1.0"
