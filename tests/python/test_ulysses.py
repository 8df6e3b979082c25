"""xstage.UlyssesAttention in one process a GPU (ulysses_ranks.py)."""
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
GPUS = torch.cuda.device_count()
if GPUS < 2 or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs a GPU, two of compute capability 9.0", allow_module_level=True)
import processes  # noqa: E402


@pytest.mark.parametrize("ranks", [n for n in (2, 4, 8) if n <= GPUS])
def test_ranks(ranks, tmp_path):
    wrong, seen = processes.run(pathlib.Path(__file__).with_name("ulysses_ranks.py"), ranks, tmp_path)
    assert seen > 20 * ranks and not wrong
