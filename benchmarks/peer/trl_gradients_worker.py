"""TRL's side of `benchmarks.peer.gradients`, in TRL's own environment.

    python -m benchmarks.peer.trl_gradients_worker FOLDER

Reads `minibatch.npz` and writes the gradients of TRL's loss on it to `gradients.safetensors`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import trl
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from benchmarks.peer import work as peer_work
from benchmarks.peer.trl_worker import rewards, settings, texts


def main() -> None:
    """Computes and writes the gradients for the folder on the command line."""
    folder = Path(sys.argv[1])
    work = peer_work.load(folder)
    torch.set_num_threads(1)
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=rewards,
        args=settings(work, folder, tuned=True),
        train_dataset=texts(work),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
    )
    trainer.current_gradient_accumulation_steps = 1
    inputs = {name: torch.from_numpy(array) for name, array in np.load(folder / "minibatch.npz").items()}
    trainer.model.train()
    trainer._compute_loss(trainer.model, inputs).backward()
    save_file(
        {name: p.grad.contiguous() for name, p in trainer.model.named_parameters()}, folder / "gradients.safetensors"
    )


if __name__ == "__main__":
    main()
