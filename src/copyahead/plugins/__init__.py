"""Drafts for hosts that own the loop.

transformers/  `model.generate(..., custom_generate=copyahead.generate)`, and drafts for its
               assisted decoding
llama_cpp      drafts for llama-cpp-python's high-level class
by_content     drafts for a hook that shows token ids and no request
vllm/  a proposer for vLLM's `custom_class`, and a plugin that stands beside its own drafters
"""
