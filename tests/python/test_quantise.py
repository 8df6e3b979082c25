"""quantise_weights() against the format's rule as the CPU ranks have it (quantise_reference.cpp)."""
import os
import struct
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
import xstage  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def reference(block):
    done = subprocess.run([os.environ["XSTAGE_QUANTISE"]], input=block.float().cpu().numpy().tobytes(),
                          capture_output=True, check=True).stdout
    return torch.tensor(list(done[4:]), dtype=torch.uint8).view(block.shape), struct.unpack("f", done[:4])[0]


@pytest.mark.skipif("XSTAGE_QUANTISE" not in os.environ, reason="needs the program quantise_reference")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["normal", "tiny", "huge", "zeros", "one large value", "steps"])
def test_as_the_format_says(kind, device):
    random = torch.Generator().manual_seed(5)
    w = torch.randn(2, 256, 384, generator=random)
    if kind == "tiny":
        w *= 1e-33
    if kind == "huge":
        w *= 1e30
    if kind == "zeros":
        w[:, :128] = 0
    if kind == "one large value":
        w[:, ::128, ::128] = 1e4
    if kind == "steps":  # bf16 of few bits: quotients that lie between two codes
        w = (w * 16).round() / 16
    w = w.bfloat16().to(device)
    codes, scales = xstage.quantise_weights(w)
    assert codes.dtype == torch.float8_e4m3fn and scales.shape == (2, 2, 3) and codes.device == w.device
    for e in range(2):
        for row in range(2):
            for column in range(3):
                at = (e, slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128))
                wanted, scale = reference(w[at])
                assert scales[e, row, column].item() == scale
                assert torch.equal(codes[at].view(torch.uint8).cpu(), wanted)


def test_error_is_that_of_the_format():
    w = torch.randn(512, 256)
    codes, scales = xstage.quantise_weights(w)
    back = codes.float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert (back - w).norm() / w.norm() < 0.03


@pytest.mark.parametrize("weights,words", [
    (torch.zeros(130, 128), "weights.shape = [130, 128]"), (torch.zeros(128), "weights.shape = [128]"),
    (torch.zeros(128, 128, dtype=torch.int32), "weights.dtype = torch.int32"),
    (torch.full((128, 128), float("nan")), "weights = NaN or infinity")])
def test_refuses_by_name(weights, words):
    with pytest.raises(xstage.BadInput) as failure:
        xstage.quantise_weights(weights)
    assert words in str(failure.value)
