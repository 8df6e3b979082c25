"""Adds up the JUnit files of a check and says what was skipped and why.

usage: test_summary.py DIR BUILD

BUILD is the build that was tested: the summary says whether it has the kernels.

The last line is 'N passed, N failed, N skipped'. A test says why it skipped in its first words
after the colon: 'needs a GPU' is counted apart, since it is what differs between machines.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def reason(case):
    output = case.findtext("system-out") or ""
    for line in output.splitlines():
        if "needs " in line:
            return line[line.index("needs "):].split(":")[0].split(";")[0].strip()
    return "for a reason its output gives"


def verdict(case):
    if case.find("failure") is not None or case.get("status") == "fail":
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "passed"


def kernels(build):
    """Whether the CUDA room was built, and what to do where it was not."""
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        if line.startswith("XSTAGE_CUDA_BUILT_BY:INTERNAL=") and not line.endswith("="):
            return f"The GPU kernels were compiled, by {line.split('=', 1)[1]}."
    return ("The GPU kernels were NOT compiled, for want of nvcc; nothing here speaks of them. To have them: "
            "install NVIDIA's CUDA toolkit (nvcc in PATH or in /usr/local/cuda), then run this again.")


def main():
    # A test may run in several stages (another build, a machine that meanwhile has a browser): it
    # failed if it failed in one, and passed if it then passed in one.
    rank = {"skipped": 0, "passed": 1, "failed": 2}
    verdicts, reasons = {}, {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name, now = case.get("name"), verdict(case)
            if rank[now] >= rank[verdicts.get(name, "skipped")]:
                verdicts[name] = now
            if now == "skipped":
                reasons[name] = reason(case)
    count = {now: sum(v == now for v in verdicts.values()) for now in rank}
    skipped = {}
    for name, now in verdicts.items():
        if now == "skipped":
            skipped.setdefault(reasons[name], []).append(name)
    for why, names in sorted(skipped.items()):
        print(f"skipped, {why}: {len(names)} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})")
    for name, now in verdicts.items():
        if now == "failed":
            print(f"failed: {name}")
    gpu = sum(len(names) for why, names in skipped.items() if why.startswith("needs a GPU"))
    print(kernels(pathlib.Path(sys.argv[2])))
    print(f"{gpu} tests were skipped for want of a GPU.")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not count["passed"] else 0


sys.exit(main())
