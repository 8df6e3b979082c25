#!/usr/bin/env python3
"""A Ulysses layer in one process a GPU, on PyTorch's symmetric memory: checked, captured, timed.

usage: ulysses_processes.py LIBRARY [--gpus N] [--out FILE]

LIBRARY is build/src/cuda/ulysses/libxstage_attention.so. Every process allocates its buffer, hands
all buffers' addresses to the library, and launches; output against float64, whose error may be
twice that of PyTorch's attention on the same 16-bit inputs. Ends with 1 where it is not.
"""
import argparse
import ctypes
import json
import math
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import torch.multiprocessing

CASES = [  # name, batch, rows, heads and key heads of two ranks, D, text rows for all, output [B, H, S, D]
    ("even", 1, 2048, 8, 8, 128, 0, False),
    ("fp16", 1, 1101, 6, 3, 128, 77, False),
    ("fp16, D 64", 1, 1000, 4, 4, 64, 0, True),
    ("uneven, batch 2", 2, 1001, 6, 6, 64, 0, False),
    ("grouped heads", 1, 777, 8, 2, 128, 0, False),
    ("text on all ranks", 1, 1101, 5, 5, 128, 77, False),
    ("heads before rows", 1, 1000, 4, 4, 128, 0, True),
]


class Shape(ctypes.Structure):
    _fields_ = [("ranks", ctypes.c_int32), ("rank", ctypes.c_int32), ("batch", ctypes.c_int64),
                ("heads", ctypes.c_int64), ("kv_heads", ctypes.c_int64), ("head_dim", ctypes.c_int64),
                ("rows", ctypes.c_int64), ("key_rows", ctypes.c_int64), ("heads_first", ctypes.c_int32),
                ("scale", ctypes.c_float), ("table", ctypes.POINTER(ctypes.c_int64)),
                ("segments", ctypes.c_int32), ("half", ctypes.c_int32)]


def shards(rows, ranks, text):
    """[begin, end, rank, row there], text for all ranks first."""
    table, at = [[0, text, -1, 0]] if text else [], text
    for rank in range(ranks):
        count = (rows - text) // ranks + (rank < (rows - text) % ranks)
        table.append([at, at + count, rank, text])
        at += count
    return table


class Layer:
    """The library's layer on symmetric memory that PyTorch allocates."""

    def __init__(self, library, rank, ranks, case, q, k, v, table):
        _, batch, rows, heads, key_heads, dim, _, heads_first = case
        self.library, self.message = library, ctypes.create_string_buffer(512)
        self.keep = (q, k, v)
        flat = [n for segment in table for n in segment]
        self.table = (ctypes.c_int64 * len(flat))(*flat)
        self.shape = Shape(ranks, rank, batch, heads, key_heads, dim, rows, rows, heads_first, 0.0,
                           self.table, len(table), q.dtype == torch.float16)
        symmetric, workspace = ctypes.c_int64(), ctypes.c_int64()
        self.call("bytes", ctypes.byref(self.shape), ctypes.byref(symmetric), ctypes.byref(workspace))
        self.buffer = symmetric_memory.empty(symmetric.value, dtype=torch.uint8, device="cuda")
        self.buffer.zero_()
        self.workspace = torch.zeros(workspace.value, dtype=torch.uint8, device="cuda")
        peers = symmetric_memory.rendezvous(self.buffer, dist.group.WORLD)
        pointers = (ctypes.c_void_p * ranks)(*peers.buffer_ptrs)
        torch.cuda.synchronize()
        dist.barrier()
        self.handle = ctypes.c_void_p()
        self.call("open", ctypes.byref(self.shape), pointers, pointer(self.workspace), pointer(q),
                  pointer(k), pointer(v), ctypes.c_void_p(), ctypes.c_uint64(1_000_000_000),
                  ctypes.byref(self.handle))
        own = sum(s[1] - s[0] for s in table if s[2] in (rank, -1))
        self.size = (batch, heads, own, dim) if heads_first else (batch, own, heads, dim)
        self.launches = 0

    def call(self, name, *arguments):
        function = getattr(self.library, "xstage_ulysses_" + name)
        if function(*arguments, self.message, ctypes.c_size_t(len(self.message))):
            raise RuntimeError(self.message.value.decode())

    def launch(self):
        self.call("launch", self.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        self.launches += 1

    def launch_part(self, part):
        """0: Q, K and V to the ranks of their heads; 1: attention of what the last exchange brought."""
        self.call("launch_part", self.handle, ctypes.c_int32(part),
                  ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        self.launches += part

    def output(self):
        """Of the last launch, [batch, own rows, heads, dim]."""
        torch.cuda.synchronize()
        self.call("check", self.handle)
        function = self.library.xstage_ulysses_output
        function.restype = ctypes.c_void_p
        offset = function(self.handle, ctypes.c_int64(self.launches)) - self.buffer.data_ptr()
        out = self.buffer[offset:offset + 2 * math.prod(self.size)].view(self.keep[0].dtype)
        out = out.view(self.size)
        return (out.transpose(1, 2) if self.shape.heads_first else out).clone()

    def close(self):
        torch.cuda.synchronize()
        dist.barrier()
        self.library.xstage_ulysses_close(self.handle)


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def attention(q, k, v, exact):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if exact:
        q, k, v = (x.double() for x in (q, k, v))
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        return (torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v).transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def check(library, rank, ranks, case):
    name, batch, rows, heads, key_heads, dim, text, heads_first = case
    more = (ranks + 1) // 2
    heads, key_heads = heads * more, key_heads * more
    case = (name, batch, rows, heads, key_heads, dim, text, heads_first)
    table = shards(rows, ranks, text)
    # The same whole sequence on every rank; each takes its own rows.
    random = torch.Generator("cuda").manual_seed(11)
    dtype = torch.float16 if "fp16" in name else torch.bfloat16
    make = lambda h: torch.randn(batch, rows, h, dim, device="cuda", generator=random).to(dtype)
    q, k, v = make(heads), make(key_heads), make(key_heads)
    own = torch.cat([torch.arange(s[0], s[1], device="cuda") for s in table if s[2] in (rank, -1)])
    layer = Layer(library, rank, ranks, case, *(x[:, own].contiguous() for x in (q, k, v)), table)
    wanted = attention(q, k, v, True)[:, own]
    error = lambda x: ((x.double() - wanted).norm() / wanted.norm()).item()
    layer.launch()
    direct = error(layer.output())
    # Captured: two launches, replayed three times, and one launch outside of the graph.
    graph = torch.cuda.CUDAGraph()
    dist.barrier()
    with torch.cuda.graph(graph):
        layer.launch()
        layer.launch()
    layer.launches -= 2
    replayed = []
    for _ in range(3):
        graph.replay()
        layer.launches += 2
        replayed.append(error(layer.output()))
        dist.barrier()
    layer.launch()
    replayed.append(error(layer.output()))
    limit = 2 * error(attention(q, k, v, False)[:, own])
    layer.close()
    good = max(direct, *replayed) <= limit
    return {"case": name, "error": direct, "error_replayed": max(replayed), "limit": limit, "ok": good}


def work(rank, options):
    torch.cuda.set_device(rank)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    dist.init_process_group("nccl", rank=rank, world_size=options.gpus,
                            device_id=torch.device("cuda", rank))
    library = ctypes.CDLL(options.library)
    results = [check(library, rank, options.gpus, case) for case in CASES]
    everybody = [None] * options.gpus
    dist.all_gather_object(everybody, results)
    if rank == 0:
        for i, case in enumerate(CASES):
            rows = [r[i] for r in everybody]
            print(f"{case[0]:20} error {max(r['error'] for r in rows):.2e}, replayed "
                  f"{max(r['error_replayed'] for r in rows):.2e}, allowed "
                  f"{min(r['limit'] for r in rows):.2e}: {'right' if all(r['ok'] for r in rows) else 'WRONG'}")
        if options.out:
            with open(options.out + ".part", "w") as file:
                json.dump({"format": "xstage.processes/1", "torch": torch.__version__,
                           "gpu": torch.cuda.get_device_name(), "ranks": everybody}, file, indent=1)
            os.replace(options.out + ".part", options.out)
    dist.destroy_process_group()
    if not all(r["ok"] for rows in everybody for r in rows):
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.multiprocessing.spawn(work, args=(options,), nprocs=options.gpus)


if __name__ == "__main__":
    main()
