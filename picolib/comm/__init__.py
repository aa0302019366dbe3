"""Collectives built from point-to-point messages, with torch.distributed's names and signatures."""

from picolib.comm.api import (
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    reduce_scatter,
    reduce_scatter_tensor,
)
from picolib.comm.api_rooted import broadcast, gather, reduce, scatter
from picolib.comm.auto import algorithms
from picolib.comm.engine import Work, poll
from picolib.comm.messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
from picolib.comm.traffic import bytes_sent, messages_sent

# From here on these names are the functions, not the modules of the same name (all_reduce.py and others): whoever is
# imported later finds an algorithm by `from picolib.comm.all_reduce import ring`.

# torch has two names for these: the older one above, and the newer one.
all_gather_single = all_gather_into_tensor
reduce_scatter_single = reduce_scatter_tensor

__all__ = [
    "P2POp",
    "Work",
    "algorithms",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "bytes_sent",
    "gather",
    "irecv",
    "isend",
    "messages_sent",
    "poll",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "send",
]
