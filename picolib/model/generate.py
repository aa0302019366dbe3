"""Writing text with a model, one token at a time, by running it on everything written so far."""

import torch
import torch.nn as nn

from picolib.model.seeds import named_generator
from picolib.model.text import decode, encode


@torch.no_grad()
def generate(
    model: nn.Module, tokens: torch.Tensor, n: int, *, temperature: float = 1.0, seed: int = 0
) -> torch.Tensor:
    """Continues each row of `tokens` [b, s] by n tokens: -> [b, s + n].

    `temperature` divides the logits: below 1 is more careful, 0 always takes the likeliest token. The model sees at
    most the last `model.config.max_position_embeddings` tokens. Equal arguments give equal text.
    """
    generator = named_generator(seed, "generate")
    window = model.config.max_position_embeddings
    for _ in range(n):
        logits = model(tokens[:, -window:])[:, -1].float()
        tokens = torch.cat((tokens, choose(logits, temperature, generator).to(tokens.device)), dim=1)
    return tokens


def choose(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """The next token of each row: logits [b, vocab] -> token ids [b, 1]."""
    if temperature < 0:
        raise ValueError(f"temperature={temperature} must be 0 (always the likeliest token) or more.")
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial(torch.softmax(logits.cpu() / temperature, dim=-1), 1, generator=generator)


def sample(model: nn.Module, prompt: str = "\n", n: int = 200, *, temperature: float = 0.8, seed: int = 0) -> str:
    """`prompt` and the n bytes with which the model goes on, as text; on one thread, a step is small."""
    device, threads = next(model.parameters()).device, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return decode(generate(model, encode(prompt)[None].to(device), n, temperature=temperature, seed=seed)[0])
    finally:
        torch.set_num_threads(threads)
