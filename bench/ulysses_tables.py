#!/usr/bin/env python3
"""Writes the tables of docs/ulysses.md from results/ulysses/.

usage: ulysses_tables.py [--check]

Replaces what stands between the markers; with --check only says whether it would change anything.
"""
import json
import math
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = os.path.join(ROOT, "docs", "ulysses.md")


def load(name):
    with open(os.path.join(ROOT, "results", "ulysses", name)) as file:
        return json.load(file)


def beside_torch():
    yield ("| layer | heads × S, D | attention (TFLOP/s) | cuDNN | / ours | attention + permutes and NCCL | fused | NCCL's / fused | "
           "Q, K, V by permutes and NCCL | by push | layer of cuDNN and NCCL | layer of push and fused | / |")
    yield "|" + " --- |" * 13
    for entry in load("torch.json")["layers"]:
        layer, us = entry["layer"], entry["time_us"]
        time_of = lambda what: f"{us[what]:.1f}" if what in us else ""
        ratio_of = lambda a, b: f"{us[a] / us[b]:.2f}" if a in us else ""
        yield (f"| {layer['name']} | {layer['heads_local']} × {layer['seq']}, {layer['head_dim']} | "
               f"{us['attention']:.1f} ({entry['tflops']['attention']:.0f}) | {us['cudnn']:.1f} | "
               f"{entry['over_cudnn']:.2f} | {time_of('attention + nccl')} | {time_of('fused')} | "
               f"{ratio_of('attention + nccl', 'fused')} | {time_of('inputs nccl')} | {time_of('inputs push')} | "
               f"{time_of('layer of cudnn and nccl')} | {time_of('layer')} | "
               f"{ratio_of('layer of cudnn and nccl', 'layer')} |")


def over_push(entry):
    """(attention + push) / fused, from the differences by cycles: the times' own ratio has the clock's noise."""
    alone = times(entry)["attention"]
    return (alone + entry["serial_less_attention_us"]) / (alone + entry["residual_us"])


def cell(value, form):
    return "" if math.isnan(value) else format(value, form)


def error(entry):
    return f" ± {entry['residual_error_us']:.1f}" if "residual_error_us" in entry else ""


def fused():
    with open(os.path.join(ROOT, "data", "h200x2", "ulysses_fused.json")) as file:
        fit = json.load(file)["fit"]

    def push_us(entry):
        layer = entry["layer"]
        sent = 2e-3 * layer["batch"] * layer["heads"] / layer["ranks"] / 2 * layer["head_dim"] * layer["seq"]
        return fit["push"]["base_us"] + fit["push"]["per_link_us"] * sent / DRAIN_GB_PER_S

    yield ("| layer | heads × S, D | attention (TFLOP/s) | fused | residual | predicted | attention + push | / fused | hidden | predicted | "
           "one launch a destination / fused | push of Q, K, V (GB/s out) | commit |")
    yield "|" + " --- |" * 13
    for entry in layers():
        layer, us = entry["layer"], times(entry)
        predicted_us = fit["residual"]["base_us"] + fit["residual"]["attention_share"] * us["attention"]
        heads = layer["heads"] // layer["ranks"]
        yield (f"| {layer['shape']} | {heads} × {layer['seq']}, {layer['head_dim']} | "
               f"{us['attention']:.1f} ({entry['attention_tflops']:.0f}) | {us['fused']:.1f} | "
               f"{entry['residual_us']:.1f}{error(entry)} ({100 * entry['residual_share']:.2f} %) | {predicted_us:.1f} | "
               f"{us['attention + push']:.1f} | {over_push(entry):.3f} | "
               f"{100 * entry['hidden_share']:.0f} % | {100 * (1 - predicted_us / push_us(entry)):.0f} | "
               f"{cell(entry.get('fused_over_per_destination', math.nan), '.3f')} | "
               f"{us['push of Q, K and V']:.1f} ({entry['inputs_gb_per_s']:.0f}) | {entry['commit']} |")


def layers():
    """One entry a layer, with the commit it was measured at."""
    found = []
    for name in ("paper.json", "models.json"):
        document = load(name)
        commit = document["provenance"]["git_commit"]
        for entry in document["layers"]:
            entry["commit"] = commit[:7] + ("+" if commit.endswith("-modified") else "")
            found.append(entry)
    return found


def times(entry):
    return {row["what"]: row["time_us"]["median"] for row in entry["rows"]}


DRAIN_GB_PER_S = 369.9  # of two H200 that both send: what README.md's fit says


def goals():
    """Each goal's floor and target beside the least of what was measured."""
    shape = lambda e: (e["layer"].get("heads_local") or e["layer"]["heads"] // e["layer"]["ranks"],
                       e["layer"]["seq"], e["layer"]["head_dim"])
    ours = {shape(e): e for e in layers()}
    torch = {shape(e): e for e in load("torch.json")["layers"]}
    rows = []

    def goal(what, floor, target, values, form="{:.2f}", least=True):
        worst = min(values) if least else max(values)
        beats = (lambda x: worst >= x) if least else (lambda x: worst <= x)
        verdict = ("target met" if beats(target) else "below the target" if floor == 0
                   else "floor met" if beats(floor) else "**missed**")
        rows.append(f"| {what} | {form.format(floor) if floor else ''} | {form.format(target)} | "
                    f"{' / '.join(form.format(v) for v in values)} | {verdict} |")

    main = [(h, s, 128) for h in (4, 12, 20) for s in (8192, 16384, 32768) if (h, s, 128) in torch]
    four = [(4, s, 128) for s in (8192, 16384, 32768)]
    goal("attention alone against cuDNN, D = 128, 4, 12, 20 heads", 0.95, 1.02,
         [torch[s]["over_cudnn"] for s in main])
    goal("the same, D = 64, 24 × 17776", 0.92, 1.00, [torch[24, 17776, 64]["over_cudnn"]])
    for s, floor in zip(four, (1.13, 1.07, 1.03)):
        us = torch[s]["time_us"]
        goal(f"attention + permutes + NCCL against fused, 4 × {s[1]}", floor, floor,
             [us["attention + nccl"] / us["fused"]])
    goal("attention + push against fused, all shapes", 1.00, 1.00,
         [over_push(e) for e in ours.values()], "{:.3f}")
    goal("the same, 4 × 8192", 1.00, 1.04, [over_push(ours[four[0]])], "{:.3f}")
    for s, floor, target in zip(four, (4, 2, 2), (1.5, 0.5, 0.5)):
        goal(f"residual in % of attention, 4 × {s[1]}", floor, target,
             [100 * ours[s]["residual_share"]], "{:.2f}", False)
    hidden = lambda e: 100 * e["hidden_share"]
    goal("hidden share in %, 4 × 8192", 0, 90, [hidden(ours[four[0]])], "{:.1f}")
    goal("the same, S from 16384 on", 0, 97, [hidden(e) for s, e in ours.items() if s[1] >= 16384], "{:.1f}")
    goal("push of Q, K, V of R, S from 16384 on", 0.85, 0.95,
         [e["inputs_gb_per_s"] / DRAIN_GB_PER_S for s, e in ours.items() if s[1] >= 16384])
    goal("permutes and NCCL against the push, shapes of equal shares", 1.00, 1.00,
         [e["time_us"]["inputs nccl"] / e["time_us"]["inputs push"] for e in torch.values()
          if "inputs nccl" in e["time_us"]])
    goal("error against float64, of PyTorch's bf16 attention's", 2.00, 2.00,
         [row["error"] / row["error_of_cudnn"] for row in load("torch.json")["accuracy"]], least=False)
    yield "| goal | floor | target | measured | |"
    yield "| --- | --- | --- | --- | --- |"
    yield from rows


def main():
    with open(PAGE) as file:
        page = before = file.read()
    for marker, rows in (("torch", beside_torch()), ("fused", fused()), ("goals", goals())):
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
