"""GGUF models, run by llama.cpp. Importing this loads no library: `library` does, when asked.

backend     the model behind `contracts.Backend`
cells       which cells of the KV cache each sequence has, kept in order
states      which recurrent state each sequence has, kept in its place
library     the llama.cpp library in this process, its log, its switches
load        settings in, a model and a context out; what it can do
sampler     llama.cpp's own samplers, one chain a request
threads     fewer of them while other programs use the CPUs
tokenizer   the tokenizer in a GGUF file, with a model or without one
gguf        finding model files, and reading their headers
"""
