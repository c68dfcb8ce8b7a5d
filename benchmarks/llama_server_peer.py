"""llama.cpp's own server, from the wheel `xllamacpp`, in a process of its own.

Prints its address as one line of JSON, and runs until its standard input closes. Runs in the
peers' environment, which has no copyahead: it imports nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys

import xllamacpp as peer

KV_TYPES = {"f16": "GGML_TYPE_F16", "bf16": "GGML_TYPE_BF16", "q8_0": "GGML_TYPE_Q8_0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--mode", default="none", help="none, or an n-gram mode: simple, mod, ...")
    parser.add_argument("--kv-type", default="q8_0", choices=sorted(KV_TYPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--parallel", type=int, default=1)
    arguments = parser.parse_args()
    params = peer.CommonParams()
    params.model.path = arguments.model
    params.n_ctx = arguments.ctx * arguments.parallel
    params.n_parallel = arguments.parallel
    params.kv_unified = True
    params.cpuparams.n_threads = arguments.threads
    params.cpuparams_batch.n_threads = arguments.threads
    params.cache_type_k = params.cache_type_v = getattr(peer.ggml_type, KV_TYPES[arguments.kv_type])
    params.flash_attn_type = peer.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.verbosity = 0
    if arguments.mode != "none":
        kind = f"COMMON_SPECULATIVE_TYPE_NGRAM_{arguments.mode.upper()}"
        params.speculative.types = [getattr(peer.common_speculative_type, kind)]
    server = peer.Server(params)
    print(json.dumps({"address": server.listening_address}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
