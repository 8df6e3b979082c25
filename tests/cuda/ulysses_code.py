#!/usr/bin/env python3
"""What must stand in the machine code of the attention kernels.

usage: ulysses_code.py TOOLS_DIR OBJECT

The overlap of products and softmax is lost without any error when the compiler serialises the
products, so this looks at what it wrote: every product is there, only the last of each group waits
for its registers, the warpgroups trade registers, loads and stores are TMA, nothing is spilled.
Needs cuobjdump; where the toolkit lacks it, it comes from PyPI, into TOOLS_DIR.
"""
import os
import re
import shutil
import subprocess
import sys

TOOL = "nvidia-cuda-cuobjdump==13.2.78"
GROUPS = 4  # of products: scores and output, each once in the loop and once outside


def cuobjdump(folder):
    on_path = shutil.which("cuobjdump")
    if on_path:
        return on_path
    found = os.path.join(folder, "nvidia", "cu13", "bin", "cuobjdump")
    if not os.path.exists(found):
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
                        folder, TOOL], check=True)
        os.chmod(found, 0o755)
    return found


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kernels(tool, path):
    """(head_dim, block_n, consumers, type) of each kernel, its instructions and its resources."""
    named = re.compile(r"attention_forward\w*TilingILi(\d+)ELi(\d+)ELi(\d+)E\w*?([BF][fp][p1]*6)")
    shape_of = lambda found: (*map(int, found.groups()[:3]), found.group(4))
    code, shape = {}, None
    for line in output(tool, "-sass", path).splitlines():
        start = re.match(r"\s*Function : (\S+)", line)
        if start:
            found = named.search(start.group(1))
            shape = shape_of(found) if found else None
            if shape:
                code[shape] = []
        instruction = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)
        if instruction and shape:
            code[shape].append(instruction.group(1))
    resources = {}
    for name, text in re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", output(tool, "-res-usage", path)):
        found = named.search(name)
        if found:
            resources[shape_of(found)] = dict(re.findall(r"(\w+):(\d+)", text))
    return code, resources


def problems(shape, code, resources):
    head_dim, block_n, consumers, element = shape
    products = [c for c in code if c.startswith("HGMMA") and ("BF16" in c) == (element == "Bf16")]
    scores = [c for c in products if f"64x{block_n}x16" in c and "tnspB" not in c]
    outputs = [c for c in products if f"64x{head_dim}x16" in c and "tnspB" in c]
    waiting = [c for c in products if "gsb0" in c]
    registers = {2: ("0xe8", "0x28"), 3: ("0xa0", "0x20")}[consumers]
    text = "\n".join(code)
    rules = [
        (len(scores) == 2 * head_dim // 16, f"{len(scores)} products for the scores"),
        (len(outputs) == 2 * block_n // 16, f"{len(outputs)} products for the output"),
        (all(re.search(r"R\d+, R\d+, gdesc", c) for c in outputs), "weights not in registers"),
        (len(waiting) == GROUPS, f"{len(waiting)} products wait for their registers, {GROUPS} groups"),
        (not re.search(r"\b(STL|LDL)\b", text), "local memory is used"),
        (resources["STACK"] == "0", f"stack of {resources['STACK']} bytes"),
        (int(resources["REG"]) <= 65536 // (128 * (consumers + 1)), f"{resources['REG']} registers"),
        (f"USETMAXREG.TRY_ALLOC.CTAPOOL UP0, {registers[0]}" in text.replace("UP1", "UP0"),
         "consumers do not take registers"),
        (f"USETMAXREG.DEALLOC.CTAPOOL {registers[1]}" in text, "the producer does not give registers"),
        (text.count("UTMALDG.5D") >= 3, "tensors are not loaded by TMA"),
        ("UTMASTG.5D" in text, "the output is not stored by TMA"),
        (re.search(r"STG\.E\.128 ", text), "pieces of a tile are not stored 16 bytes at a time"),
        (re.search(r"MEMBAR\.\w+\.SYS.*REDG?\.E\.ADD\.64\.STRONG\.SYS", text, re.S), "no release at system scope"),
        (text.count("MUFU.EX2") >= 2 * block_n // 2, "exponentials are missing"),
    ]
    return [what for good, what in rules if not good]


def main():
    code, resources = kernels(cuobjdump(sys.argv[1]), sys.argv[2])
    bad = [] if {(shape[0], shape[3]) for shape in code} == {(d, e) for d in (64, 128) for e in ("Bf16", "Fp16")} else [f"kernels {sorted(code)}"]
    for shape in code:
        bad += [f"{shape}: {what}" for what in problems(shape, code[shape], resources[shape])]
    print("\n".join(bad + [f"{len(code)} kernels, {len(bad)} problems"]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
