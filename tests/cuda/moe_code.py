#!/usr/bin/env python3
"""What must stand in the machine code of the MoE kernels.

usage: moe_code.py TOOLS_DIR FUSED_OBJECT GEMM_OBJECT FUSED_BF16_OBJECT GEMM_BF16_OBJECT

Nothing fails when the compiler waits after every product, puts sums into local memory or copies
descriptors from lanes between products; it is only slow. So: every product is there (a tile's first
one stands ahead of the loop), only the last of each half of a step waits (in bf16: of a step, and that while the next one's boxes are awaited),
a step touches no local memory and copies few words to uniform registers, roles trade registers,
signals are released and acquired at system scope.
"""
import re
import sys

from ulysses_code import cuobjdump, output

MATH, FRONT = "0xe0", "0x38"  # 224 and 56 registers
STAGES = 3  # the loop over steps is written out for each place of the ring


def instructions(tool, path):
    found = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", output(tool, "-sass", path), re.M)
    return [" ".join(code.split()) for code in found]


def step(code):
    """The loop over steps, as often as there are steps in the ring: from the first wait for boxes to
    the branch after the last product."""
    products = [i for i, c in enumerate(code) if c.startswith(("QGMMA", "HGMMA"))]
    if not products:
        return []
    begin = max(i for i, c in enumerate(code[:products[0]]) if "SYNCS.PHASECHK" in c)
    end = next(i for i, c in enumerate(code) if i > products[-1] and "BRA" in c)
    return code[begin:end]


def product_rules(code, loop, bf16):
    if bf16:
        products = [c for c in code if c.startswith("HGMMA.64x256x16.F32.BF16")]
        waits = [c for c in loop if c.startswith("WARPGROUP.DEPBAR")]
        return [
            (len(products) == 4, f"{len(products)} products, not four"),
            (sum("gsb0" in c for c in products) == 1, "not only the last product of a step ends a group"),
            (not any("QGMMA" in c for c in code), "products of fp8"),
            (len(waits) == 1 and waits[0].endswith("0x1"), "a step waits for its own products"),
            (len(loop) < 120, "the loop over steps does more than products"),
        ]
    products = [c for c in code if c.startswith("QGMMA.64x128x32.F32.E4M3.E4M3")]
    return [
        (len(products) == 8 * STAGES + 4, f"{len(products)} products, not two halves of four a step and a first"),
        (sum("gsb0" in c for c in products) == 2 * STAGES + 1, "not only the last product of a half waits"),
        (len(loop) > 140 * STAGES, "sums are not added in the loop over steps"),
        (sum("R2UR" in c for c in loop) <= 8 * STAGES, "steps copy descriptors from lanes"),
    ]


def problems(code, fused, bf16):
    loop = step(code)
    text = "\n".join(code)
    rules = product_rules(code, loop, bf16) + [
        (not any(re.search(r"\b(STL|LDL)\b", c) for c in loop), "a step uses local memory"),
        (f"USETMAXREG.TRY_ALLOC.CTAPOOL UP0, {MATH}" in text, "math warps do not take registers"),
        (f"USETMAXREG.DEALLOC.CTAPOOL {FRONT}" in text, "the front does not give registers"),
        (text.count("UTMALDG.5D") >= 3, "tiles are not loaded by TMA"),
        ("UBLKCP" in text, "rows are not stored by bulk copies"),
    ]
    if fused:
        rules += [
            ("UTMASTG.5D" in text, "the intermediate is not stored by TMA"),
            (re.search(r"MEMBAR\.\w+\.SYS.*REDG?\.E\.ADD\.64\.STRONG\.SYS", text, re.S),
             "no release at system scope"),
            (re.search(r"LDG?\.E\.64\.STRONG\.SYS", text), "no acquire at system scope"),
            (("E4M3.F32" in text) != bf16, "bf16 converts to e4m3" if bf16 else "no conversion to e4m3"),
        ]
    return [what for good, what in rules if not good]


def main():
    tool = cuobjdump(sys.argv[1])
    bad = []
    for path, fused, bf16 in zip(sys.argv[2:6], (True, False) * 2, (False, False, True, True)):
        bad += [f"{path}: {what}" for what in problems(instructions(tool, path), fused, bf16)]
    print("\n".join(bad + [f"4 kernels, {len(bad)} problems"]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
