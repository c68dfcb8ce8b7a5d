"""How exact a model is over several rows, and what a pass costs: measured, never assumed.

search    the fastest settings that are proven exact
measure   one measurement, in a process of its own
ragged    its part with several sequences of unequal rows
cache     what was found, kept on disk
"""
