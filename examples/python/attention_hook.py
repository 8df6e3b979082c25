#!/usr/bin/env python3
"""A diffusion transformer's attention hook on xstage: the shape that diffusers' processors and xDiT's
long-context attention have, without either of them.

usage: torchrun --nproc-per-node 2 attention_hook.py

Every rank holds its rows of the sequence and all heads. The hook gets hidden states [batch, rows,
channels], projects them, and calls xstage in place of permute, All-to-All, attention, All-to-All,
permute. One layer serves all blocks of these sizes; it is made once, on all ranks, before the loop.
"""
import os

import torch
import torch.distributed as dist
import xstage


class SelfAttention(torch.nn.Module):
    """What a block holds: projections, and a processor that may be exchanged."""

    def __init__(self, channels, heads, processor):
        super().__init__()
        self.heads, self.processor = heads, processor
        self.to_qkv = torch.nn.Linear(channels, 3 * channels)
        self.to_out = torch.nn.Linear(channels, channels)

    def forward(self, hidden_states):
        return self.processor(self, hidden_states)


class UlyssesProcessor:
    """Attention over the ranks of a group, for sequences of one length."""

    def __init__(self, group, sequence, heads, head_dim, **options):
        self.layer = xstage.UlyssesAttention(group, sequence=sequence, heads=heads, head_dim=head_dim,
                                             **options)

    def __call__(self, attention, hidden_states):
        # [batch, rows, 3, heads, head_dim]: Q, K and V are strided views, which need no copy.
        q, k, v = attention.to_qkv(hidden_states).unflatten(2, (3, attention.heads, -1)).unbind(2)
        return attention.to_out(self.layer(q, k, v).flatten(2))


class PlainProcessor:
    """The same on one GPU that has the whole sequence, for comparison."""

    def __call__(self, attention, hidden_states):
        q, k, v = attention.to_qkv(hidden_states).unflatten(2, (3, attention.heads, -1)).unbind(2)
        return attention.to_out(xstage.attention(q, k, v).flatten(2))


@torch.inference_mode()
def main():
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    heads, head_dim, sequence = 24, 128, 4608  # FLUX.1 at 1024 x 1024
    torch.manual_seed(0)  # the same weights and tokens on all ranks
    processor = UlyssesProcessor(None, sequence, heads, head_dim)
    blocks = torch.nn.ModuleList(SelfAttention(heads * head_dim, heads, processor) for _ in range(3))
    blocks = blocks.cuda().bfloat16()
    tokens = torch.randn(1, sequence, heads * head_dim, device="cuda").bfloat16()

    rows = processor.layer.rows
    mine = tokens[:, rank * rows:(rank + 1) * rows]
    for block in blocks:
        mine = mine + block(mine)

    whole = tokens
    for block in blocks:
        block.processor = PlainProcessor()
        whole = whole + block(whole)
    wanted = whole[:, rank * rows:(rank + 1) * rows].float()
    error = ((mine.float() - wanted).norm() / wanted.norm()).item()
    processor.layer.check()
    print(f"rank {rank}: {rows} of {sequence} rows, 3 blocks, off from one GPU by {error:.1e}")
    processor.layer.close()
    dist.destroy_process_group()
    if error > 1e-2:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
