"""Attention on one GPU."""

from typing import Optional

import torch

from . import _library
from ._checks import TYPES, check_heads, check_shape, check_tensor
from ._errors import bad_input


def _check(q, k, v, key_lengths, scale):
    check_tensor("q", q)
    for name, t in (("k", k), ("v", v)):
        check_tensor(name, t, q.dtype, q.device)
    batch, _, heads, dim = q.shape
    check_heads(heads, k.shape[2], dim)
    check_shape("k", k, (batch, k.shape[1], k.shape[2], dim))
    check_shape("v", v, k.shape)
    if key_lengths is not None:
        if key_lengths.dtype != torch.int32 or tuple(key_lengths.shape) != (batch,):
            raise bad_input("key lengths are one a batch entry", "key_lengths",
                            f"{key_lengths.dtype} {list(key_lengths.shape)}", f"torch.int32 [{batch}]")
        if key_lengths.device != q.device or not key_lengths.is_contiguous():
            raise bad_input("key lengths lie where the tensors do", "key_lengths.device",
                            key_lengths.device, f"{q.device}, contiguous")
    if scale < 0 or scale != scale or scale == float("inf"):
        raise bad_input("the scale of the logits is out of range", "scale", scale,
                        "a positive number, or None for 1/sqrt(head_dim)")


@torch.library.custom_op(
    "xstage::attention", mutates_args=(), device_types=("cuda", "cpu"),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? key_lengths, float scale, bool lse) -> (Tensor, Tensor)")
def _attention(q, k, v, key_lengths, scale, lse):
    _check(q, k, v, key_lengths, scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sums = q.new_empty((q.shape[0], q.shape[2], q.shape[1]) if lse else (0,), dtype=torch.float32)
    if out.numel() == 0:
        return out, sums
    _library.call(_library.attention, TYPES[q.dtype], *map(_library.tensor, (q, k, v, out)),
                  None if key_lengths is None else key_lengths.data_ptr(),
                  sums.data_ptr() if lse else None, scale, q.device.index,
                  torch.cuda.current_stream(q.device).cuda_stream)
    return out, sums


@_attention.register_fake
def _(q, k, v, key_lengths, scale, lse):
    _check(q, k, v, key_lengths, scale)
    sums = q.new_empty((q.shape[0], q.shape[2], q.shape[1]) if lse else (0,), dtype=torch.float32)
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), sums


def attention(q, k, v, *, scale: Optional[float] = None, key_lengths: Optional[torch.Tensor] = None,
              return_lse: bool = False):
    """Attention forward, not causal, on one GPU of compute capability 9.0.

    q is [batch, rows, heads, head_dim], k and v are [batch, key rows, kv_heads, head_dim] with
    kv_heads a divisor of heads; bfloat16 or float16, head_dim 64 or 128, any strides whose last is
    1 and whose others are multiples of 8. scale of the logits: 1/sqrt(head_dim) unless given.
    key_lengths, int32 [batch] on the same device: keys from there on have no weight.

    Returns a contiguous tensor like q; with return_lse also the natural logarithm of each row's
    sum, float32 [batch, heads, rows]. Runs on the current stream, never waits for the device, may
    be captured and compiled. No backward pass. Raises xstage.Error.
    """
    out, sums = torch.ops.xstage.attention(q, k, v, key_lengths, 0.0 if scale is None else scale,
                                           return_lse)
    return (out, sums) if return_lse else out
