"""What could come next: copies from the history, beside another drafter's chain."""

from copyahead.drafters.hybrid import HybridDrafter, HybridSession
from copyahead.drafters.lookup import LookupDrafter, LookupSession

__all__ = ["HybridDrafter", "HybridSession", "LookupDrafter", "LookupSession"]
