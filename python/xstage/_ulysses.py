"""Ulysses attention over a process group."""

import contextlib
import ctypes
import weakref
from typing import Optional, Sequence

import torch
import torch.distributed as dist

from . import _library
from ._checks import MAX_RANKS, TYPES, check_heads, check_shape, check_tensor
from ._errors import BadInput, Error, bad_input

_layers = weakref.WeakValueDictionary()
_next_number = 0


def _layer(number):
    layer = _layers.get(number)
    if layer is None or layer._handle is None:
        raise bad_input("the layer has been closed", "layer", number, "one that is open")
    return layer


@torch.library.custom_op(
    "xstage::ulysses_attention", mutates_args=(), device_types=("cuda", "cpu"),
    schema="(Tensor q, Tensor k, Tensor v, int layer) -> Tensor")
def _ulysses_attention(q, k, v, layer):
    return _layer(layer)._launch(q, k, v)


@_ulysses_attention.register_fake
def _(q, k, v, layer):
    _layer(layer)._check(q, k, v)
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


class UlyssesAttention(torch.nn.Module):
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

    def __init__(self, group: Optional[dist.ProcessGroup] = None, *, sequence: int, heads: int,
                 head_dim: int, kv_heads: Optional[int] = None, batch: int = 1,
                 dtype: torch.dtype = torch.bfloat16, shards: Optional[Sequence[int]] = None,
                 text_rows: int = 0, scale: Optional[float] = None, key_padding: bool = False,
                 wait_seconds: float = 30.0, device: Optional[torch.device] = None):
        super().__init__()
        self._handle = None
        if not dist.is_available() or not dist.is_initialized():
            raise bad_input("there is no process group yet", "group", group,
                            "one made after torch.distributed.init_process_group()")
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.sequence, self.heads, self.head_dim = sequence, heads, head_dim
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.batch, self.dtype, self.text_rows = batch, dtype, text_rows
        if device is None and torch.cuda.is_available():
            device = torch.cuda.current_device()
        self.device = torch.device("cuda" if device is None else device)
        error = None
        try:
            config = self._configure(shards, scale, wait_seconds)
        except Error as failure:
            config, error = None, failure
        self._agree(error)
        self._open(config, key_padding, wait_seconds)

    def _configure(self, shards, scale, wait_seconds):
        if not 1 <= self.ranks <= MAX_RANKS:
            raise bad_input("a layer has the ranks of one node", "group", f"{self.ranks} ranks",
                            f"1 to {MAX_RANKS}")
        if self.dtype not in TYPES:
            raise bad_input("this type has no kernel", "dtype", self.dtype,
                            "torch.bfloat16, torch.float16")
        if self.device.type != "cuda" or self.device.index is None:
            raise bad_input("a layer needs a GPU", "device", self.device, "cuda:N")
        if not wait_seconds > 0 or wait_seconds > 3600:
            raise bad_input("the limit of a wait is out of range", "wait_seconds", wait_seconds,
                            "above 0, at most 3600")
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
        config = _library.UlyssesConfig(
            self.ranks, self.rank, self.batch, self.heads, self.kv_heads, self.head_dim,
            self.sequence, ctypes.cast(self._table, ctypes.c_void_p), len(table),
            TYPES[self.dtype], 0.0 if scale is None else float(scale))
        symmetric, workspace = ctypes.c_int64(), ctypes.c_int64()
        _library.call(_library.ulysses_bytes, ctypes.byref(config), ctypes.byref(symmetric),
                      ctypes.byref(workspace))
        self.symmetric_bytes, self.workspace_bytes = symmetric.value, workspace.value
        self.bytes = self.symmetric_bytes + self.workspace_bytes
        return config

    def _agree(self, error):
        """Every rank raises where one must: nobody is left waiting in a collective call."""
        mine = (str(error) if error else None,
                None if error else {"sequence": self.sequence, "heads": self.heads,
                                    "kv_heads": self.kv_heads, "head_dim": self.head_dim,
                                    "batch": self.batch, "dtype": str(self.dtype),
                                    "shards": self.shards, "text_rows": self.text_rows})
        of_rank = [None] * self.ranks
        here = self.device if torch.cuda.is_available() and self.device.type == "cuda" else None
        with torch.cuda.device(here) if here else contextlib.nullcontext():
            dist.all_gather_object(of_rank, mine, group=self.group)
        if error:
            raise error
        for rank, (message, _) in enumerate(of_rank):
            if message:
                raise BadInput(f"rank {rank} refused its arguments: {message}")
        for name, value in of_rank[0][1].items():
            for rank, (_, values) in enumerate(of_rank):
                if values[name] != value:
                    raise bad_input("the ranks were given different layers", name,
                                    f"{value} on rank 0, {values[name]} on rank {rank}",
                                    "the same on all ranks")

    def _open(self, config, key_padding, wait_seconds):
        import torch.distributed._symmetric_memory as symmetric_memory

        with torch.cuda.device(self.device):
            self._buffer = symmetric_memory.empty(self.symmetric_bytes, dtype=torch.uint8,
                                                  device=self.device)
            peers = symmetric_memory.rendezvous(self._buffer, self.group)
            self._peers = peers
            self._buffer.zero_()
            self._workspace = torch.zeros(self.workspace_bytes, dtype=torch.uint8,
                                          device=self.device)
            self.key_lengths = torch.full((self.batch,), self.sequence, dtype=torch.int32,
                                          device=self.device) if key_padding else None
            torch.cuda.synchronize(self.device)
            pointers = (ctypes.c_void_p * self.ranks)(*peers.buffer_ptrs)
            handle = ctypes.c_void_p()
            error = None
            try:
                _library.call(_library.ulysses_open, ctypes.byref(config), self.device.index,
                              pointers, self._workspace.data_ptr(),
                              self.key_lengths.data_ptr() if key_padding else None,
                              int(wait_seconds * 1e9), ctypes.byref(handle))
            except Error as failure:
                error = failure
            # Also the barrier behind which all buffers are zero.
            self._agree(error)
        global _next_number
        self._number = _next_number
        _next_number += 1
        self._handle = handle
        self._release = weakref.finalize(self, _close, handle, self.device)
        self._release.atexit = False
        _layers[self._number] = self

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
                      _library.tensor(k), _library.tensor(v), out.data_ptr(),
                      torch.cuda.current_stream(self.device).cuda_stream)
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

    def recover(self):
        """After a WaitTimeout, on every rank: the next call works again. Waits for all ranks."""
        self._opened()
        torch.cuda.synchronize(self.device)
        dist.barrier(self.group)
        _library.call(_library.ulysses_recover, self._handle)
        dist.barrier(self.group)

    def close(self):
        """Waits for this rank's device and gives the memory back. Every rank closes its own."""
        if self._handle is None:
            return
        self._release()
        self._handle = None
        _layers.pop(self._number, None)
        del self._buffer, self._peers, self._workspace

    def _opened(self):
        if self._handle is None:
            raise bad_input("the layer has been closed", "layer", self._number, "one that is open")

    def extra_repr(self):
        return (f"rank {self.rank} of {self.ranks}, batch={self.batch}, sequence={self.sequence}, "
                f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, "
                f"dtype={self.dtype}")

    def __deepcopy__(self, memo):
        raise Error("a UlyssesAttention cannot be copied: its memory is shared with other ranks; "
                    "make another one, on all ranks")

    def __reduce_ex__(self, protocol):
        raise Error("a UlyssesAttention cannot be pickled: its memory is shared with other ranks")


def _close(handle, device):
    torch.cuda.synchronize(device)
    _library.ulysses_close(handle)
