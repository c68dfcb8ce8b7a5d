"""Models that are already on this machine, found by name. Nothing is downloaded.

entry     one model that was found, and the files that make it up
folders   LM Studio, Hugging Face, llama.cpp, folders that the user names, the bundled model
ollama    Ollama, whose files have hashes for names
names     from what somebody typed to a model
"""

from __future__ import annotations

from copyahead.loading.catalog.entry import Entry
from copyahead.loading.catalog.names import find_named, scan, unknown

__all__ = ["Entry", "find_named", "scan", "unknown"]
