"""Collectives built from point-to-point messages, with torch.distributed's names and signatures."""

from picolib.comm.api import all_reduce

__all__ = ["all_reduce"]
