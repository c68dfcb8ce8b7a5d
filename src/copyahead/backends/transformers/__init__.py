"""Causal language models of transformers, run from a folder. Importing this loads no torch.

cache       which caches can be taken back, and how
"""
