"""The summary of check.sh: counts, reasons for skips, and whether the GPU kernels were compiled.

usage: test_summary_test.py SOURCE_DIR
"""

import pathlib
import subprocess
import sys
import tempfile

SUMMARY = pathlib.Path(sys.argv[1]) / "scripts/test_summary.py"
SUITE = """<testsuite>
  <testcase name="A.passes" status="run"/>
  <testcase name="A.skips" status="notrun"><skipped/><system-out>needs a GPU: none here</system-out></testcase>
  <testcase name="A.{name}" status="{status}">{inside}</testcase>
</testsuite>"""


def summary(cache, name="also", status="run", inside=""):
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder)
        (build / "check").mkdir()
        (build / "check/tests.xml").write_text(SUITE.format(name=name, status=status, inside=inside))
        (build / "CMakeCache.txt").write_text(cache)
        done = subprocess.run([sys.executable, SUMMARY, build / "check", build], capture_output=True, text=True)
        return done.returncode, done.stdout


code, text = summary("XSTAGE_CUDA_BUILT_BY:INTERNAL=/opt/nvcc 13.0\n")
assert code == 0, text
assert "kernels were compiled, by /opt/nvcc 13.0" in text, text
assert text.endswith("1 tests were skipped for want of a GPU.\n2 passed, 0 failed, 1 skipped\n"), text

for cache in ("XSTAGE_CUDA_BUILT_BY:INTERNAL=\n", "XSTAGE_CUDA:STRING=auto\n"):
    code, text = summary(cache)
    assert code == 0, text
    assert "kernels were NOT compiled" in text and "CUDA toolkit" in text, text

code, text = summary("", "fails", "fail", "<failure/>")
assert code == 1 and "failed: A.fails" in text, text
