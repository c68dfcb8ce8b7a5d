"""Is the text the same, and is it faster? Measured on the model itself.

workloads   prompts to measure on, made here
compare     plain decoding and lookup side by side, on one prompt
"""
