"""What is refused before a kernel is asked: meta kernels and the real ones refuse alike."""

import torch

from ._errors import bad_input

TYPES = {torch.bfloat16: 0, torch.float16: 1}
HEAD_DIMS = (64, 128)
MAX_RANKS = 8


def shape(t):
    return "[" + ", ".join(str(n) for n in t.shape) + "]"


def check_tensor(name, t, dtype=None, device=None):
    """Four dimensions, a type that has a kernel, 16-byte units."""
    if not isinstance(t, torch.Tensor):
        raise bad_input("a tensor is wanted", name, type(t).__name__, "torch.Tensor")
    if t.dim() != 4:
        raise bad_input("a tensor has another number of dimensions", f"{name}.shape", shape(t),
                        "[batch, rows, heads, head_dim]")
    if dtype is None and t.dtype not in TYPES:
        raise bad_input("a tensor's type has no kernel", f"{name}.dtype", t.dtype,
                        "torch.bfloat16, torch.float16")
    if dtype is not None and t.dtype != dtype:
        raise bad_input("a tensor has another type", f"{name}.dtype", t.dtype, dtype)
    if device is not None and t.device != device:
        raise bad_input("a tensor is on another device", f"{name}.device", t.device, device)
    if device is None and t.device.type not in ("cuda", "meta"):
        raise bad_input("a tensor is on a device that has no kernel", f"{name}.device", t.device,
                        "cuda")
    if t.stride(3) != 1:
        raise bad_input("a tensor's last dimension must be dense", f"{name}.stride(3)", t.stride(3),
                        f"1 ({name}.contiguous() makes it so)")
    for i in range(3):
        if t.shape[i] > 1 and (t.stride(i) % 8 != 0 or t.stride(i) == 0):
            raise bad_input("a tensor does not lie in 16-byte units", f"{name}.stride({i})",
                            t.stride(i), "a positive multiple of 8 elements")


def check_heads(heads, kv_heads, head_dim):
    if head_dim not in HEAD_DIMS:
        raise bad_input("this head_dim has no kernel", "head_dim", head_dim, "64 or 128")
    if kv_heads < 1 or heads % kv_heads != 0:
        raise bad_input("the query heads do not divide by the key heads", "kv_heads", kv_heads,
                        f"a divisor of {heads}")


def check_shape(name, t, wanted, names="[batch, rows, heads, head_dim]"):
    if tuple(t.shape) != tuple(wanted):
        raise bad_input("a tensor has another shape", f"{name}.shape", shape(t),
                        f"{list(wanted)}, {names}")
