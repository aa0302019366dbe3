"""`picolib.run(..., use="mine")`: in the ranks of that run, what you have built stands in the library's place.

    picolib.run(train, 4, use="mine")

Whatever `train` calls by the library's name (`picolib.DistributedDataParallel`, `dist.all_reduce`, …) is then yours,
as far as you have built it: the functions that passed their checks, from `workspace/mine/`. The rest is the library's.
Where `wrap` stands beside `overlap`, `wrap` finds every parameter frozen and only copies. Exercises that are no piece
of a model in training (1.x, 3.2, 3.5, …) have no place.

    dist.all_reduce, comm.all_reduce             ring_all_reduce (2.4) or halving_doubling (2.11),
                                                 and recursive_doubling (2.6) for short tensors
    ….reduce_scatter_tensor                      ring_reduce_scatter (2.3)
    ….all_gather_into_tensor                     bruck_all_gather (2.12)
    ….broadcast from rank 0                      pipelined_broadcast (2.10)
    picolib.DistributedDataParallel              wrap (3.1), and overlap (3.4) or average_in_buckets (3.3)
    picolib.ZeroRedundancyOptimizer              zero1_step (4.1)
    picolib.fully_shard                          sharded_linear (4.4), forward (4.3), prefetched (4.5)
    picolib.clip_grad_norm_ of sharded models    clip (4.2)
    tensor.parallelize, and its layers           f_and_g (5.1), my_heads (5.3)
    picolib.vocab_parallel_cross_entropy         vocab_loss (5.4)
"""

from __future__ import annotations

from collections.abc import Callable

from picolib.course import mine
from picolib.course.stack.parts import PARTS, Parts

__all__ = ["PARTS", "install", "sources"]


def sources() -> dict[str, list[str]]:
    """In the kernel: function -> [path, text, "passed" or "changed"] of every part that has passed."""
    folder = mine.folder()
    paths = {name: folder / f"{name}.py" for name in PARTS} if folder else {}
    found = {name: (path, path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}
    state = {name: "changed" if mine.was_changed(name, text) else "passed" for name, (_, text) in found.items()}
    return {name: [str(path), text, state[name]] for name, (path, text) in found.items()}


def install(texts: dict[str, list[str]]) -> Callable[[], str]:
    """In a rank, before its function runs: put these parts into place. What comes back tells how often each ran.

    The ranks of a run are processes of their own, so nothing has to be put back.
    """
    if not texts:
        return lambda: 'use="mine": nothing here is yours yet, so every part is the library\'s.'
    from picolib.course.stack import clip, collectives, data_parallel, fsdp, tensor, zero

    parts = Parts(texts)
    for place in (collectives, data_parallel, zero, fsdp, clip, tensor):
        place.install(parts)
    return parts.report
