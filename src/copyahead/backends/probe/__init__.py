"""How exact a model is over several rows, and what a pass costs: measured, never assumed.

search    the fastest settings of a GGUF model that are proven exact
folders   the same for the folder of a transformers model
measure   one measurement; of a GGUF model in a process of its own
measured  what a backend must offer for that
ragged    its part with several sequences of unequal rows
cache     what was found, kept on disk
known     what was found before, for a list of models
"""
