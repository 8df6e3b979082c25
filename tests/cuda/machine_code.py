#!/usr/bin/env python3
"""What must stand in the machine code of the kernels that measure and signal.

usage: machine_code.py TOOLS_DIR OBJECT...

Looks at burst_lsu.cu.o (probe), litmus.cu.o (signals) and burst_bulk.cu.o (bulk stores): widths of
the stores, the second clock behind the last store and in registers of its own, nothing in a burst
that would wait for its stores, releases and acquires at system scope, no local memory. Needs
cuobjdump and nvdisasm; where the toolkit lacks them they come from PyPI, into TOOLS_DIR.
"""
import os
import re
import shutil
import subprocess
import sys

TOOLS = ["nvidia-cuda-cuobjdump==13.2.78", "nvidia-cuda-nvdisasm==13.2.78"]


def tools(folder):
    """A folder with both tools, to be put on the PATH; None where they are on it already."""
    if shutil.which("cuobjdump") and shutil.which("nvdisasm"):
        return None
    found = os.path.join(folder, "nvidia", "cu13", "bin")
    if not os.path.exists(os.path.join(found, "nvdisasm")):
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
                        folder, *TOOLS], check=True)
    for name in ("cuobjdump", "nvdisasm"):
        os.chmod(os.path.join(found, name), 0o755)
    return found


def functions(path):
    """Name of each kernel in an object file, and its instructions."""
    text = subprocess.run(["cuobjdump", "-sass", path], check=True, capture_output=True,
                          text=True).stdout
    out, name = {}, None
    for line in text.splitlines():
        start = re.match(r"\s*Function : (\S+)", line)
        if start:
            name = start.group(1)
            out[name] = []
        code = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)
        if code and name:
            out[name].append(code.group(1))
    return out


failures = []


def check(good, kernel, what):
    if not good:
        failures.append(f"{kernel}: {what}")


def registers(operand, count):
    """R4 with a count of 2: {4, 5}."""
    first = int(operand)
    return set(range(first, first + count))


def is_burst_store(code):
    return re.search(r"\bSTG\.E(\.64|\.128)? ", code) is not None


def check_burst(name, code, width):
    """The timed stores are those between the last two clock reads that enclose stores."""
    wanted = {16: "STG.E.128 ", 8: "STG.E.64 ", 4: "STG.E "}[width]
    clock = [i for i, c in enumerate(code) if re.search(r"CS2R(\.32)? R\d+, SR_CLOCKLO", c)]
    spans = [(a, b) for a, b in zip(clock, clock[1:])
             if sum(is_burst_store(c) for c in code[a:b]) >= 30]
    check(len(spans) == 1, name, f"{len(spans)} spans of stores between two clocks, one expected")
    for begin, end in spans:
        stores = [c for c in code[begin:end] if is_burst_store(c)]
        check(all(wanted in c for c in stores), name, f"a store that is not {wanted.strip()}")
        for c in code[begin:end]:
            check(not re.match(r"(@!?P\d )?\s*(LD[CGSL]|ST[SL]|ATOM|RED|MEMBAR|BAR|S2R|B2R|MUFU|I2F)\b", c),
                  name, f"inside the burst: {c}")
        check(sum(c.startswith("@") for c in stores) <= 1, name,
              "stores that are predicated and not branched over: all that are not wanted would wait")
        if width < 16:
            continue  # narrow values are renamed at will: their queue is as deep as the compiler likes
        target = int(re.search(r"CS2R(?:\.32)? R(\d+)", code[end]).group(1))
        for c in stores[-30:]:  # a burst ends in this chain; earlier stores were waited for
            address, value = re.search(r"\[R(\d+)\.64[^\]]*\], R(\d+)", c).groups()
            used = registers(address, 2) | registers(value, width // 4)
            check(not used & {target, target + 1}, name, f"the clock overwrites a register of: {c}")
        # One queued store a warp: between two stores a register of the first is overwritten.
        at = [i for i in range(begin, end) if is_burst_store(code[i])]
        for one, two in zip(at, at[1:]):
            value = int(re.search(r"\], R(\d+)", code[one]).group(1))
            written = any(re.search(rf"\s(?:[A-Z0-9.]+) R{value}\b,", " " + c)
                          for c in code[one + 1:two + 1] if not is_burst_store(c))
            check(written, name, f"stores that do not wait for each other: {code[one]}")


def check_no_local(name, code):
    check(not any(re.match(r"(@!?P\d )?\s*(STL|LDL)\b", c) for c in code), name, "local memory is used")


def main():
    folder, objects = sys.argv[1], sys.argv[2:]
    extra = tools(folder)
    if extra:
        os.environ["PATH"] = extra + os.pathsep + os.environ["PATH"]
    kernels = {}
    for path in objects:
        kernels.update(functions(path))
    seen = set()
    for name, code in kernels.items():
        if "_lsuILi" not in name and not re.search(r"window_bulk|aligned_bulk|litmus|round_trip", name):
            continue
        check_no_local(name, code)
        lsu = re.search(r"(window|aligned)_lsuILi(\d+)ELi(\d+)", name)
        if lsu:
            check_burst(name, code, int(lsu.group(2)))
            seen.add(lsu.group(1) + lsu.group(2))
        if re.search(r"window_bulk|aligned_bulk", name):
            check(any("UBLKCP" in c for c in code), name, "no bulk store")
            seen.add("bulk")
        if re.search(r"litmus|round_trip", name):
            text = "\n".join(code)
            check("MEMBAR.ALL.SYS" in text or "MEMBAR.SC.SYS" in text, name, "no release at system scope")
            check(re.search(r"LDG?\.E\.64\.STRONG\.SYS", text), name, "no acquire at system scope")
            check("CCTL.IVALL" in text, name, "an acquire that leaves old lines in the first-level cache")
            seen.add("signal")
    for what in ("window4", "window8", "window16", "aligned4", "aligned8", "aligned16", "bulk", "signal"):
        check(what in seen, what, "not among the kernels")
    for failure in failures:
        print(failure)
    print(f"{len(kernels)} kernels, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
