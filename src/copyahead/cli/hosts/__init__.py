"""Commands that run another engine, with copyahead inside it.

vllm_check  `copyahead vllm-check`: vLLM with each of its ways to draft
"""
