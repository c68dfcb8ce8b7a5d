"""How much of a copy to try: one small state machine a request, chosen by name."""

from copyahead.policies.registry import (
    PolicyChoice,
    PolicyDescription,
    describe,
    parse_policy,
    policy_names,
)

__all__ = ["PolicyChoice", "PolicyDescription", "describe", "parse_policy", "policy_names"]
