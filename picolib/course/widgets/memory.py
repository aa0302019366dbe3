"""A calculator: what does training this model take on each rank, and what does writing text with it?

Formulas of `picolib.memory`. For models with latent attention (DeepSeek-V3) activations are those of ordinary heads of
the same hidden size: an approximation.
"""

from __future__ import annotations

from typing import Any

from picolib.course.figures.canvas import Figure
from picolib.course.figures.memory import CARD, memory_bars
from picolib.course.widgets.base import Explorer, choice, explorer, slider

QUESTION = "Llama 3 70B on 64 ranks: which stage, micro-batch and recomputation bring training below 80 GB?"
STAGES = {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}
PRECISIONS = {"bf16, float32 master": (2, 2, 4), "float32": (4, 4, 0)}  # parameter, gradient, master copy
OPTIMIZERS = {"Adam": 8, "SGD, momentum": 4, "SGD": 0}  # bytes of float32 moments
RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
BATCHES = (1, 2, 4, 8, 16, 32)


def both(
    model: str, precision: str, optimizer: str, ranks: int, stage: str, sequence: int, batch: int, recompute: str
) -> dict[str, dict[str, float]]:
    """Named parts in bytes: of training on one rank, and of inference with as many texts on one device."""
    from picolib.plan import memory  # brings torch along; pictures load without it

    config: Any = memory.PRESETS[model]
    parameter, gradient, master = PRECISIONS[precision]
    each = memory.BytesPerParameter(parameter, gradient, master + OPTIMIZERS[optimizer])
    training = memory.training_bytes(
        config, batch, sequence, ranks=ranks, stage=STAGES[stage], each=each, recompute=recompute
    )
    inference = memory.inference_bytes(config, batch, sequence, bytes_per_number=parameter)
    return {"training": training, "inference": {"parameters": inference.pop("weights"), **inference}}


def budget(model: str, ranks: int, stage: str, sequence: int, batch: int, **others: str) -> Figure:
    """Training on one rank of `ranks`, and inference on one device, as two bars."""
    parts = both(model, ranks=ranks, stage=stage, sequence=sequence, batch=batch, **others)
    total = sum(parts["training"].values())
    verdict = "fits" if total <= CARD else f"{total / CARD:.3g} times what there is"
    head = f"{model}, {stage} on {ranks:,} rank{'s' if ranks > 1 else ''}, {batch} x {sequence:,} tokens: {verdict}"
    return memory_bars(parts, head)


def memory_explorer(
    model: str = "Llama 3 70B", ranks: int = 64, stage: str = "DDP", sequence: int = 8192, batch: int = 4,
    question: str = QUESTION,
) -> Explorer:  # fmt: skip
    """Menus and sliders for everything that decides; static: the four stages, and the last one with recomputation."""
    from picolib.plan.memory import PRESETS

    controls = {
        "model": choice("model", list(PRESETS), model),
        "precision": choice("precision", list(PRECISIONS), "bf16, float32 master"),
        "optimizer": choice("optimizer", list(OPTIMIZERS), "Adam"),
        "stage": choice("stage", list(STAGES), stage),
        "recompute": choice("recompute", ["none", "full"], "none"),
        "ranks": slider("ranks N", [(f"{n:,}", n) for n in sorted({*RANKS, ranks})], ranks),
        "sequence": slider("sequence s", [(f"{s:,}", s) for s in sorted({*SEQUENCES, sequence})], sequence),
        "batch": slider("micro-batch b", [(str(b), b) for b in sorted({*BATCHES, batch})], batch),
    }
    controls["precision"].layout.width = "300px"
    return explorer(question, _stages(model, ranks, sequence, batch), budget, controls)


def _stages(model: str, ranks: int, sequence: int, batch: int) -> Figure:
    """What stands where nothing runs: training on one rank, from DDP to ZeRO-3 with recomputation."""
    chosen = {"precision": "bf16, float32 master", "optimizer": "Adam", "sequence": sequence, "batch": batch}
    rows = {name: (name, "none") for name in STAGES} | {"+ recompute": ("ZeRO-3", "full")}
    bars = {
        row: both(model, ranks=ranks, stage=stage, recompute=recompute, **chosen)["training"]
        for row, (stage, recompute) in rows.items()
    }
    return memory_bars(bars, f"{model} on {ranks} ranks, {batch} x {sequence:,} tokens each: training, one rank")
