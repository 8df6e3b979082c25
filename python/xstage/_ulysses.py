"""Ulysses attention over a process group."""

import ctypes
from typing import Optional, Sequence

import torch
import torch.distributed as dist

from . import _library
from ._checks import TYPES, check_heads, check_shape, check_tensor
from ._errors import bad_input
from ._group import GroupLayer, layer_of


@torch.library.custom_op(
    "xstage::ulysses_attention", mutates_args=(), device_types=("cuda", "cpu"),
    schema="(Tensor q, Tensor k, Tensor v, int layer) -> Tensor")
def _ulysses_attention(q, k, v, layer):
    return layer_of(layer)._launch(q, k, v)


@_ulysses_attention.register_fake
def _(q, k, v, layer):
    layer_of(layer)._check(q, k, v)
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def _table(sequence, ranks, shards, text_rows):
    """Row segments [begin, end, rank, row there]: text that all ranks have, then the shards."""
    if text_rows < 0 or text_rows >= sequence:
        raise bad_input("text rows are part of the sequence", "text_rows", text_rows,
                        f"0 to {sequence - 1}")
    if shards is None:
        rest = sequence - text_rows
        shards = [rest // ranks + (rank < rest % ranks) for rank in range(ranks)]
    shards = [int(rows) for rows in shards]
    if len(shards) != ranks or min(shards) < 0 or sum(shards) + text_rows != sequence:
        raise bad_input("the shards do not make up the sequence", "shards", shards,
                        f"{ranks} numbers that add up to {sequence - text_rows}")
    table = [[0, text_rows, -1, 0]] if text_rows else []
    begin = text_rows
    for rank, rows in enumerate(shards):
        if rows:
            table.append([begin, begin + rows, rank, text_rows])
        begin += rows
    return table, shards


class UlyssesAttention(GroupLayer):
    """Attention whose sequence is sharded over the ranks of a group: Q, K and V rows go to the rank
    of their heads, and each finished tile of the output straight to the rank that owns its rows.

        layer = xstage.UlyssesAttention(group, sequence=8192, heads=24, head_dim=128)
        out = layer(q, k, v)     # this rank's rows, [batch, rows, heads, head_dim], of all heads

    One layer serves all blocks of a model that have these sizes. Making one is collective and
    allocates device memory (`bytes`): PyTorch symmetric memory, and a workspace.

    group        a process group of 1 to 8 ranks of one node, a GPU of compute capability 9.0 each;
                 None: all ranks
    sequence     rows of the whole sequence
    heads        query heads of all ranks; any number from the group's size on
    head_dim     64 or 128
    kv_heads     key and value heads, a divisor of heads; None: as many
    batch        batch entries
    dtype        torch.bfloat16 or torch.float16
    shards       rows of each rank; None: as even as they can be, longer ones first
    text_rows    rows at the beginning of every rank's tensors that all ranks have alike (text)
    scale        of the logits; None: 1/sqrt(head_dim)
    key_padding  keep `key_lengths`, an int32 tensor [batch] that may be changed between calls: keys
                 from there on, counted in the whole sequence, have no weight
    wait_seconds limit of a wait for another rank. A rank that compiles or loads is late by as much
    device       this rank's GPU; None: the current one
    """

    _functions = {"close": _library.ulysses_close, "recover": _library.ulysses_recover}

    def __init__(self, group: Optional[dist.ProcessGroup] = None, *, sequence: int, heads: int,
                 head_dim: int, kv_heads: Optional[int] = None, batch: int = 1,
                 dtype: torch.dtype = torch.bfloat16, shards: Optional[Sequence[int]] = None,
                 text_rows: int = 0, scale: Optional[float] = None, key_padding: bool = False,
                 wait_seconds: float = 30.0, device: Optional[torch.device] = None):
        super().__init__(group, device, wait_seconds)
        self.sequence, self.heads, self.head_dim = sequence, heads, head_dim
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.batch, self.dtype, self.text_rows = batch, dtype, text_rows
        self.key_lengths = None
        self._set_up(lambda: self._configure(shards, scale, key_padding),
                     lambda pointers, handle: self._open(pointers, handle, key_padding))

    def _configure(self, shards, scale, key_padding):
        if self.dtype not in TYPES:
            raise bad_input("this type has no kernel", "dtype", self.dtype,
                            "torch.bfloat16, torch.float16")
        for name in ("sequence", "heads", "batch"):
            if getattr(self, name) < 1:
                raise bad_input("a size is out of range", name, getattr(self, name), "1 or more")
        check_heads(self.heads, self.kv_heads, self.head_dim)
        table, self.shards = _table(self.sequence, self.ranks, shards, self.text_rows)
        self.rows = self.shards[self.rank] + self.text_rows
        self.shape = (self.batch, self.rows, self.heads, self.head_dim)
        self._kv_shape = (self.batch, self.rows, self.kv_heads, self.head_dim)
        flat = [number for segment in table for number in segment]
        self._table = (ctypes.c_int64 * len(flat))(*flat)
        self._config = _library.UlyssesConfig(
            self.ranks, self.rank, self.batch, self.heads, self.kv_heads, self.head_dim,
            self.sequence, ctypes.cast(self._table, ctypes.c_void_p), len(table),
            TYPES[self.dtype], 0.0 if scale is None else float(scale))
        symmetric, workspace = ctypes.c_int64(), ctypes.c_int64()
        _library.call(_library.ulysses_bytes, ctypes.byref(self._config), ctypes.byref(symmetric),
                      ctypes.byref(workspace))
        values = {name: getattr(self, name) for name in ("sequence", "heads", "kv_heads", "head_dim",
                                                         "batch", "shards", "text_rows")}
        return ({**values, "dtype": str(self.dtype), "scale": scale, "key_padding": key_padding},
                (symmetric.value, workspace.value))

    def _open(self, pointers, handle, key_padding):
        if key_padding:
            self.key_lengths = torch.full((self.batch,), self.sequence, dtype=torch.int32,
                                          device=self.device)
        _library.call(_library.ulysses_open, ctypes.byref(self._config), self.device.index, pointers,
                      self._workspace.data_ptr(),
                      self.key_lengths.data_ptr() if key_padding else None,
                      int(self._wait_seconds * 1e9), ctypes.byref(handle))

    def _check(self, q, k, v):
        check_tensor("q", q, self.dtype)
        for name, t in (("k", k), ("v", v)):
            check_tensor(name, t, self.dtype, q.device)
        check_shape("q", q, self.shape, "[batch, this rank's rows, heads, head_dim] of the layer")
        for name, t in (("k", k), ("v", v)):
            check_shape(name, t, self._kv_shape,
                        "[batch, this rank's rows, kv_heads, head_dim] of the layer")
        if q.device != self.device:
            raise bad_input("a tensor is on another device", "q.device", q.device, self.device)

    def _launch(self, q, k, v):
        self._check(q, k, v)
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        _library.call(_library.ulysses_forward, self._handle, _library.tensor(q),
                      _library.tensor(k), _library.tensor(v), out.data_ptr(), self._stream())
        return out

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """This rank's rows: q [batch, rows, heads, head_dim], k and v with kv_heads. Returns a
        contiguous tensor like q. All ranks call equally often and in the same order. On the current
        stream; never waits for the device; may be captured and compiled. Raises WaitTimeout if an
        earlier call's wait for another rank passed its limit, other xstage.Error for arguments."""
        return torch.ops.xstage.ulysses_attention(q, k, v, self._number)

    def check(self):
        """Waits for this rank's device and raises WaitTimeout if a wait passed its limit."""
        self._opened()
        torch.cuda.synchronize(self.device)
        _library.call(_library.ulysses_check, self._handle)

    def extra_repr(self):
        return (f"rank {self.rank} of {self.ranks}, batch={self.batch}, sequence={self.sequence}, "
                f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, "
                f"dtype={self.dtype}")
