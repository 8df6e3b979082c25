"""What is refused, by name, without a GPU; and what meta kernels say."""
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
import xstage  # noqa: E402


def tensors(q=(1, 16, 4, 64), kv=(1, 16, 2, 64), device="meta", dtype=torch.bfloat16):
    make = lambda shape: torch.empty(shape, device=device, dtype=dtype)
    return make(q), make(kv), make(kv)


REFUSED = {
    "cpu": (lambda: xstage.attention(*tensors(device="cpu")), "q.device = cpu; allowed: cuda"),
    "dtype": (lambda: xstage.attention(*tensors(dtype=torch.float32)),
              "q.dtype = torch.float32; allowed: torch.bfloat16, torch.float16"),
    "head_dim": (lambda: xstage.attention(*tensors((1, 16, 4, 96), (1, 16, 2, 96))),
                 "head_dim = 96; allowed: 64 or 128"),
    "groups": (lambda: xstage.attention(*tensors((1, 16, 4, 64), (1, 16, 3, 64))),
               "kv_heads = 3; allowed: a divisor of 4"),
    "dimensions": (lambda: xstage.attention(*tensors((16, 4, 64))),
                   "q.shape = [16, 4, 64]; allowed: [batch, rows, heads, head_dim]"),
    "batch": (lambda: xstage.attention(*tensors(kv=(2, 16, 2, 64))), "k.shape = [2, 16, 2, 64]"),
    "value": (lambda: xstage.attention(*tensors()[:2], torch.empty(1, 8, 2, 64, device="meta",
                                                                   dtype=torch.bfloat16)),
              "v.shape = [1, 8, 2, 64]; allowed: [1, 16, 2, 64]"),
    "two types": (lambda: xstage.attention(tensors()[0], *tensors(dtype=torch.float16)[1:]),
                  "k.dtype = torch.float16; allowed: torch.bfloat16"),
    "last stride": (lambda: xstage.attention(
        torch.empty(1, 16, 64, 4, device="meta", dtype=torch.bfloat16).transpose(2, 3),
        *tensors()[1:]), "q.stride(3) = 4; allowed: 1"),
    "odd stride": (lambda: xstage.attention(
        torch.empty(1, 16, 4, 68, device="meta", dtype=torch.bfloat16)[..., :64], *tensors()[1:]),
        "q.stride(2) = 68; allowed: a positive multiple of 8"),
    "expanded": (lambda: xstage.attention(
        torch.empty(1, 1, 4, 64, device="meta", dtype=torch.bfloat16).expand(1, 16, 4, 64),
        *tensors()[1:]), "q.stride(1) = 0"),
    "scale": (lambda: xstage.attention(*tensors(), scale=-1.0), "scale = -1.0"),
    "not a number": (lambda: xstage.attention(*tensors(), scale=float("nan")), "scale = nan"),
    "key lengths": (lambda: xstage.attention(*tensors(), key_lengths=torch.empty(
        1, device="meta", dtype=torch.int64)), "key_lengths = torch.int64 [1]; allowed: torch.int32 [1]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_attention_refuses_by_name(name):
    call, words = REFUSED[name]
    with pytest.raises(xstage.BadInput) as failure:
        call()
    assert words in str(failure.value)
    assert isinstance(failure.value, ValueError) and failure.value.code == 2


def test_meta_kernel_gives_shapes():
    q, k, v = tensors((2, 24, 4, 128), (2, 40, 2, 128))
    out, lse = xstage.attention(q.transpose(0, 1).contiguous().transpose(0, 1), k, v, return_lse=True)
    assert out.shape == q.shape and out.is_contiguous() and out.dtype == q.dtype
    assert lse.shape == (2, 4, 24) and lse.dtype == torch.float32


def test_strides_of_a_dimension_of_one_do_not_matter():
    q, k, v = tensors()
    assert xstage.attention(q[0].unsqueeze(0), k.as_strided(k.shape, (3, 128, 64, 1)), v).shape == q.shape


def test_export_traces_through():
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return xstage.attention(q, k, v, scale=0.5) * 2

    program = torch.export.export(Block(), tensors())
    assert any("xstage.attention" in str(node.target) for node in program.graph.nodes)


LAYERS = {
    "sequence=64, heads=6, head_dim=96, device='cuda:0'": "head_dim = 96; allowed: 64 or 128",
    "sequence=64, heads=6, head_dim=64, kv_heads=4, device='cuda:0'": "kv_heads = 4; allowed: a divisor of 6",
    "sequence=64, heads=6, head_dim=64, shards=[32, 32], device='cuda:0'":
        "shards = [32, 32]; allowed: 1 numbers that add up to 64",
    "sequence=64, heads=6, head_dim=64, text_rows=64, device='cuda:0'": "text_rows = 64; allowed: 0 to 63",
    "sequence=0, heads=6, head_dim=64, device='cuda:0'": "sequence = 0; allowed: 1 or more",
    "sequence=64, heads=6, head_dim=64, dtype=float, device='cuda:0'":
        "dtype = <class 'float'>; allowed: torch.bfloat16, torch.float16",
    "sequence=64, heads=6, head_dim=64, wait_seconds=0, device='cuda:0'": "wait_seconds = 0; allowed: above 0",
    "sequence=64, heads=6, head_dim=64, device='cpu'": "device = cpu; allowed: cuda:N",
}


MOE = {  # what differs from a layer that is right but for its tensors' device
    "": "w1.device = cpu; allowed: cuda:0",
    "hidden=320": "w1.shape = [4, 256, 256]; allowed: [4, 256, 320]",
    "experts=0": "experts = 0; allowed: a multiple of 1",
    "topk=0": "topk = 0; allowed: 1 or more",
    "w1=torch.zeros(4, 256, 256)": "w1.dtype = torch.float32; allowed: torch.bfloat16, torch.float8_e4m3fn",
    "w2=None": "w2 = NoneType; allowed: torch.Tensor",
    "clamp=-1.0": "clamp = -1.0; allowed: 0 (none)",
    "first_wait_seconds=0": "first_wait_seconds = 0; allowed: above 0",
}


def moe_arguments(changed):
    right = {"hidden": "256", "intermediate": "128", "experts": "4", "topk": "2", "max_tokens": "8",
             "w1": "torch.zeros(4, 256, 256, dtype=torch.bfloat16)", "device": "'cuda:0'",
             "w2": "torch.zeros(4, 256, 128, dtype=torch.bfloat16)"}
    if changed:
        name, value = changed.split("=", 1)
        right[name] = value
    return ", ".join(f"{name}={value}" for name, value in right.items())


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What every one of these layers says, made one after the other in a group of one gloo rank."""
    calls = [f"xstage.UlyssesAttention({arguments})" for arguments in LAYERS]
    calls += [f"xstage.MoeLayer({moe_arguments(changed)})" for changed in MOE]
    script = """
import sys, torch, torch.distributed as dist, xstage
dist.init_process_group("gloo", rank=0, world_size=1, init_method="file://" + sys.argv[1])
for call in sys.stdin:
    try:
        eval(call)
        print("accepted")
    except xstage.Error as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path_factory.mktemp("group") / "store")],
                          input="\n".join(calls), capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(calls), done.stderr[-2000:]
    return dict(zip([*LAYERS, *(("moe", changed) for changed in MOE)], lines))


@pytest.mark.parametrize("arguments", LAYERS)
def test_layer_refuses_by_name(said, arguments):
    assert said[arguments].startswith("BadInput ") and LAYERS[arguments] in said[arguments]


@pytest.mark.parametrize("changed", MOE)
def test_moe_layer_refuses_by_name(said, changed):
    assert said["moe", changed].startswith("BadInput ") and MOE[changed] in said["moe", changed]


def test_layer_without_a_group():
    with pytest.raises(xstage.BadInput, match="init_process_group"):
        xstage.UlyssesAttention(sequence=64, heads=6, head_dim=64)
