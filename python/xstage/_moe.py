"""The fused expert-parallel MoE layer over a process group."""

import ctypes
from typing import Optional, Union

import torch
import torch.distributed as dist

from . import _library
from ._errors import bad_input
from ._group import GroupLayer, layer_of

BLOCK = 128
_E4M3_MAX, _FLOOR = 448.0, 1e-30


def quantise_weights(weights: torch.Tensor):
    """A weight matrix, or a stack of them, as MoeLayer takes it in w8a8.

    weights is [..., rows, columns], both multiples of 128. Every block of 128 x 128 gets the scale
    s = max(largest magnitude, 1e-30) / 448 in float32; its codes are the float32 quotients w / s,
    rounded to e4m3 (to nearest, ties to even). Returns the codes, torch.float8_e4m3fn [..., rows,
    columns], and the scales, torch.float32 [..., rows/128, columns/128]. On any device.
    """
    if weights.dim() < 2 or weights.shape[-2] % BLOCK or weights.shape[-1] % BLOCK:
        raise bad_input("a weight matrix is cut into blocks of 128 x 128", "weights.shape",
                        list(weights.shape), "[..., rows, columns], both multiples of 128")
    if not weights.is_floating_point():
        raise bad_input("weights are floating-point numbers", "weights.dtype", weights.dtype,
                        "torch.bfloat16, torch.float16, torch.float32")
    *stack, rows, columns = weights.shape
    codes = torch.empty(weights.shape, dtype=torch.float8_e4m3fn, device=weights.device)
    scales = torch.empty((*stack, rows // BLOCK, columns // BLOCK), dtype=torch.float32,
                         device=weights.device)
    # One matrix at a time: in float32 the experts of a layer may not fit beside themselves.
    flat = weights.reshape(-1, rows, columns)
    for matrix, code, scale in zip(flat, codes.view(-1, rows, columns),
                                   scales.view(-1, rows // BLOCK, columns // BLOCK)):
        blocks = matrix.float().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        largest = blocks.abs().amax((1, 3)).clamp_min(_FLOOR)
        if not bool(torch.isfinite(largest).all()):
            raise bad_input("weights are finite", "weights", "NaN or infinity", "finite numbers")
        # Divided on the device where it lies, by a float32 tensor: a Python number would be rounded
        # from double and, on GPUs, become a product with the reciprocal.
        step = largest / torch.full_like(largest, _E4M3_MAX)
        quotient = blocks / step[:, None, :, None]
        code.copy_(quotient.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn).view(rows, columns))
        scale.copy_(step)
    return codes, scales


@torch.library.custom_op(
    "xstage::moe", mutates_args=(), device_types=("cuda", "cpu"),
    schema="(Tensor x, Tensor expert_ids, Tensor expert_weights, Tensor? addend, int layer) -> Tensor")
def _moe(x, expert_ids, expert_weights, addend, layer):
    return layer_of(layer)._launch(x, expert_ids, expert_weights, addend)


@_moe.register_fake
def _(x, expert_ids, expert_weights, addend, layer):
    layer_of(layer)._check(x, expert_ids, expert_weights, addend)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


class MoeLayer(GroupLayer):
    """Experts spread over the ranks of a group: dispatch, Linear-1, SwiGLU, Linear-2 and combine of
    all ranks in one kernel a rank.

        layer = xstage.MoeLayer(group, hidden=2048, intermediate=768, experts=128, topk=8,
                                max_tokens=8192, w1=w1, w1_scales=s1, w2=w2, w2_scales=s2)
        y = layer(x, expert_ids, expert_weights)

    y[t] = sum over j of expert_weights[t, j] * W2[e] swiglu(W1[e] x[t]) with e = expert_ids[t, j];
    swiglu(gate, up) = silu(gate) * up. An id of -1 is skipped. The same bits in every run, under
    every schedule. Making a layer is collective and allocates device memory (`bytes`).

    group         a process group of 1 to 8 ranks of one node, a GPU of compute capability 9.0 each;
                  None: all ranks
    hidden        a multiple of 256, up to 8192; intermediate a multiple of 128
    experts       of all ranks, a multiple of their number; rank e // (experts / ranks) has expert e
    topk          1 to 16
    max_tokens    the most tokens that a rank brings to a call
    w1, w2        this rank's experts: [experts / ranks, 2 * intermediate, hidden], gate rows before
                  up rows, and [experts / ranks, hidden, intermediate], contiguous. torch.bfloat16:
                  the layer computes in bf16; torch.float8_e4m3fn: in w8a8, and quantises tokens
    w1_scales     and w2_scales of w8a8, as quantise_weights() gives them
    schedule      "auto": predicted to be the fastest for balanced routing on two H200, w8a8 alone;
                  "wave"; "interleaved"; or a number: interleaved with that lead, in rows of 128
                  tokens. None: "auto" in w8a8, "wave" in bf16. `schedule` and `reason` say what it is
    expected_tokens  a rank brings as a rule, for the choice; None: max_tokens
    clamp         of SwiGLU: gate from above, up on both sides; 0: none
    wait_seconds  limit of a wait for another rank; first_wait_seconds of the first call's, for which
                  a rank may be late by what it loads and compiles
    device        this rank's GPU; None: the current one
    """

    _functions = {"close": _library.moe_close, "recover": _library.moe_recover}

    def __init__(self, group: Optional[dist.ProcessGroup] = None, *, hidden: int, intermediate: int,
                 experts: int, topk: int, max_tokens: int, w1: torch.Tensor, w2: torch.Tensor,
                 w1_scales: Optional[torch.Tensor] = None, w2_scales: Optional[torch.Tensor] = None,
                 schedule: Union[str, int, None] = None, expected_tokens: Optional[int] = None,
                 clamp: float = 0.0, wait_seconds: float = 30.0, first_wait_seconds: float = 300.0,
                 device: Optional[torch.device] = None):
        super().__init__(group, device, wait_seconds)
        self.hidden, self.intermediate, self.experts = hidden, intermediate, experts
        self.topk, self.max_tokens = topk, max_tokens
        # Kept here, but not as buffers: .to() must not move them.
        self._weights = {"w1": w1, "w1_scales": w1_scales, "w2": w2, "w2_scales": w2_scales}
        self.reason = ""
        self._set_up(lambda: self._configure(schedule, expected_tokens, clamp, first_wait_seconds),
                     lambda pointers, handle: self._open(pointers, handle, first_wait_seconds))

    def _check_weights(self):
        if self.experts < 1 or self.experts % self.ranks:
            raise bad_input("experts are dealt out evenly", "experts", self.experts,
                            f"a multiple of {self.ranks}, the ranks")
        for name in ("w1", "w2"):
            if not isinstance(self._weights[name], torch.Tensor):
                raise bad_input("a tensor is wanted", name, type(self._weights[name]).__name__,
                                "torch.Tensor")
        self.dtype = self._weights["w1"].dtype
        if self.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
            raise bad_input("weights of this type have no kernel", "w1.dtype", self.dtype,
                            "torch.bfloat16, torch.float8_e4m3fn (quantise_weights)")
        local, h, i = self.experts // self.ranks, self.hidden, self.intermediate
        wanted = {"w1": (self.dtype, (local, 2 * i, h)), "w2": (self.dtype, (local, h, i))}
        if self.dtype == torch.float8_e4m3fn:
            wanted["w1_scales"] = torch.float32, (local, 2 * i // BLOCK, h // BLOCK)
            wanted["w2_scales"] = torch.float32, (local, h // BLOCK, i // BLOCK)
        for name, tensor in self._weights.items():
            if name not in wanted:
                if tensor is not None:
                    raise bad_input("weights in bf16 have no scales", name, "a tensor", "None")
                continue
            dtype, shape = wanted[name]
            if not isinstance(tensor, torch.Tensor):
                raise bad_input("a tensor is wanted", name, type(tensor).__name__, "torch.Tensor")
            _check_dense(name, tensor, dtype, shape, self.device)

    def _configure(self, schedule, expected_tokens, clamp, first_wait_seconds):
        for name in ("hidden", "intermediate", "topk", "max_tokens"):
            if getattr(self, name) < 1:
                raise bad_input("a size is out of range", name, getattr(self, name), "1 or more")
        if not 0 < first_wait_seconds <= 3600:
            raise bad_input("the limit of a wait is out of range", "first_wait_seconds",
                            first_wait_seconds, "above 0, at most 3600")
        if not 0 <= clamp < float("inf"):
            raise bad_input("the clamp is out of range", "clamp", clamp, "0 (none) or a positive number")
        self._check_weights()
        w8a8 = self.dtype == torch.float8_e4m3fn
        if schedule is None:
            schedule = "auto" if w8a8 else "wave"
        lead = isinstance(schedule, int) and not isinstance(schedule, bool)
        if schedule not in ("auto", "wave", "interleaved") and not (lead and schedule >= 1):
            raise bad_input("there is no such schedule", "schedule", schedule,
                            "auto, wave, interleaved, or a lead from 1")
        workers = torch.cuda.get_device_properties(self.device).multi_processor_count \
            if torch.cuda.is_available() else 132
        tokens = self.max_tokens if expected_tokens is None else expected_tokens
        if not 1 <= tokens <= self.max_tokens:
            raise bad_input("a size is out of range", "expected_tokens", tokens,
                            f"1 to {self.max_tokens}")
        config = self._config = _library.MoeConfig(
            self.ranks, self.rank, self.topk, 0 if w8a8 else 1, self.experts, self.hidden,
            self.intermediate, self.max_tokens, tokens, workers, 0 if schedule == "wave" else 1,
            schedule if lead else 0, clamp)
        symmetric, workspace = ctypes.c_int64(), ctypes.c_int64()
        _library.call(_library.moe_bytes, ctypes.byref(config), ctypes.byref(symmetric),
                      ctypes.byref(workspace))
        if schedule == "auto":
            reason = ctypes.create_string_buffer(512)
            _library.call(_library.moe_choose, ctypes.byref(config), reason, 512)
            self.reason = reason.value.decode()
        self.schedule = ("wave" if config.order == 0 else "interleaved", config.group_or_lead)
        values = {name: getattr(self, name) for name in ("hidden", "intermediate", "experts", "topk",
                                                         "max_tokens", "schedule")}
        return ({**values, "dtype": str(self.dtype), "clamp": clamp, "multiprocessors": workers},
                (symmetric.value, workspace.value))

    def _open(self, pointers, handle, first_wait_seconds):
        pointer = lambda name: None if self._weights[name] is None else self._weights[name].data_ptr()
        weights = (ctypes.c_void_p * 4)(*map(pointer, ("w1", "w1_scales", "w2", "w2_scales")))
        _library.call(_library.moe_open, ctypes.byref(self._config), self.device.index, pointers,
                      self._workspace.data_ptr(), weights, int(first_wait_seconds * 1e9),
                      int(self._wait_seconds * 1e9), ctypes.byref(handle))

    def _check(self, x, expert_ids, expert_weights, addend):
        tokens = x.shape[0] if x.dim() == 2 else -1
        _check_dense("x", x, torch.bfloat16, (tokens, self.hidden), self.device)
        if tokens > self.max_tokens:
            raise bad_input("a rank brings more tokens than the layer has room for", "x.shape",
                            list(x.shape), f"up to {self.max_tokens} tokens (max_tokens)")
        for name, t, dtype in (("expert_ids", expert_ids, torch.int32),
                               ("expert_weights", expert_weights, torch.float32)):
            _check_dense(name, t, dtype, (tokens, self.topk), self.device)
        if addend is not None:
            _check_dense("addend", addend, torch.bfloat16, (tokens, self.hidden), self.device)

    def _launch(self, x, expert_ids, expert_weights, addend):
        self._check(x, expert_ids, expert_weights, addend)
        out = torch.empty(x.shape, dtype=x.dtype, device=self.device)
        _library.call(_library.moe_forward, self._handle, x.shape[0], x.data_ptr(),
                      expert_ids.data_ptr(), expert_weights.data_ptr(),
                      None if addend is None else addend.data_ptr(), out.data_ptr(), self._stream())
        return out

    def forward(self, x: torch.Tensor, expert_ids: torch.Tensor, expert_weights: torch.Tensor,
                addend: Optional[torch.Tensor] = None) -> torch.Tensor:
        """This rank's tokens, 0 to max_tokens of them, another number in each call if need be: x
        bfloat16 [tokens, hidden], expert_ids int32 [tokens, topk], expert_weights float32 [tokens,
        topk], addend (a shared expert's result, say) like x, all contiguous. Returns bfloat16
        [tokens, hidden]. All ranks call equally often and in the same order. On the current stream;
        never waits for the device; may be captured and compiled. Raises WaitTimeout if an earlier
        call's wait passed its limit, BadInput for arguments and for an expert id out of range in an
        earlier call."""
        return torch.ops.xstage.moe(x, expert_ids, expert_weights, addend, self._number)

    def check(self):
        """Waits for this rank's device and raises what went wrong in the calls so far."""
        self._opened()
        torch.cuda.synchronize(self.device)
        _library.call(_library.moe_check, self._handle, self._stream())

    def extra_repr(self):
        return (f"rank {self.rank} of {self.ranks}, hidden={self.hidden}, "
                f"intermediate={self.intermediate}, experts={self.experts}, topk={self.topk}, "
                f"max_tokens={self.max_tokens}, dtype={self.dtype}, schedule={self.schedule}")


def _check_dense(name, t, dtype, shape, device):
    if t.dtype != dtype:
        raise bad_input("a tensor has another type", f"{name}.dtype", t.dtype, dtype)
    if tuple(t.shape) != tuple(shape):
        raise bad_input("a tensor has another shape", f"{name}.shape", list(t.shape),
                        "[tokens, hidden]" if -1 in shape else list(shape))
    if t.device != device:
        raise bad_input("a tensor is on another device", f"{name}.device", t.device, device)
    if not t.is_contiguous():
        raise bad_input("a tensor is not contiguous", f"{name}.stride()", list(t.stride()),
                        f"contiguous ({name}.contiguous() makes it so)")
