"""The strategies of the course, compared in the course's own words: what `table()` shows below yours.

N ranks, Ψ parameters, t, c, e ranks in a tensor, context or expert group, p stages, m micro-batches of
b sequences with s tokens, h hidden. What is sent is given in numbers; each takes 2 bytes in bf16, 4 in float32.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Strategy:
    """A row of the table: the sitting (or two) that builds the strategy, and an answer for each column."""

    name: str
    lesson: str
    splits: str
    replicates: str
    collective: str
    bytes: str
    critical_path: str
    saves: str
    stop_when: str


STRATEGIES = (
    Strategy(
        "averaging by hand",
        lesson="00",
        splits="the batch",
        replicates="parameters, gradients, optimizer state",
        collective="all-reduce of the gradients, after backward",
        bytes="2(N-1)/N·Ψ",
        critical_path="all of it",
        saves="time",
        stop_when="you want speed: nothing overlaps",
    ),
    Strategy(
        "recomputation",
        lesson="01B",
        splits="nothing",
        replicates="everything",
        collective="none",
        bytes="0",
        critical_path="a forward pass more",
        saves="activations: each layer keeps its input",
        stop_when="activations fit, or model state alone does not",
    ),
    Strategy(
        "accumulation",
        lesson="01B",
        splits="the batch, in time",
        replicates="parameters, gradients, optimizer state",
        collective="none",
        bytes="0",
        critical_path="m micro-batches, one after the other",
        saves="activations and logits /m",
        stop_when="one sequence alone does not fit",
    ),
    Strategy(
        "data parallel",
        lesson="03A and 03B",
        splits="the batch",
        replicates="parameters, gradients, optimizer state",
        collective="all-reduce of buckets, during backward",
        bytes="2(N-1)/N·Ψ",
        critical_path="the last bucket",
        saves="time",
        stop_when="16Ψ bytes do not fit on one rank",
    ),
    Strategy(
        "ZeRO-1, ZeRO-2",
        lesson="04A",
        splits="the batch; optimizer state (and gradients)",
        replicates="parameters",
        collective="reduce-scatter in backward, all-gather after the step",
        bytes="2(N-1)/N·Ψ",
        critical_path="the all-gather",
        saves="optimizer state (and gradients) /N",
        stop_when="the parameters alone do not fit",
    ),
    Strategy(
        "FSDP",
        lesson="04B",
        splits="the batch; parameters, gradients, optimizer state",
        replicates="one or two gathered layers at a time",
        collective="all-gather before a layer, reduce-scatter after its backward",
        bytes="3(N-1)/N·Ψ",
        critical_path="the first gather, and what prefetch cannot hide",
        saves="parameters, gradients, optimizer state /N",
        stop_when="a layer's compute no longer hides its gather",
    ),
    Strategy(
        "tensor parallel",
        lesson="05A",
        splits="each layer's weights",
        replicates="norms, activations between the blocks",
        collective="2 all-reduces a layer forward, 2 backward",
        bytes="8(t-1)/t·b·s·h a layer",
        critical_path="forward all of it; backward, f can hide",
        saves="weights and their state /t",
        stop_when="the ranks do not share one fast node",
    ),
    Strategy(
        "sequence parallel",
        lesson="05B",
        splits="each layer's weights; tokens in between",
        replicates="norm weights",
        collective="all-gather and reduce-scatter around each block",
        bytes="8(t-1)/t·b·s·h a layer",
        critical_path="what overlap leaves",
        saves="the activations between the blocks too",
        stop_when="as tensor parallel",
    ),
    Strategy(
        "pipeline parallel",
        lesson="06",
        splits="the layers, over p stages",
        replicates="nothing (a tied embedding, perhaps)",
        collective="send and receive activations, each micro-batch",
        bytes="2·b·s·h a micro-batch and boundary",
        critical_path="the bubble: (p-1)/(m+p-1) of the time",
        saves="weights and their state /p",
        stop_when="there are too few micro-batches to fill it",
    ),
    Strategy(
        "context parallel",
        lesson="07",
        splits="each sequence, over c ranks",
        replicates="parameters (unless sharded as well)",
        collective="keys and values around the ring, in each attention",
        bytes="2(c-1)/c·b·s·h a layer forward",
        critical_path="what attention's compute cannot hide",
        saves="activations /c",
        stop_when="sequences are short: nothing left to hide it behind",
    ),
    Strategy(
        "expert parallel",
        lesson="08",
        splits="the experts, over e ranks",
        replicates="everything but the experts",
        collective="all-to-all before and after the experts",
        bytes="2(e-1)/e·k·b·s·h a layer forward (k experts a token)",
        critical_path="all of it, unless batches overlap",
        saves="expert weights and their state /e",
        stop_when="the busiest expert decides the time",
    ),
)
