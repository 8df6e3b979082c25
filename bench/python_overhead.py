#!/usr/bin/env python3
"""What a call of the Python package costs beside the kernels it launches.

usage: python_overhead.py [--gpus N] [--commit ID] [--out FILE]

For each layer, one process a GPU, medians, the slower rank: `host` is the time of the Python call
itself, `call` the time a call takes in a row of calls, `graph` the same replayed from one CUDA graph,
which is the kernels alone: of a UlyssesAttention the exchange, the attention and the copy.
All in us; xstage must be installed. ID is the commit whose kernels these are.
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
import xstage

SHAPES = [(24, 4608, 128), (8, 8192, 128), (8, 16384, 128), (4, 1024, 64)]  # heads of all ranks, S, D
CALLS, ROUNDS = 20, 7


def per_call(call):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / CALLS


def host_time(call):
    """Of calls on an idle queue: the device is behind, the host never waits for it."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(CALLS):
        call()
    took = (time.perf_counter() - begun) * 1e6 / CALLS
    torch.cuda.synchronize()
    return took


def measure(call, meet):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    meet()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    taken = {"host": [], "call": [], "graph": []}
    for _ in range(ROUNDS):
        for name, run in (("host", lambda: host_time(call)), ("call", lambda: per_call(call)),
                          ("graph", lambda: replay(graph))):
            meet()
            taken[name].append(run())
    return {name: statistics.median(values) for name, values in taken.items()}


def replay(graph):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / CALLS


def work(rank, options, store):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=options.gpus, init_method="file://" + store,
                            device_id=torch.device("cuda", rank))

    def meet():
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    rows = []
    for heads, sequence, dim in SHAPES:
        make = lambda s, h: torch.randn(1, s, h, dim, device="cuda").bfloat16()
        own = heads // options.gpus
        q, k, v = (make(sequence, own) for _ in range(3))
        rows.append({"operator": "attention", "heads": own, "sequence": sequence, "head_dim": dim,
                     **measure(lambda: xstage.attention(q, k, v), meet)})
        layer = xstage.UlyssesAttention(sequence=sequence, heads=heads, head_dim=dim)
        q, k, v = (make(layer.rows, heads) for _ in range(3))
        rows.append({"operator": "UlyssesAttention", "heads": heads, "sequence": sequence,
                     "head_dim": dim, **measure(lambda: layer(q, k, v), meet)})
        layer.close()
    everybody = [None] * options.gpus
    dist.all_gather_object(everybody, rows)
    dist.destroy_process_group()
    if rank:
        return
    slowest = [max(of, key=lambda row: row["graph"]) for of in zip(*everybody)]
    for row in slowest:
        print(f"{row['operator']:17} {row['heads']:3} x {row['sequence']:6}, {row['head_dim']:3}: "
              f"host {row['host']:6.1f}, call {row['call']:8.1f}, graph {row['graph']:8.1f} us")
    library = pathlib.Path(xstage.__file__).with_name("libxstage.so").read_bytes()
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True).stdout.split()[:1]
    if options.out:
        with open(options.out + ".part", "w") as file:
            json.dump({"format": "xstage.python/1", "commit": options.commit,
                       "library_sha256": hashlib.sha256(library).hexdigest(), "driver": driver, "xstage": xstage.__version__,
                       "torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "gpus": options.gpus,
                       "created_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%FT%TZ"),
                       "calls": CALLS, "rounds": ROUNDS, "rows": slowest}, file, indent=1)
            file.write("\n")
        os.replace(options.out + ".part", options.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--commit", default="")
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, args=(options, folder + "/store"), nprocs=options.gpus)


if __name__ == "__main__":
    main()
