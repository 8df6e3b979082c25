"""What layers of a process group share: agreement, symmetric memory, an end."""

import contextlib
import ctypes
import weakref

import torch
import torch.distributed as dist

from . import _library
from ._checks import MAX_RANKS
from ._errors import BadInput, Error, bad_input

_layers = weakref.WeakValueDictionary()
_next_number = 0


def layer_of(number):
    """The open layer that an operator was given by number."""
    layer = _layers.get(number)
    if layer is None or layer._handle is None:
        raise bad_input("the layer has been closed", "layer", number, "one that is open")
    return layer


def rendezvous(tensor, group):
    """Addresses of every rank's tensor as this rank's GPU reaches them, and what keeps them."""
    import torch.distributed._symmetric_memory as symmetric_memory

    peers = symmetric_memory.rendezvous(tensor, group)
    return (ctypes.c_void_p * len(peers.buffer_ptrs))(*peers.buffer_ptrs), peers


class GroupLayer(torch.nn.Module):
    """One rank's part of a layer. Subclasses name the library's functions in `_functions`."""

    def __init__(self, group, device, wait_seconds):
        super().__init__()
        self._handle = None
        if not dist.is_available() or not dist.is_initialized():
            raise bad_input("there is no process group yet", "group", group,
                            "one made after torch.distributed.init_process_group()")
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        if device is None and torch.cuda.is_available():
            device = torch.cuda.current_device()
        self.device = torch.device("cuda" if device is None else device)
        self._wait_seconds = wait_seconds

    def _check_group(self):
        if not 1 <= self.ranks <= MAX_RANKS:
            raise bad_input("a layer has the ranks of one node", "group", f"{self.ranks} ranks",
                            f"1 to {MAX_RANKS}")
        if self.device.type != "cuda" or self.device.index is None:
            raise bad_input("a layer needs a GPU", "device", self.device, "cuda:N")
        if not 0 < self._wait_seconds <= 3600:
            raise bad_input("the limit of a wait is out of range", "wait_seconds",
                            self._wait_seconds, "above 0, at most 3600")

    def _set_up(self, configure, open_handle):
        """`configure()` gives what must be the same on all ranks and the bytes of both buffers;
        `open_handle(pointers, handle)` opens the library's layer on them. Collective; where one
        rank fails, all raise."""
        values = bytes_of = error = None
        try:
            self._check_group()
            values, bytes_of = configure()
        except Error as failure:
            error = failure
        self._agree(error, values)
        handle = ctypes.c_void_p()
        with torch.cuda.device(self.device):
            self.symmetric_bytes, self.workspace_bytes = bytes_of
            try:
                import torch.distributed._symmetric_memory as symmetric_memory

                self._buffer = symmetric_memory.empty(self.symmetric_bytes, dtype=torch.uint8,
                                                      device=self.device)
                self._workspace = torch.zeros(self.workspace_bytes, dtype=torch.uint8,
                                              device=self.device)
            except RuntimeError as failure:  # memory, most often
                error = Error(f"rank {self.rank} cannot allocate {sum(bytes_of)} bytes: {failure}")
            self._agree(error)
            pointers, self._peers = rendezvous(self._buffer, self.group)
            self._buffer.zero_()
            torch.cuda.synchronize(self.device)
            try:
                open_handle(pointers, handle)
            except Error as failure:
                error = failure
            # Also the barrier behind which all buffers are ready.
            self._agree(error)
        global _next_number
        self._number = _next_number
        _next_number += 1
        self._handle = handle
        self._release = weakref.finalize(self, _close, self._functions["close"], handle, self.device)
        self._release.atexit = False
        _layers[self._number] = self

    @property
    def bytes(self):
        """Of device memory that the layer holds on this rank, weights not counted."""
        return self.symmetric_bytes + self.workspace_bytes

    def _agree(self, error, values=None):
        """Every rank raises where one must: nobody is left waiting in a collective call."""
        of_rank = [None] * self.ranks
        here = self.device if torch.cuda.is_available() and self.device.type == "cuda" else None
        with torch.cuda.device(here) if here else contextlib.nullcontext():
            dist.all_gather_object(of_rank, (str(error) if error else None, values), group=self.group)
        if error:
            raise error
        for rank, (message, _) in enumerate(of_rank):
            if message:
                raise BadInput(f"rank {rank} could not open the layer: {message}")
        for name, value in (values or {}).items():
            for rank, (_, others) in enumerate(of_rank):
                if others[name] != of_rank[0][1][name]:
                    raise bad_input("the ranks were given different layers", name,
                                    f"{of_rank[0][1][name]} on rank 0, {others[name]} on rank {rank}",
                                    "the same on all ranks")

    def _stream(self):
        return torch.cuda.current_stream(self.device).cuda_stream

    def _opened(self):
        if self._handle is None:
            raise bad_input("the layer has been closed", "layer", self._number, "one that is open")

    def recover(self):
        """After a WaitTimeout, on every rank: the next call works again. Waits for all ranks."""
        self._opened()
        torch.cuda.synchronize(self.device)
        dist.barrier(self.group)
        _library.call(self._functions["recover"], self._handle)
        dist.barrier(self.group)

    def close(self):
        """Waits for this rank's device and gives the memory back. Every rank closes its own."""
        if self._handle is None:
            return
        self._release()
        self._handle = None
        _layers.pop(self._number, None)
        del self._buffer, self._peers, self._workspace

    def __deepcopy__(self, memo):
        raise Error(f"a {type(self).__name__} cannot be copied: its memory is shared with other "
                    "ranks; make another one, on all ranks")

    def __reduce_ex__(self, protocol):
        raise Error(f"a {type(self).__name__} cannot be pickled: its memory is shared with other ranks")


def _close(function, handle, device):
    torch.cuda.synchronize(device)
    function(handle)
