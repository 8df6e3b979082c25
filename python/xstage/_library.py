"""libxstage.so, the functions of xstage.h. Loading it needs no GPU, no driver and no PyTorch."""

import ctypes
import os
import threading

from ._errors import raise_for

ABI = 1

_int, _long, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_tail = [ctypes.c_char_p, ctypes.c_size_t]


class UlyssesConfig(ctypes.Structure):
    _fields_ = [("ranks", _int), ("rank", _int), ("batch", _long), ("heads", _long),
                ("kv_heads", _long), ("head_dim", _long), ("rows", _long), ("table", _pointer),
                ("segments", _int), ("type", _int), ("scale", ctypes.c_float)]


class MoeConfig(ctypes.Structure):
    _fields_ = [("ranks", _int), ("rank", _int), ("topk", _int), ("format", _int),
                ("experts", _long), ("hidden", _long), ("intermediate", _long), ("capacity", _long),
                ("tokens", _long), ("workers", _int), ("order", _int), ("group_or_lead", _long),
                ("clamp", ctypes.c_float)]


_SIGNATURES = {
    "xstage_attention": [_int, _pointer, _pointer, _pointer, _pointer, _pointer, _pointer,
                         ctypes.c_float, _int, _pointer],
    "xstage_ulysses_bytes": [_pointer, _pointer, _pointer],
    "xstage_ulysses_open": [_pointer, _int, _pointer, _pointer, _pointer, ctypes.c_uint64, _pointer],
    "xstage_ulysses_forward": [_pointer, _pointer, _pointer, _pointer, _pointer, _pointer],
    "xstage_ulysses_check": [_pointer],
    "xstage_ulysses_recover": [_pointer],
    "xstage_moe_choose": [_pointer, ctypes.c_char_p, ctypes.c_size_t],
    "xstage_moe_bytes": [_pointer, _pointer, _pointer],
    "xstage_moe_open": [_pointer, _int, _pointer, _pointer, _pointer, ctypes.c_uint64,
                        ctypes.c_uint64, _pointer],
    "xstage_moe_forward": [_pointer, _long, _pointer, _pointer, _pointer, _pointer, _pointer, _pointer],
    "xstage_moe_check": [_pointer, _pointer],
    "xstage_moe_recover": [_pointer],
}


def _load():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libxstage.so")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"xstage cannot load its library: {error}") from error
    if library.xstage_abi() != ABI:
        raise ImportError(f"{path} has ABI {library.xstage_abi()}, this package needs {ABI}: "
                          "install one wheel over the other, not parts of two")
    library.xstage_version.restype = ctypes.c_char_p
    for close in (library.xstage_ulysses_close, library.xstage_moe_close):
        close.argtypes, close.restype = [_pointer], None
    for name, arguments in _SIGNATURES.items():
        getattr(library, name).argtypes = arguments + _tail
    return library


_library = _load()
_local = threading.local()

version = _library.xstage_version().decode()


def _call(function, *arguments):
    try:
        message = _local.message
    except AttributeError:
        message = _local.message = ctypes.create_string_buffer(1024)
    code = function(*arguments, message, 1024)
    if code:
        raise_for(code, message.value.decode(errors="replace"))


attention = _library.xstage_attention
ulysses_bytes = _library.xstage_ulysses_bytes
ulysses_open = _library.xstage_ulysses_open
ulysses_forward = _library.xstage_ulysses_forward
ulysses_check = _library.xstage_ulysses_check
ulysses_recover = _library.xstage_ulysses_recover
ulysses_close = _library.xstage_ulysses_close
moe_choose = _library.xstage_moe_choose
moe_bytes = _library.xstage_moe_bytes
moe_open = _library.xstage_moe_open
moe_forward = _library.xstage_moe_forward
moe_check = _library.xstage_moe_check
moe_recover = _library.xstage_moe_recover
moe_close = _library.xstage_moe_close
call = _call

_Nine = ctypes.c_int64 * 9


def tensor(t):
    """struct xstage_tensor: address, four sizes, four strides."""
    return _Nine(t.data_ptr(), *t.shape, *t.stride())

