"""Other models out of the bundled one: quantised again by llama.cpp, or cut to a few layers."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import gguf

QUANTIZATIONS = {"Q4_0": 2, "Q8_0": 7, "Q2_K": 10, "Q4_K_M": 15, "Q6_K": 18}
"""Numbers of `enum llama_ftype`."""


def quantized(source: Path, kind: str, target: Path) -> Path:
    """`source` again in another quantisation."""
    from copyahead.backends.llama_cpp.library import library

    llama = library()
    params = llama.llama_model_quantize_default_params()
    params.ftype = QUANTIZATIONS[kind]
    params.allow_requantize = True
    params.nthread = 2
    status = llama.llama_model_quantize(
        os.fsencode(source), os.fsencode(target), ctypes.byref(params)
    )
    assert status == 0
    return target


def with_layers(source: Path, layers: int, target: Path) -> Path:
    """The first `layers` layers of `source`: nearly free to run, and nearly always wrong."""
    reader: Any = gguf.GGUFReader(str(source))
    architecture = reader.get_field("general.architecture").contents()
    writer: Any = gguf.GGUFWriter(str(target), architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = layers if name == f"{architecture}.block_count" else field.contents()
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=element)
    for tensor in reader.tensors:
        place = tensor.name.split(".")
        if place[0] != "blk" or int(place[1]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
