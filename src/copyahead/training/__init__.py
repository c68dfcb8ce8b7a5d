"""Fits the tables that `priced` starts from; no program that serves or replays needs it.

train     from recorded requests to a prior
fitting   its compiled part
"""
