"""What a rank does in test_ulysses.py (see processes.py)."""
import copy
import math
import time

import processes
import torch
import torch.distributed as dist
import xstage

CASES = {  # batch, rows, heads, key heads, D, text rows, shards, dtype, strided
    "even": (1, 2048, 8, 8, 128, 0, None, torch.bfloat16, False),
    "uneven shards, batch 2": (2, 1001, 6, 6, 64, 0, None, torch.bfloat16, False),
    "own shards": (1, 777, 6, 3, 128, 0, "own", torch.bfloat16, False),
    "grouped heads": (1, 1024, 8, 2, 128, 0, None, torch.bfloat16, False),
    "one key head for all ranks": (1, 520, 8, 1, 64, 0, None, torch.bfloat16, False),
    "heads that do not divide": (1, 512, 5, 5, 128, 0, None, torch.bfloat16, False),
    "fp16": (1, 1024, 4, 4, 128, 0, None, torch.float16, False),
    "text on all ranks": (1, 1101, 5, 5, 128, 77, None, torch.bfloat16, False),
    "q, k, v of one projection": (2, 640, 4, 4, 64, 0, None, torch.bfloat16, True),
    "heads before rows": (1, 512, 4, 4, 128, 0, None, torch.bfloat16, "transposed"),
}


def exact(q, k, v, lengths=None):
    """[B, S, H, D] in float64."""
    q, k, v = (x.transpose(1, 2).double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if lengths is not None:
        logits.masked_fill_(torch.arange(k.shape[2], device=q.device) >= lengths[:, None, None, None],
                            -math.inf)
    return (torch.softmax(logits, -1) @ v).transpose(1, 2)


def plain(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def error(out, wanted):
    return ((out.double() - wanted).norm() / wanted.norm()).item()


def by_all_to_all(q, k, v, ranks):
    """What users have: all_to_all_single around PyTorch's attention; even shards, one batch entry."""
    def heads_here(x):
        _, rows, heads, dim = x.shape
        send = x.reshape(rows, ranks, heads // ranks, dim).transpose(0, 1).contiguous()
        got = torch.empty_like(send)
        dist.all_to_all_single(got, send)
        return got.reshape(1, ranks * rows, heads // ranks, dim)

    out = plain(*map(heads_here, (q, k, v)))
    _, rows, heads, dim = out.shape
    send = out.reshape(ranks, rows // ranks, heads, dim).contiguous()
    got = torch.empty_like(send)
    dist.all_to_all_single(got, send)
    return got.permute(1, 0, 2, 3).reshape(1, rows // ranks, ranks * heads, dim)


class Rank(processes.Rank):
    scenarios = ("right", "as_all_to_all", "padding", "captured", "compiled", "refused", "reopened",
                 "two_layers", "late", "dies")

    def layer(self, case, **more):
        batch, rows, heads, kv, dim, text, shards, dtype, _ = CASES[case]
        if shards == "own":
            shards = [rows - 100 - 100 * (self.ranks - 2)] + [100] * (self.ranks - 1)
        return xstage.UlyssesAttention(sequence=rows, heads=heads, kv_heads=kv, head_dim=dim,
                                       batch=batch, dtype=dtype, shards=shards, text_rows=text,
                                       **{"wait_seconds": 2.0, **more})

    def tensors(self, case, layer, seed=11):
        """The whole sequence's, the same on all ranks; this rank's rows; their numbers."""
        batch, rows, heads, kv, dim, text, _, dtype, strided = CASES[case]
        random = torch.Generator("cuda").manual_seed(seed)
        make = lambda h: torch.randn(batch, rows, h, dim, device="cuda", generator=random).to(dtype)
        whole = make(heads), make(kv), make(kv)
        begin = text + sum(layer.shards[:self.rank])
        own = torch.cat([torch.arange(text), torch.arange(begin, begin + layer.shards[self.rank])]).cuda()
        parts = [x[:, own] for x in whole]
        if strided == "transposed":
            parts = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in parts]
        elif strided:
            parts = list(torch.stack(parts, 2).unbind(2))
        else:
            parts = [x.contiguous() for x in parts]
        return whole, parts, own

    def check(self, name, out, whole, own, lengths=None):
        wanted = exact(*whole, lengths)[:, own]
        limit = 2 * error(plain(*whole)[:, own], exact(*whole)[:, own])
        got = error(out, wanted)
        self.note(name, got <= limit and out.is_contiguous(), f"{got:.2e} of {limit:.2e}")

    def right(self):
        for case in CASES:
            layer = self.layer(case)
            for call in (1, 2, 3):
                whole, parts, own = self.tensors(case, layer, 11 + call)
                self.check(f"{case}, call {call}", layer(*parts), whole, own)
            layer.check()
            layer.close()

    def as_all_to_all(self):
        layer = self.layer("even")
        whole, parts, own = self.tensors("even", layer)
        wanted = by_all_to_all(*parts, self.ranks)
        got = error(layer(*parts), wanted.double())
        self.note("as all_to_all_single around PyTorch's attention", got < 5e-3, f"{got:.2e}")
        layer.close()

    def padding(self):
        layer = self.layer("uneven shards, batch 2", key_padding=True)
        whole, parts, own = self.tensors("uneven shards, batch 2", layer)
        self.check("key padding, none", layer(*parts), whole, own)
        layer.key_lengths.copy_(torch.tensor([1001, 300], dtype=torch.int32))
        self.check("key padding", layer(*parts), whole, own, layer.key_lengths)
        layer.close()

    def captured(self):
        layer = self.layer("even")
        whole, parts, own = self.tensors("even", layer)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            layer(*parts)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        dist.barrier()
        with torch.cuda.graph(graph):
            once = layer(*parts)
            twice = layer(once, *parts[1:])
            three = layer(*parts)
        for replay in range(4):  # an odd number of launches each: slots take turns
            other, fresh, _ = self.tensors("even", layer, 100 + replay)
            for mine, new in zip(parts, fresh):
                mine.copy_(new)
            graph.replay()
            self.check(f"replay {replay}", once, other, own)
            self.check(f"replay {replay}, third call", three, other, own)
            if replay % 2:
                self.check(f"a call between replays {replay}", layer(*parts), other, own)
        layer.check()
        self.note("a call on what a call returned", twice.isfinite().all(), "finite")
        del graph
        layer.close()

    def compiled(self):
        layer = self.layer("even")
        _, parts, _ = self.tensors("even", layer)

        def block(q, k, v):
            return layer(q * 1.0, k, v) + 1

        torch._dynamo.reset()
        compiled = torch.compile(block, fullgraph=True)
        out, eager = compiled(*parts), block(*parts)
        self.note("compiled as one graph, same bits as eager", torch.equal(out, eager),
                  (out.float() - eager.float()).abs().max().item())
        layer.check()
        layer.close()

    def refused(self):
        layer = self.layer("even")
        _, (q, k, v), _ = self.tensors("even", layer)

        refuse = self.refuse
        refuse("wrong rows", f"q.shape = [1, {q.shape[1] - 1}, 8, 128]; allowed: [1, {q.shape[1]}, 8, 128]",
               lambda: layer(q[:, 1:], k, v))
        refuse("wrong heads", "k.shape = [1", lambda: layer(q, k[:, :, 1:], v))
        refuse("wrong type", "v.dtype = torch.float16; allowed: torch.bfloat16", lambda: layer(q, k, v.half()))
        refuse("not a GPU", "device = cpu", lambda: layer(q.cpu(), k.cpu(), v.cpu()))
        refuse("a copy", "cannot be copied", lambda: copy.deepcopy(layer))
        # After all these every rank still does the same.
        whole, parts, own = self.tensors("even", layer)
        self.check("after refusals", layer(*parts), whole, own)
        refuse("ranks that differ", "sequence = ", lambda: xstage.UlyssesAttention(
            sequence=512 + 64 * self.rank, heads=4, head_dim=64))
        refuse("one rank's bad argument", "head_dim = 65" if self.rank == 0 else "rank 0 could not open the layer … head_dim = 65",
               lambda: xstage.UlyssesAttention(sequence=512, heads=4, head_dim=64 + (self.rank == 0)))
        layer.close()
        refuse("closed", "has been closed", lambda: layer(q, k, v))

    def reopened(self):
        free = []
        for turn in range(6):
            layer = self.layer("even")
            whole, parts, own = self.tensors("even", layer, turn)
            self.check(f"opened {turn + 1} times", layer(*parts), whole, own)
            layer.close()
            del layer, whole, parts, own
            torch.cuda.empty_cache()
            dist.barrier()  # a peer that has not closed still holds this rank's memory
            free.append(torch.cuda.mem_get_info()[0])
        lost = (free[1] - free[-1]) / 4
        self.note("closing gives the memory back", lost < 1 << 20, f"{lost / 1024:.0f} KiB a turn")

    def two_layers(self):
        """Two layers in turns, 200 calls queued without a look."""
        layers = [self.layer("even"), self.layer("fp16")]
        data = [self.tensors(case, layer) for case, layer in zip(("even", "fp16"), layers)]
        for _ in range(100):
            outs = [layer(*parts) for layer, (_, parts, _) in zip(layers, data)]
        for layer, out, (whole, _, own) in zip(layers, outs, data):
            self.check("two layers, 100 calls each", out, whole, own)
            layer.check()
            layer.close()

    def late(self):
        """Rank 0 waits in vain, is told so, and all go on after recover()."""
        layer = self.layer("even", wait_seconds=0.3)
        whole, parts, own = self.tensors("even", layer)
        layer(*parts)
        layer.check()
        dist.barrier()
        begun = time.monotonic()
        if self.rank == 0:
            layer(*parts)
            torch.cuda.synchronize()
            took = time.monotonic() - begun
            self.refuse("a late rank", "rank 0 waited 0.3 … from rank 1", lambda: layer(*parts),
                        xstage.WaitTimeout)
            self.note("the wait has an end", 0.25 < took < 1.5, f"{took:.2f} s")
        dist.barrier()
        if self.rank != 0:
            layer(*parts)
            self.refuse("ranks that were stopped know", "rank", layer.check, xstage.WaitTimeout)
        layer.recover()
        for call in range(3):
            self.check(f"after recover(), call {call + 1}", layer(*parts), whole, own)
        layer.check()
        layer.close()

    def dies(self):
        """The last rank ends without a word."""
        layer = self.layer("even", wait_seconds=0.5)
        whole, parts, own = self.tensors("even", layer)
        self.check("before a rank dies", layer(*parts), whole, own)
        layer.check()
        dist.barrier()
        if self.rank == self.ranks - 1:
            self.end()
        begun = time.monotonic()
        layer(*parts)
        self.refuse("a rank that died", f"from rank {self.ranks - 1}", layer.check, xstage.WaitTimeout)
        took = time.monotonic() - begun
        self.note("the wait for the dead has an end", took < 3, f"{took:.2f} s")
        layer.close()


if __name__ == "__main__":
    processes.main(Rank)
