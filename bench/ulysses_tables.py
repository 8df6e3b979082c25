#!/usr/bin/env python3
"""Writes the tables of docs/ulysses.md from results/ulysses/.

usage: ulysses_tables.py [--check]

Replaces what stands between the markers; with --check only says whether it would change anything.
"""
import json
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = os.path.join(ROOT, "docs", "ulysses.md")


def load(name):
    with open(os.path.join(ROOT, "results", "ulysses", name)) as file:
        return json.load(file)


def beside_torch():
    yield "| layer | heads × S, D | attention (TFLOP/s) | cuDNN | cuDNN / ours | + permutes and NCCL | cuDNN + the same |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for entry in load("torch.json")["layers"]:
        layer, us = entry["layer"], entry["time_us"]
        cell = lambda what: f"{us[what]:.1f}" if what in us else ""
        yield (f"| {layer['name']} | {layer['heads_local']} × {layer['seq']}, {layer['head_dim']} | "
               f"{us['attention']:.1f} ({entry['tflops']['attention']:.0f}) | {us['cudnn']:.1f} | "
               f"{entry['over_cudnn']:.2f} | {cell('attention + nccl')} | {cell('cudnn + nccl')} |")


def fused():
    yield ("| layer | heads × S, D | attention (TFLOP/s) | fused | residual | attention + push | / fused | hidden | "
           "push of Q, K, V (GB/s out) |")
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name in ("paper.json", "models.json"):
        for entry in load(name)["layers"]:
            layer = entry["layer"]
            us = {row["what"]: row["time_us"]["median"] for row in entry["rows"]}
            heads = layer["heads"] // layer["ranks"]
            yield (f"| {layer['shape']} | {heads} × {layer['seq']}, {layer['head_dim']} | "
                   f"{us['attention']:.1f} ({entry['attention_tflops']:.0f}) | {us['fused']:.1f} | "
                   f"{entry['residual_us']:.1f} ({100 * entry['residual_share']:.1f} %) | "
                   f"{us['attention + push']:.1f} | {entry['fused_over_push']:.3f} | "
                   f"{100 * entry['hidden_share']:.0f} % | "
                   f"{us['push of Q, K and V']:.1f} ({entry['inputs_gb_per_s']:.0f}) |")


def main():
    with open(PAGE) as file:
        page = before = file.read()
    for marker, rows in (("torch", beside_torch()), ("fused", fused())):
        begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->"
        head, rest = page.split(begin)
        page = head + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1]
    if "--check" in sys.argv:
        return 0 if page == before else 1
    with open(PAGE + ".part", "w") as file:
        file.write(page)
    os.replace(PAGE + ".part", PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
