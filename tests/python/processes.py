"""One process a GPU: what a rank of a test does, and what it saw.

usage of a script that calls main(): SCRIPT RANKS OUT; OUT.<rank> gets a JSON list of [name, passed,
detail].
"""
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
import xstage


class Rank:
    """A rank, and its `scenarios` in their order. In the last one a rank dies."""

    scenarios = ()

    def __init__(self, rank, ranks, out):
        self.rank, self.ranks, self.out, self.said = rank, ranks, out, []

    def note(self, name, passed, detail):
        self.said.append([name, bool(passed), str(detail)])

    def refuse(self, name, words, call, kind=xstage.Error):
        try:
            call()
            self.note(name, False, "accepted")
        except kind as failure:
            self.note(name, all(part in str(failure) for part in words.split(" … ")), failure)

    def run(self):
        for name in self.scenarios:
            begun = time.monotonic()
            getattr(self, name)()
            if self.rank == 0:
                print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)
            if name != self.scenarios[-1]:
                dist.barrier()

    def end(self):
        """Without a word to the others, of whom one may be gone."""
        with open(f"{self.out}.{self.rank}", "w") as file:
            json.dump(self.said, file)
        os._exit(0)


def work(rank, kind, ranks, out, store):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, init_method="file://" + store,
                            device_id=torch.device("cuda", rank))
    me = kind(rank, ranks, out)
    me.run()
    me.end()


def main(kind):
    ranks, out = int(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, args=(kind, ranks, out, folder + "/store"), nprocs=ranks)


def run(script, ranks, folder):
    """Runs a script; what was wrong, and how much was seen."""
    done = subprocess.run([sys.executable, str(script), str(ranks), str(folder / "said")],
                          capture_output=True, text=True, timeout=240)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    wrong, seen = [], 0
    for rank in range(ranks):
        for name, passed, detail in json.loads((folder / f"said.{rank}").read_text()):
            seen += 1
            print(f"rank {rank}: {'ok   ' if passed else 'WRONG'} {name}: {detail}")
            if not passed:
                wrong.append(f"rank {rank}, {name}: {detail}")
    return wrong, seen
