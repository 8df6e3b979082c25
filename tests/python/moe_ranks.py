"""What a rank does in test_moe.py (see processes.py)."""
import time

import processes
import torch
import torch.distributed as dist
import xstage

HIDDEN, INTERMEDIATE, EXPERTS, TOPK, TOKENS = 512, 256, 16, 4, 300


def quantised(values):
    """Rows through e4m3 with a scale for 128 values, as the layer's format says."""
    groups = values.float().view(*values.shape[:-1], -1, 128)
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    scale = largest / torch.full_like(largest, 448.0)
    return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).view(values.shape)


def dequantised(codes, scales):
    return codes.float() * scales.repeat_interleave(128, -2).repeat_interleave(128, -1)


def plain(x, ids, factors, w1, w2, through, addend=None, clamp=0.0):
    """The layer in plain PyTorch, fp32; `through` is what activations go through."""
    slots = torch.zeros(*ids.shape, x.shape[1], device=x.device)
    for expert in range(w1.shape[0]):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        if not len(token):
            continue
        gate, up = (through(x[token]) @ w1[expert].T).chunk(2, -1)
        if clamp:
            gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        middle = torch.nn.functional.silu(gate) * up * factors[token, slot, None]
        slots[token, slot] = (through(middle) @ w2[expert].T).bfloat16().float()
    out = sum(slots[:, slot] for slot in range(ids.shape[1]))
    return (out if addend is None else out + addend.float()).bfloat16()


def error(out, wanted):
    return ((out.double() - wanted.double()).norm() / wanted.double().norm()).item()


class Rank(processes.Rank):
    scenarios = ("right", "captured", "compiled", "refused", "ids", "reopened", "late", "dies")

    def weights(self, bf16):
        """Of all experts, the same on all ranks: what the layer gets of this rank, what it means."""
        random = torch.Generator("cuda").manual_seed(7)
        make = lambda *shape: (torch.randn(*shape, device="cuda", generator=random) * shape[-1] ** -0.5).bfloat16()
        w1, w2 = make(EXPERTS, 2 * INTERMEDIATE, HIDDEN), make(EXPERTS, HIDDEN, INTERMEDIATE)
        own = slice(self.rank * EXPERTS // self.ranks, (self.rank + 1) * EXPERTS // self.ranks)
        if bf16:
            return {"w1": w1[own].contiguous(), "w2": w2[own].contiguous()}, (w1.float(), w2.float())
        (c1, s1), (c2, s2) = map(xstage.quantise_weights, (w1, w2))
        return ({"w1": c1[own].contiguous(), "w1_scales": s1[own].contiguous(),
                 "w2": c2[own].contiguous(), "w2_scales": s2[own].contiguous()},
                (dequantised(c1, s1), dequantised(c2, s2)))

    def layer(self, bf16=False, **more):
        given, self.means = self.weights(bf16)
        self.through = (lambda v: v.bfloat16().float()) if bf16 else quantised
        options = {"hidden": HIDDEN, "intermediate": INTERMEDIATE, "experts": EXPERTS, "topk": TOPK,
                   "max_tokens": TOKENS, "wait_seconds": 2.0, "first_wait_seconds": 10.0}
        return xstage.MoeLayer(**{**options, **given, **more})

    def tokens(self, count=TOKENS, seed=0):
        random = torch.Generator("cuda").manual_seed(1000 * self.rank + seed)
        x = torch.randn(count, HIDDEN, device="cuda", generator=random).bfloat16()
        scores = torch.rand(count, EXPERTS, device="cuda", generator=random)
        factors, ids = scores.topk(TOPK)
        return x, ids.int(), factors.contiguous()

    def check(self, name, out, given, limit, **more):
        got = error(out, plain(*given, *self.means, self.through, **more))
        self.note(name, got <= limit, f"{got:.2e} of {limit:.2e}")

    def right(self):
        for bf16, limit in ((False, 1.5e-2), (True, 3e-3)):
            word, same = "bf16" if bf16 else "w8a8", []
            for schedule in (None, "wave", "interleaved", 3):
                layer = self.layer(bf16, schedule=schedule)
                for call in range(3):
                    given = self.tokens(seed=call)
                    out = layer(*given)
                    self.check(f"{word}, {schedule}, call {call}", out, given, limit)
                same.append(out)
                layer.check()
                if schedule is None and not bf16:
                    self.note("auto says why", "predicted" in layer.reason, layer.reason)
                layer.close()
            self.note(f"{word}: the same bits under all schedules",
                      all(torch.equal(same[0], other) for other in same), "")
        layer = self.layer(clamp=0.5)
        given = self.tokens()
        self.check("clamp", layer(*given), given, 1.5e-2, clamp=0.5)
        addend = torch.randn_like(given[0])
        for count in (0, 1, 129, TOKENS):
            mine = tuple(t[:count] for t in given)
            if self.rank == 0:  # the other ranks bring all of theirs
                out = layer(*mine, addend[:count])
                if count:
                    self.check(f"{count} tokens with an addend", out, mine, 1.5e-2, clamp=0.5,
                               addend=addend[:count])
                else:
                    self.note("no tokens", out.shape == (0, HIDDEN), list(out.shape))
            else:
                layer(*given)
        layer.close()

    def captured(self):
        layer = self.layer()
        given = self.tokens()
        layer(*given)
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(*given)
            layer(*given)
        for replay in range(3):
            fresh = self.tokens(seed=50 + replay)
            for mine, new in zip(given, fresh):
                mine.copy_(new)
            graph.replay()
            self.check(f"replay {replay}", out, fresh, 1.5e-2)
            layer(*given)
        layer.check()
        del graph
        layer.close()

    def compiled(self):
        layer = self.layer()
        given = self.tokens()
        block = lambda x, ids, factors: layer(x * 1.0, ids, factors) + x
        torch._dynamo.reset()
        out, eager = torch.compile(block, fullgraph=True)(*given), block(*given)
        self.note("compiled as one graph, same bits as eager", torch.equal(out, eager), "")
        layer.check()
        layer.close()

    def refused(self):
        layer = self.layer()
        x, ids, factors = self.tokens()
        more = self.tokens(TOKENS + 1)
        self.refuse("too many tokens", "x.shape = [301, 512] … up to 300", lambda: layer(*more))
        self.refuse("ids of 64 bits", "expert_ids.dtype = torch.int64; allowed: torch.int32",
                    lambda: layer(x, ids.long(), factors))
        self.refuse("other weights", "expert_weights.shape = [300, 3]; allowed: [300, 4]",
                    lambda: layer(x, ids, factors[:, :3].contiguous()))
        self.refuse("strided", "x.stride() = ", lambda: layer(x.t().contiguous().t(), ids, factors))
        self.refuse("type of x", "x.dtype = torch.float16; allowed: torch.bfloat16",
                    lambda: layer(x.half(), ids, factors))
        self.refuse("fewer scales", "w2_scales = NoneType", lambda: self.layer(w2_scales=None))
        self.refuse("scales in bf16", "w1_scales = a tensor; allowed: None",
                    lambda: self.layer(True, w1_scales=torch.ones(1, device="cuda")))
        self.refuse("schedule", "schedule = fast; allowed: auto, wave", lambda: self.layer(schedule="fast"))
        self.refuse("auto in bf16", "w8a8, or an order given by name",
                    lambda: self.layer(True, schedule="auto"))
        self.refuse("ranks that differ", "max_tokens = 200 on rank 0, 201 on rank 1",
                    lambda: self.layer(max_tokens=200 + self.rank))
        self.through = quantised
        self.check("after refusals", layer(x, ids, factors), (x, ids, factors), 1.5e-2)
        layer.close()
        self.refuse("closed", "has been closed", lambda: layer(x, ids, factors))

    def ids(self):
        layer = self.layer()
        x, ids, factors = self.tokens()
        ids[::3, 1] = -1
        ids[7] = -1
        out = layer(x, ids, factors)
        self.check("ids of -1", out, (x, ids, factors), 1.5e-2)
        self.note("a token without experts", not out[7].any(), "zeros")
        if self.rank == 0:
            ids[5, 2] = EXPERTS
        layer(x, ids, factors)
        self.refuse("an id out of range", "token 5 slot 2 = 16; allowed: -1 to 15" if self.rank == 0
                    else "rank 1 was stopped by rank 0" if self.rank == 1 else "stopped by", layer.check)
        self.refuse("the next call tells, too", "rank", lambda: layer(x, ids, factors))
        layer.recover()
        given = self.tokens(seed=9)
        self.check("after recover()", layer(*given), given, 1.5e-2)
        layer.check()
        layer.close()

    def reopened(self):
        free = []
        for turn in range(5):
            layer = self.layer()
            given = self.tokens(seed=turn)
            self.check(f"opened {turn + 1} times", layer(*given), given, 1.5e-2)
            layer.close()
            del layer, given
            torch.cuda.empty_cache()
            dist.barrier()  # a peer that has not closed still holds this rank's memory
            free.append(torch.cuda.mem_get_info()[0])
        lost = (free[1] - free[-1]) / 3
        self.note("closing gives the memory back", lost < 1 << 20, f"{lost / 1024:.0f} KiB a turn")

    def late(self):
        """Rank 0 waits in vain, is told so, and all go on after recover()."""
        layer = self.layer(wait_seconds=0.3, first_wait_seconds=5.0)
        given = self.tokens()
        layer(*given)
        layer.check()
        dist.barrier()
        begun = time.monotonic()
        if self.rank == 0:
            layer(*given)
            torch.cuda.synchronize()
            took = time.monotonic() - begun
            self.refuse("a late rank", "rank 0 … waited 0.3 … rank 1", lambda: layer(*given),
                        xstage.WaitTimeout)
            self.note("the wait has an end", 0.25 < took < 1.5, f"{took:.2f} s")
        dist.barrier()
        if self.rank != 0:
            layer(*given)
            self.refuse("ranks that were stopped know", "rank", layer.check, xstage.WaitTimeout)
        layer.recover()
        for call in range(2):
            self.check(f"after recover(), call {call + 1}", layer(*given), given, 1.5e-2)
        layer.check()
        layer.close()

    def dies(self):
        """The last rank ends without a word."""
        layer = self.layer(wait_seconds=0.5, first_wait_seconds=5.0)
        given = self.tokens()
        self.check("before a rank dies", layer(*given), given, 1.5e-2)
        layer.check()
        dist.barrier()
        if self.rank == self.ranks - 1:
            self.end()
        begun = time.monotonic()
        layer(*given)
        self.refuse("a rank that died", f"rank {self.ranks - 1}", layer.check, xstage.WaitTimeout)
        took = time.monotonic() - begun
        self.note("the wait for the dead has an end", took < 3, f"{took:.2f} s")
        layer.close()


if __name__ == "__main__":
    processes.main(Rank)
