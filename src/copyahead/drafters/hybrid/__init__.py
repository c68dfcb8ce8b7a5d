"""Copies beside a draft model.

drafter   whose passes run, and who pays for them
session   one request's, and what it learns
"""

from copyahead.drafters.hybrid.drafter import HybridDrafter
from copyahead.drafters.hybrid.session import HybridSession

__all__ = ["HybridDrafter", "HybridSession"]
