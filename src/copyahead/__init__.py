"""copyahead: prompt-lookup decoding, the same text in fewer passes."""

from copyahead._version import __version__

__all__ = ["__version__"]
