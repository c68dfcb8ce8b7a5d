"""Tiny random models of several architectures, written as GGUF files.

Their text is noise; what they are for is the shape of their state: a plain one, one with a
sliding window, one that is recurrent throughout, and a hybrid whose state can be taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

VOCAB = 288
"""3 control tokens, 256 bytes, 13 words, 16 rows of padding."""
REAL_VOCAB = 272
CONTEXT = 2048
EMBED, HEADS, KV_HEADS, HEAD_DIM, FEED, LAYERS = 64, 2, 1, 32, 96, 2
WINDOW = 16

FIM = ("prefix", "suffix", "middle", "repo", "sep", "pad")
"""The first rows of padding, where a model is written that can fill gaps."""

_WORDS = ["▁the", "▁fox", "▁dog", "▁a", "▁in", "▁on", "▁it", "▁is", "ing", "ed", "er", "▁x", "▁"]


class Writer:
    """A GGUF file under way: `field` for its options, `tensor` for random weights."""

    def __init__(
        self,
        path: Path,
        architecture: str,
        seed: int,
        quantized: bool = True,
        last_ids: str = "[PAD{}]",
        fills_gaps: bool = False,
    ) -> None:
        """`last_ids`: how the ids from `REAL_VOCAB` on are spelled, all marked as unused.
        `fills_gaps`: the first of them are tokens for that instead, which the file names."""
        self._gguf: Any = gguf.GGUFWriter(str(path), architecture)
        self._architecture = architecture
        self._quantized = quantized
        self._random = np.random.default_rng(seed)
        self._last_ids = last_ids
        self._fills_gaps = fills_gaps

    def field(self, name: str, value: int | float | list[int]) -> None:
        key = f"{self._architecture}.{name}"
        if isinstance(value, list):
            self._gguf.add_array(key, value)
        elif isinstance(value, float):
            self._gguf.add_float32(key, value)
        else:
            self._gguf.add_uint32(key, value)

    def tensor(self, name: str, *shape: int, scale: float = 0.3) -> None:
        """Random weights; `shape` in the order of ggml, fastest dimension first.

        In Q8_0 where a row fills whole blocks: unlike those of F32, its products do not
        depend on the number of rows.
        """
        values = self._random.normal(0.0, scale, size=shape[::-1]).astype(np.float32)
        if self._quantized and len(shape) > 1 and shape[0] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            self._gguf.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            self._gguf.add_tensor(name, values)

    def ones(self, name: str, *shape: int) -> None:
        self._gguf.add_tensor(name, np.ones(shape[::-1], dtype=np.float32))

    def values(self, name: str, array: Any) -> None:
        self._gguf.add_tensor(name, np.asarray(array, dtype=np.float32))

    def vocabulary(self) -> None:
        bytes_ = [f"<0x{b:02X}>" for b in range(256)]
        pads = [self._last_ids.format(n) for n in range(VOCAB - REAL_VOCAB)]
        kinds = gguf.TokenType
        types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256
        types += [kinds.NORMAL] * len(_WORDS) + [kinds.UNUSED] * len(pads)
        if self._fills_gaps:
            for n, name in enumerate(FIM):
                pads[n], types[REAL_VOCAB + n] = f"<|fim_{name}|>", kinds.CONTROL
                short = name[:3]
                self._gguf.add_uint32(f"tokenizer.ggml.fim_{short}_token_id", REAL_VOCAB + n)
        self._gguf.add_tokenizer_model("llama")
        self._gguf.add_token_list(["<unk>", "<s>", "</s>", *bytes_, *_WORDS, *pads])
        self._gguf.add_token_scores([-float(n) for n in range(VOCAB)])
        self._gguf.add_token_types([int(t) for t in types])
        self._gguf.add_bos_token_id(1)
        self._gguf.add_eos_token_id(2)

    def token_types(self, count: int) -> None:
        self._gguf.add_token_type_count(count)

    def close(self) -> None:
        self._gguf.write_header_to_file()
        self._gguf.write_kv_data_to_file()
        self._gguf.write_tensors_to_file()
        self._gguf.close()


def write_plain(
    path: Path,
    *,
    quantized: bool = True,
    last_ids: str = "[PAD{}]",
    fills_gaps: bool = False,
) -> None:
    """A llama: attention over everything."""
    ids: dict[str, Any] = {"last_ids": last_ids, "fills_gaps": fills_gaps}
    writer = _start(path, "llama", layers=LAYERS, quantized=quantized, **ids)
    writer.field("rope.dimension_count", HEAD_DIM)
    for layer in range(LAYERS):
        _attention(writer, layer)
        writer.ones(f"blk.{layer}.ffn_norm.weight", EMBED)
        _feed_forward(writer, layer)
    writer.close()


def write_sliding_window(path: Path) -> None:
    """A gemma3: most layers see the last `WINDOW` tokens only."""
    layers = 6
    writer = _start(path, "gemma3", layers=layers)
    writer.field("attention.sliding_window", WINDOW)
    for layer in range(layers):
        _attention(writer, layer)
        for norm in ("attn_q_norm", "attn_k_norm"):
            writer.ones(f"blk.{layer}.{norm}.weight", HEAD_DIM)
        for norm in ("post_attention_norm", "ffn_norm", "post_ffw_norm"):
            writer.ones(f"blk.{layer}.{norm}.weight", EMBED)
        _feed_forward(writer, layer)
    writer.close()


def write_recurrent(path: Path) -> None:
    """A mamba: no attention; its state cannot be taken back."""
    inner, state, kernel, rank = 2 * EMBED, 16, 4, 4
    writer = Writer(path, "mamba", seed=3)
    writer.field("context_length", CONTEXT)
    writer.field("embedding_length", EMBED)
    writer.field("feed_forward_length", 0)
    writer.field("attention.head_count", 0)
    writer.field("block_count", LAYERS)
    writer.field("ssm.conv_kernel", kernel)
    writer.field("ssm.inner_size", inner)
    writer.field("ssm.state_size", state)
    writer.field("ssm.time_step_rank", rank)
    writer.field("attention.layer_norm_rms_epsilon", 1e-5)
    _ends(writer)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        writer.ones(block + "attn_norm.weight", EMBED)
        writer.tensor(block + "ssm_in.weight", EMBED, 2 * inner)
        writer.tensor(block + "ssm_conv1d.weight", kernel, inner)
        writer.tensor(block + "ssm_conv1d.bias", inner)
        writer.tensor(block + "ssm_x.weight", inner, rank + 2 * state)
        writer.tensor(block + "ssm_dt.weight", rank, inner)
        writer.tensor(block + "ssm_dt.bias", inner)
        writer.values(block + "ssm_a", -np.tile(np.arange(1.0, state + 1), (inner, 1)))
        writer.ones(block + "ssm_d", inner)
        writer.tensor(block + "ssm_out.weight", inner, EMBED)
    writer.close()


def write_hybrid(path: Path) -> None:
    """A qwen35: three recurrent layers to one of attention; snapshots allow going back."""
    layers, kernel, key_heads, value_heads, state = 4, 4, 2, 2, 32
    inner, conv = value_heads * state, 2 * key_heads * state + value_heads * state
    writer = _start(path, "qwen35", layers=layers)
    writer.field("rope.dimension_count", HEAD_DIM)
    writer.field("rope.dimension_sections", [4, 4, 4, 0])
    writer.field("ssm.conv_kernel", kernel)
    writer.field("ssm.inner_size", inner)
    writer.field("ssm.state_size", state)
    writer.field("ssm.time_step_rank", value_heads)
    writer.field("ssm.group_count", key_heads)
    writer.field("full_attention_interval", 4)
    for layer in range(layers):
        block = f"blk.{layer}."
        if layer % 4 == 3:
            _attention(writer, layer, gated=True)
            for norm in ("attn_q_norm", "attn_k_norm"):
                writer.ones(f"{block}{norm}.weight", HEAD_DIM)
        else:
            writer.ones(block + "attn_norm.weight", EMBED)
            writer.tensor(block + "attn_qkv.weight", EMBED, conv)
            writer.tensor(block + "attn_gate.weight", EMBED, inner)
            writer.tensor(block + "ssm_conv1d.weight", kernel, conv)
            writer.tensor(block + "ssm_dt.bias", value_heads)
            writer.values(block + "ssm_a", -np.ones(value_heads))
            writer.tensor(block + "ssm_beta.weight", EMBED, value_heads)
            writer.tensor(block + "ssm_alpha.weight", EMBED, value_heads)
            writer.ones(block + "ssm_norm.weight", state)
            writer.tensor(block + "ssm_out.weight", inner, EMBED)
        writer.ones(block + "post_attention_norm.weight", EMBED)
        _feed_forward(writer, layer)
    writer.close()


TINY_MODELS: dict[str, Callable[[Path], None]] = {
    "plain": write_plain,
    "sliding_window": write_sliding_window,
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
}


def write_embedding(path: Path) -> None:
    """A bert: it turns a text into a vector, and generates nothing."""
    writer = _start(path, "bert", layers=1)
    writer.field("attention.layer_norm_epsilon", 1e-5)
    writer.token_types(2)
    writer.tensor("token_types.weight", EMBED, 2)
    writer.tensor("position_embd.weight", EMBED, CONTEXT)
    for norm in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        writer.ones(norm + ".weight", EMBED)
        writer.tensor(norm + ".bias", EMBED)
    narrow = KV_HEADS * HEAD_DIM
    widths = {"attn_q": EMBED, "attn_k": narrow, "attn_v": narrow, "attn_output": EMBED}
    for name, width in widths.items():
        writer.tensor(f"blk.0.{name}.weight", EMBED, width)
        writer.tensor(f"blk.0.{name}.bias", width)
    writer.tensor("blk.0.ffn_up.weight", EMBED, FEED)
    writer.tensor("blk.0.ffn_up.bias", FEED)
    writer.tensor("blk.0.ffn_down.weight", FEED, EMBED)
    writer.tensor("blk.0.ffn_down.bias", EMBED)
    writer.close()


def write_unknown(path: Path) -> None:
    """An architecture that no engine knows."""
    _start(path, "perpetuum", layers=1).close()


def _start(
    path: Path,
    architecture: str,
    *,
    layers: int,
    quantized: bool = True,
    last_ids: str = "[PAD{}]",
    fills_gaps: bool = False,
) -> Writer:
    writer = Writer(path, architecture, len(architecture), quantized, last_ids, fills_gaps)
    writer.field("context_length", CONTEXT)
    writer.field("embedding_length", EMBED)
    writer.field("feed_forward_length", FEED)
    writer.field("block_count", layers)
    writer.field("attention.head_count", HEADS)
    writer.field("attention.head_count_kv", KV_HEADS)
    writer.field("attention.key_length", HEAD_DIM)
    writer.field("attention.value_length", HEAD_DIM)
    writer.field("attention.layer_norm_rms_epsilon", 1e-5)
    writer.field("rope.freq_base", 10000.0)
    _ends(writer, generates=architecture != "bert")
    return writer


def _ends(writer: Writer, *, generates: bool = True) -> None:
    writer.vocabulary()
    writer.tensor("token_embd.weight", EMBED, VOCAB, scale=1.0)
    if generates:
        writer.tensor("output.weight", EMBED, VOCAB, scale=0.5)
        writer.ones("output_norm.weight", EMBED)


def _attention(writer: Writer, layer: int, *, gated: bool = False) -> None:
    block = f"blk.{layer}."
    writer.ones(block + "attn_norm.weight", EMBED)
    writer.tensor(block + "attn_q.weight", EMBED, HEADS * HEAD_DIM * (2 if gated else 1))
    writer.tensor(block + "attn_k.weight", EMBED, KV_HEADS * HEAD_DIM)
    writer.tensor(block + "attn_v.weight", EMBED, KV_HEADS * HEAD_DIM)
    writer.tensor(block + "attn_output.weight", HEADS * HEAD_DIM, EMBED)


def _feed_forward(writer: Writer, layer: int) -> None:
    block = f"blk.{layer}."
    writer.tensor(block + "ffn_gate.weight", EMBED, FEED)
    writer.tensor(block + "ffn_up.weight", EMBED, FEED)
    writer.tensor(block + "ffn_down.weight", FEED, EMBED)
