"""xstage: attention and fused expert-parallel MoE for diffusion transformers on NVLink GPUs.

    attention        attention forward on one GPU
    UlyssesAttention the same over a process group, its All-to-All fused into the kernel
    MoeLayer         a fused expert-parallel MoE layer; quantise_weights makes its w8a8 weights

Errors are `Error` and its kinds `BadInput`, `Unsupported`, `WaitTimeout`. Shapes, units and errors:
docs/python.md. The operators need PyTorch with CUDA, which is imported when one is first used.
"""

from ._errors import BadInput, Error, Unsupported, WaitTimeout
from ._library import version as __version__

_OPERATORS = {"attention": "_attention", "UlyssesAttention": "_ulysses", "MoeLayer": "_moe",
              "quantise_weights": "_moe"}

__all__ = ["BadInput", "Error", "Unsupported", "WaitTimeout", "__version__", *_OPERATORS]


def __getattr__(name):
    if name not in _OPERATORS:
        raise AttributeError(f"module 'xstage' has no attribute '{name}'")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ImportError(f"xstage.{name} needs PyTorch: {error}") from error
    from importlib import import_module

    value = getattr(import_module(f".{_OPERATORS[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
