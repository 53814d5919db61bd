"""Converts a GGUF file into a Hugging Face folder, in a process of its own. Run as a script.

`squelch/actors/pretrained/gguf_file.py` starts it: the file may come from anybody, its reader is not bounded, and a
converted model's memory is free again once the process has ended. The arguments are the file, an empty folder, and the
bounds: bytes of private memory and seconds of CPU time. On success the last line of standard output is one JSON object
(`architecture`, `quantisation`, `parameters`); on failure the last line of standard error says why.

transformers reads the file and dequantises every tensor to float32. The converted model keeps no trace of the
quantisation in its configuration, so that it is an ordinary model for everybody who loads the folder.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any

PLAIN = ("F32", "F16", "BF16", "F64")
"""Types of tensors that are not quantised."""


def described(file: Path) -> dict[str, Any]:
    """The architecture that the file names, and the type that most of its weights have. ValueError if transformers
    converts no such architecture."""
    from gguf import GGUFReader
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    reader = GGUFReader(file)
    field = reader.get_field("general.architecture")
    name = "none" if field is None else str(field.contents())
    if name not in GGUF_SUPPORTED_ARCHITECTURES:
        raise ValueError(
            f"its architecture {name[:80]!r} is not among those that transformers converts: "
            f"{', '.join(sorted(GGUF_SUPPORTED_ARCHITECTURES))}"
        )
    counts: Counter[str] = Counter()
    for tensor in reader.tensors:
        counts[tensor.tensor_type.name] += int(tensor.n_elements)
    quantised = [kind for kind, _ in counts.most_common() if kind not in PLAIN]
    return {"architecture": name, "quantisation": quantised[0] if quantised else ""}


def convert(file: Path, folder: Path) -> int:
    """Writes the model and its tokenizer to the folder; returns the number of parameters."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    tokenizer: Any = AutoTokenizer.from_pretrained(str(file.parent), **where)
    tokenizer.save_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **where)
    # transformers marks the model as quantised, and refuses to save such a model; the weights are float32 by now.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.is_quantized = model.config._is_quantized = False
    model.config.name_or_path = ""
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def main(file: Path, folder: Path, memory_bytes: int, cpu_s: int) -> None:
    """Converts the file within these bounds."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))  # the first bound sends SIGXCPU, the second kills
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    facts = described(file)
    sys.stdout.write("\n" + json.dumps({**facts, "parameters": convert(file, folder)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
