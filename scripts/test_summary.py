"""Adds up the JUnit files of a check and says what was skipped and why.

usage: test_summary.py DIR

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
    print(f"{gpu} tests were skipped for want of a GPU.")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not count["passed"] else 0


sys.exit(main())
