"""Causal language models of transformers, run from a folder. Importing this loads no torch.

backend    the model behind `contracts.Backend`
load       settings in, a model in memory
abilities  what a loaded model can do, by trying it
packed     ragged rows of several sequences in one pass
attention  what keeps them apart there
apart      a call for each sequence, for models that cannot have that
cache      which caches of transformers can be taken back, and how; of use beyond this backend
sampler    transformers' own logits processors
tokenizer  the folder's `tokenizer.json`
folder     its other files
"""
