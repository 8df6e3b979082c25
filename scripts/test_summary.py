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


def main():
    passed, failed, skipped = 0, [], {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            if case.find("failure") is not None or case.get("status") == "fail":
                failed.append(case.get("name"))
            elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
                skipped.setdefault(reason(case), []).append(case.get("name"))
            else:
                passed += 1
    for why, names in sorted(skipped.items()):
        print(f"skipped, {why}: {len(names)} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})")
    for name in failed:
        print(f"failed: {name}")
    gpu = sum(len(names) for why, names in skipped.items() if why.startswith("needs a GPU"))
    print(f"{gpu} tests were skipped for want of a GPU.")
    print(f"{passed} passed, {len(failed)} failed, {sum(map(len, skipped.values()))} skipped")
    return 1 if failed or not passed else 0


sys.exit(main())
