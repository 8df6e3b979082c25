#!/usr/bin/env python3
"""Attention beside PyTorch's: accuracy, speed against cuDNN, and the All-to-All that users have.

usage: ulysses_torch.py LIBRARY [--gpus N] [--out FILE] [--rounds N] [--quick]

LIBRARY is build/src/cuda/ulysses/libxstage_attention.so. One process a GPU, all of them busy with
the same work. For each shape, rounds of the contenders take turns, in an order drawn anew:

  attention          this project's kernel
  cudnn              torch's scaled_dot_product_attention, cuDNN back end
  attention + nccl   ours, permute, NCCL all_to_all_single, permute (the order in which yunchang,
                     DeepSpeed and diffusers do it)
  cudnn + nccl       the same behind cuDNN's
  fused              this project's kernel whose output goes straight to its owners
  inputs push        Q, K and V to the ranks of their heads, by this project's push
  inputs nccl        the same by permutes and NCCL
  layer              inputs push, fused
  layer of cudnn and nccl   inputs nccl, cudnn + nccl

Accuracy: relative Frobenius error against float64 on the same inputs, beside PyTorch's own.
Needs PyTorch with CUDA 13; the exchanges need --gpus 2 or more.
"""
import argparse
import ctypes
import datetime
import hashlib
import itertools
import json
import math
import os
import random as shuffler
import statistics
import subprocess

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ulysses_processes import Layer, shards

SHAPES = [  # name, local heads, S, D
    ("paper", 4, 8192, 128), ("paper", 4, 16384, 128), ("paper", 4, 32768, 128),
    ("paper", 4, 49152, 128), ("paper", 4, 65536, 128),
    ("", 12, 8192, 128), ("", 12, 16384, 128), ("", 20, 8192, 128), ("", 20, 16384, 128),
    ("", 12, 32768, 128), ("", 20, 32768, 128),
    ("FLUX.1", 12, 4608, 128), ("Qwen-Image", 12, 7145, 128), ("LTX-2", 16, 6144, 128),
    ("Wan-14B 480p", 20, 32760, 128), ("CogVideoX-5B", 24, 17776, 64), ("", 12, 17776, 64),
]


class Kernel:
    """xstage_attention_forward of the library."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.function = self.library.xstage_attention_forward
        self.message = ctypes.create_string_buffer(512)

    def __call__(self, q, k, v, out, scale=0.0):
        four = ctypes.c_int64 * 4
        pointer = ctypes.c_void_p
        code = self.function(
            ctypes.c_int32(q.dtype == torch.float16), pointer(q.data_ptr()), pointer(k.data_ptr()), pointer(v.data_ptr()),
            pointer(out.data_ptr()), four(*q.shape), four(*k.shape), four(*q.stride()),
            four(*k.stride()), four(*v.stride()), four(*out.stride()), pointer(None), pointer(None),
            ctypes.c_float(scale), 1, pointer(torch.cuda.current_stream().cuda_stream),
            self.message, ctypes.c_size_t(len(self.message)))
        if code:
            raise RuntimeError(self.message.value.decode())


def cudnn(q, k, v, scale=None):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2),
                                            v.transpose(1, 2), scale=scale).transpose(1, 2)


def random(batch, rows, heads, head_dim, size=1.0, dtype=torch.bfloat16):
    return torch.randn(batch, rows, heads, head_dim, device="cuda").mul_(size).to(dtype)


def exact(q, k, v, scale):
    q, k, v = (x.transpose(1, 2).double() for x in (q, k, v))
    return (torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v).transpose(1, 2)


def accuracy(kernel):
    rows = []
    sizes = ((777, 1.0), (4096, 1.0), (1024, 4.0), (1024, 12.0))
    for dtype, head_dim, (length, size) in itertools.product((torch.bfloat16, torch.float16), (64, 128), sizes):
        q, k, v = (random(1, length, 2, head_dim, s, dtype) for s in (size, size, 1.0))
        out = torch.full_like(q, math.nan)
        kernel(q, k, v, out)
        wanted = exact(q, k, v, head_dim ** -0.5)
        error = lambda x: ((x.double() - wanted).norm() / wanted.norm()).item()
        rows.append({"type": str(dtype).removeprefix("torch."), "head_dim": head_dim, "seq": length,
                     "size_of_q_and_k": size, "error": error(out), "error_of_cudnn": error(cudnn(q, k, v))})
    return rows


def all_to_all(o, ranks):
    """[1, S, h/P, D] of these heads to [1, S/P, h, D] of these rows; two permutes and NCCL."""
    _, rows, heads, dim = o.shape
    send = o.reshape(1, ranks, rows // ranks, heads, dim).permute(1, 3, 2, 0, 4).contiguous()
    got = torch.empty_like(send)
    dist.all_to_all_single(got, send)
    return got.reshape(ranks * heads, rows // ranks, 1, dim).permute(2, 1, 0, 3).contiguous()


def inputs_all_to_all(tensors, ranks):
    """[1, S/P, h, D] of Q, K and V to [1, S, h/P, D] each: a permute and NCCL; the other permute
    is none, as the rows of a rank stay together."""
    out = []
    for x in tensors:
        _, rows, heads, dim = x.shape
        send = x.reshape(rows, ranks, heads // ranks, dim).transpose(0, 1).contiguous()
        got = torch.empty_like(send)
        dist.all_to_all_single(got, send)
        out.append(got.view(1, ranks * rows, heads // ranks, dim))
    return out


def timed(run, launches):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
    torch.cuda._sleep(launches * 2_000_000)  # 1 ms a launch: the host is done before the GPU begins
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1, device="cuda"))  # ranks begin together
    begin.record()
    for _ in range(launches):
        run()
    end.record()
    torch.cuda.synchronize()
    us = begin.elapsed_time(end) * 1e3 / launches
    if not dist.is_initialized():
        return us
    slowest = torch.tensor([us], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def measure(kernel, ranks, shape, rounds):
    name, heads, rows, dim = shape
    q, k, v = (random(1, rows, heads, dim) for _ in range(3))
    out = torch.empty_like(q)
    contenders = {"attention": lambda: kernel(q, k, v, out), "cudnn": lambda: cudnn(q, k, v)}
    layer = None
    if ranks > 1:
        rank, table = dist.get_rank(), shards(rows, ranks, 0)
        own = [random(1, table[rank][1] - table[rank][0], heads * ranks, dim) for _ in range(3)]
        case = (name, 1, rows, heads * ranks, heads * ranks, dim, 0, False)
        layer = Layer(kernel.library, rank, ranks, case, *own, table)
        contenders |= {"fused": lambda: layer.launch_part(1), "inputs push": lambda: layer.launch_part(0),
                       "layer": layer.launch}
    if ranks > 1 and rows % ranks == 0:
        contenders |= {
            "attention + nccl": lambda: (kernel(q, k, v, out), all_to_all(out, ranks)),
            "cudnn + nccl": lambda: all_to_all(cudnn(q, k, v), ranks),
            "inputs nccl": lambda: inputs_all_to_all(own, ranks),
            "layer of cudnn and nccl":
                lambda: all_to_all(cudnn(*inputs_all_to_all(own, ranks)), ranks)}
    flop = 4.0 * rows * rows * heads * dim
    most = max(1, min(10, int(4e3 / (flop / 6e8))))
    launches = {what: max(most, 4) if "inputs" in what else most for what in contenders}
    samples = {what: [] for what in contenders}
    order, shuffle = list(contenders), shuffler.Random(7)  # the same on every rank
    for turn in range(rounds + 2):
        shuffle.shuffle(order)
        for what in order:
            us = timed(contenders[what], launches[what])
            if turn >= 2:
                samples[what].append(us)
    if layer:
        layer.output()  # its waits ended in time
        layer.close()
    median = {what: statistics.median(s) for what, s in samples.items()}
    result = {"layer": {"name": name, "heads_local": heads, "seq": rows, "head_dim": dim},
              "time_us": median, "samples_us": samples,
              "tflops": {what: flop / median[what] * 1e-6 for what in ("attention", "cudnn")},
              "over_cudnn": median["cudnn"] / median["attention"]}
    return result


def machine():
    query = "name,driver_version,clocks.sm,clocks.max.sm,power.draw,temperature.gpu"
    state = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
                           capture_output=True, text=True).stdout.strip().splitlines()
    return {"gpus": state, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version()))}


def work(rank, options):
    torch.cuda.set_device(rank)
    torch.manual_seed(7 + rank)
    if options.gpus > 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29511")
        dist.init_process_group("nccl", rank=rank, world_size=options.gpus,
                                device_id=torch.device("cuda", rank))
    kernel = Kernel(options.library)
    with open(options.library, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    document = {"format": "xstage.bench_torch/1",
                "created_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "library_sha256": digest, "git_commit": options.commit,
                "machine": machine(), "ranks": options.gpus,
                "accuracy": accuracy(kernel), "layers": []}
    if rank == 0:
        for row in document["accuracy"]:
            print("{type:8} D {head_dim:3} S {seq:5} q,k x{size_of_q_and_k:4}: error {error:.2e}, cuDNN "
                  "{error_of_cudnn:.2e}".format(**row), flush=True)
    for shape in SHAPES[:2] if options.quick else SHAPES:
        result = measure(kernel, options.gpus, shape, options.rounds)
        document["layers"].append(result)
        if rank == 0:
            layer = result["layer"]
            print("{name:13} {heads_local:2} x {seq:5} D {head_dim:3}: ".format(**layer) +
                  ", ".join(f"{what} {us:.1f}" for what, us in result["time_us"].items()) +
                  f" us; {result['tflops']['attention']:.0f} TFLOP/s, "
                  f"{result['over_cudnn']:.3f}x cuDNN", flush=True)
    document["machine_after"] = machine()
    if rank == 0 and options.out:
        with open(options.out + ".part", "w") as file:
            json.dump(document, file, indent=1)
        os.replace(options.out + ".part", options.out)
    if options.gpus > 1:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out")
    parser.add_argument("--commit", help="of the sources the library was built from, for the document")
    parser.add_argument("--quick", action="store_true", help="two shapes only")
    options = parser.parse_args()
    if options.gpus > 1:
        torch.multiprocessing.spawn(work, args=(options,), nprocs=options.gpus)
    else:
        work(0, options)


if __name__ == "__main__":
    main()
