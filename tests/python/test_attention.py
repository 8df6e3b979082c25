"""xstage.attention on a GPU, against float64: twice the error of PyTorch's own is allowed."""
import math

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)
import xstage  # noqa: E402
from ulysses_ranks import error, exact, plain  # noqa: E402


def tensors(batch=1, rows=300, keys=450, heads=4, kv=2, dim=128, dtype=torch.bfloat16, seed=3):
    random = torch.Generator("cuda").manual_seed(seed)
    make = lambda r, h: torch.randn(batch, r, h, dim, device="cuda", generator=random).to(dtype)
    return make(rows, heads), make(keys, kv), make(keys, kv)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("batch,rows,keys,heads,kv", [(1, 300, 450, 4, 2), (2, 1, 129, 3, 3), (3, 512, 77, 8, 1)])
def test_right(dtype, dim, batch, rows, keys, heads, kv):
    qkv = tensors(batch, rows, keys, heads, kv, dim, dtype)
    out, lse = xstage.attention(*qkv, return_lse=True)
    wanted = exact(*qkv)
    assert error(out, wanted) <= 2 * error(plain(*qkv), wanted)
    assert torch.equal(out, xstage.attention(*qkv))
    q, k = (x.transpose(1, 2).double() for x in qkv[:2])
    sums = torch.logsumexp(q @ k.repeat_interleave(heads // kv, 1).transpose(-1, -2) * dim ** -0.5, -1)
    assert (lse - sums).abs().max() < 1e-3


def test_strides():
    qkv = torch.randn(2, 200, 3, 4, 64, device="cuda").bfloat16().unbind(2)
    assert torch.equal(xstage.attention(*qkv), xstage.attention(*(x.contiguous() for x in qkv)))
    first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv]
    assert torch.equal(xstage.attention(*first), xstage.attention(*qkv))
    assert torch.equal(xstage.attention(*(x[:1] for x in qkv)), xstage.attention(*qkv)[:1])


def test_scale_and_key_lengths():
    qkv = tensors(batch=2)
    lengths = torch.tensor([450, 17], dtype=torch.int32, device="cuda")
    assert error(xstage.attention(*qkv, key_lengths=lengths), exact(*qkv, lengths)) < 4e-3
    scaled = xstage.attention(*qkv, scale=2 / math.sqrt(128))
    assert error(scaled, exact(qkv[0] * 2, *qkv[1:])) < 4e-3


def test_on_the_callers_stream():
    q, k, v = tensors(rows=4096, keys=4096, kv=4)
    wanted = xstage.attention(q * 2, k, v)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out = xstage.attention(q * 2, k, v) + 0
    side.synchronize()
    assert torch.equal(out, wanted)


def test_captured():
    qkv = tensors()
    graph = torch.cuda.CUDAGraph()
    xstage.attention(*qkv)
    with torch.cuda.graph(graph):
        out = xstage.attention(*qkv)
    for seed in range(3):
        fresh = tensors(seed=seed)
        for mine, new in zip(qkv, fresh):
            mine.copy_(new)
        graph.replay()
        assert torch.equal(out, xstage.attention(*fresh))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode):
    block = lambda q, k, v: xstage.attention(q * 1.0, k, v) + 1
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    for seed in range(4):
        qkv = tensors(seed=seed)
        assert torch.equal(compiled(*qkv), block(*qkv))


def test_operator_is_well_formed():
    qkv = tensors()
    torch.library.opcheck(torch.ops.xstage.attention.default, (*qkv, None, 0.0, True),
                          test_utils=("test_schema", "test_faketensor"))


def test_no_backward():
    q, k, v = tensors()
    with pytest.raises(Exception, match="autograd|backward|grad"):
        xstage.attention(q.requires_grad_(), k, v).sum().backward()


def test_nothing_of_the_device_is_kept():
    qkv = tensors(rows=2048, keys=2048)
    xstage.attention(*qkv)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(500):
        xstage.attention(*qkv)
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < 1 << 20
