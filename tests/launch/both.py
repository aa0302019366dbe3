"""Cases that run twice: with plain `torch.distributed`, and with `picolib.comm`."""

import sys

import cloudpickle
import torch.distributed as dist

from picolib import comm

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # with the tests' functions: ranks do not import tests

BOTH = ["torch", "picolib"]


def calls(api):
    """The module whose send, recv and collectives a case uses."""
    return dist if api == "torch" else comm
