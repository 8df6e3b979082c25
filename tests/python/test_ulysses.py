"""xstage.UlyssesAttention in one process a GPU (ulysses_ranks.py)."""
import json
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
GPUS = torch.cuda.device_count()
if GPUS < 2 or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs a GPU, two of compute capability 9.0", allow_module_level=True)


@pytest.mark.parametrize("scenario", ["all", "dies"])
@pytest.mark.parametrize("ranks", sorted({2, min(GPUS, 8)}))
def test_ranks(scenario, ranks, tmp_path):
    script = pathlib.Path(__file__).with_name("ulysses_ranks.py")
    done = subprocess.run([sys.executable, str(script), scenario, str(ranks), str(tmp_path / "said")],
                          capture_output=True, text=True, timeout=240)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    wrong, seen = [], 0
    for rank in range(ranks - (scenario == "dies")):
        for name, passed, detail in json.loads((tmp_path / f"said.{rank}").read_text()):
            seen += 1
            print(f"rank {rank}: {'ok   ' if passed else 'WRONG'} {name}: {detail}")
            if not passed:
                wrong.append(f"rank {rank}, {name}: {detail}")
    assert seen >= 3 and not wrong
