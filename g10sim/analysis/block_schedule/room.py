"""Memory that a block of prompts takes (Sheng et al., FlexGen, ICML 2023, appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass

from g10sim.analysis.block_schedule.cost import Block, Placement


@dataclass(frozen=True)
class Room:
    """Bytes of every memory."""

    gpu: int
    host: int
    drive: int


def needed(block: Block, placement: Placement) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Return the bytes that a block takes of the GPU and of host memory at several moments, and of the drive.

    The moments are the stages of a layer, of the prompts and of one token: what lies there, and what comes
    through. On the GPU that is the present and the next layer's weights, and hidden states and results of a
    stage for one batch.
    """
    weights, cache, hidden = placement.weights, placement.cache, placement.hidden
    tokens = block.prompt + block.output
    homes = (
        block.layers * block.weight_bytes,
        block.layers * tokens * block.cache_bytes,
        block.prompt * block.hidden_bytes,
    )
    shares = (weights, cache, hidden)
    on_gpu, in_host, on_drive = (
        sum(size * getattr(share, place) for size, share in zip(homes, shares, strict=True))
        for place in ("gpu", "host", "drive")
    )
    moments = [_stages(block, placement, block.prompt, block.prompt), _stages(block, placement, 1, tokens)]
    through = 2 * (1 - weights.gpu) * block.weight_bytes
    gpu = [
        on_gpu + through + (1 - hidden.gpu) * states + stage for states, stages in moments for stage in stages
    ]
    passing = (1 - weights.gpu) * block.weight_bytes
    from_drive = weights.drive * block.weight_bytes + tokens * block.cache_bytes * cache.drive
    host = [in_host + passing + (1 - hidden.gpu) * moments[0][0], in_host + passing + from_drive]
    return tuple(gpu), tuple(host), on_drive


def _stages(block: Block, placement: Placement, new: int, context: int) -> tuple[float, tuple[float, ...]]:
    """Return the bytes of a batch's hidden states, and of what each stage of a layer reads and writes.

    The stages are projections of ``new`` tokens, the MLP, and attention to ``context`` tokens as far as it is
    the GPU's, without a stored matrix of scores.
    """
    states = 2 * new * block.hidden * block.gpu_batch
    attention = placement.cache.gpu * (2 * states + 4 * context * block.hidden * block.gpu_batch)
    return states, (4 * states, 5 * states, attention)
