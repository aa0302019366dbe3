"""Train a small Llama on the manual pages of Python. One script for one process, many, or several machines:

    python -m picolib.train --steps 100
    torchrun --nproc-per-node 4 -m picolib.train --steps 100
    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 4 --master-addr HOST --master-port 29400 -m picolib.train

(On the second machine: `--node-rank 1`.) All of them print the same losses. In a notebook, `picolib.run(main, 4)`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch.distributed as dist

import picolib
from picolib.model import LlamaConfig, LlamaForCausalLM, TextBatches, encode, init_weights, load_text, split_tokens
from picolib.train import History, TrainConfig, train

# The model: 0.25 million parameters.
LLAMA = LlamaConfig(
    vocab_size=256, hidden_size=96, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32,
)  # fmt: skip
BATCH_SIZE = 32  # sequences of a step, on all ranks together
SEQUENCE_LENGTH = 32  # tokens
SEED = 0


def main(arguments: Sequence[str] = ()) -> History:
    """Joins the other processes, if there are any, and trains. The history is the same on every rank."""
    options = command_line().parse_args(arguments)
    config = TrainConfig(**{setting.name: getattr(options, setting.name) for setting in fields(TrainConfig)})

    picolib.init()
    text, _ = split_tokens(encode(load_text(options.text)))
    batches = TextBatches(text, BATCH_SIZE, SEQUENCE_LENGTH, seed=SEED)
    model = init_weights(LlamaForCausalLM(LLAMA), seed=SEED, std=0.1).to(options.device)
    history = train(model, batches, config)

    if options.history and dist.get_rank() == 0:
        options.history.write_text(json.dumps(vars_of(history)))
    return history


def vars_of(history: History) -> dict[str, list]:
    """The lists of a history, by name."""
    return {column.name: getattr(history, column.name) for column in fields(history)}


def command_line() -> argparse.ArgumentParser:
    """An option for each setting of `TrainConfig`, and a few more."""
    parser = argparse.ArgumentParser(prog="picolib.train", description=__doc__.splitlines()[0])
    for setting in fields(TrainConfig):
        flag = "--" + setting.name.replace("_", "-")
        parser.add_argument(flag, type=type(setting.default), default=setting.default, help=f"({setting.default})")
    parser.add_argument("--text", type=Path, help="a file to train on, in place of the manual pages")
    parser.add_argument("--device", default="cpu", help="where the model lives: cpu, or cuda")
    parser.add_argument("--history", type=Path, help="a file for the losses and all else, as JSON")
    return parser


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
    dist.destroy_process_group()
