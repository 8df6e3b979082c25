#!/usr/bin/env python3
"""Writes the MoE tables of docs/moe.md, moe_sweep.md and performance.md from results/moe_*.json.

usage: moe_tables.py [--check]

Replaces what stands between the markers; with --check only says whether it would change anything.
"""
import json
import math
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def load(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return json.load(file)


def name_of(run):
    return "wave" if run["schedule"] == "wave" else f"lead {run['lead']}"


def median(run):
    return run["time_us"]["median"]


def runs_of(row, way="per-rank"):
    """The runs that were asked for by name, and the one that `auto` took."""
    runs = [run for run in row["runs"] if run["dispatch"] == way]
    return ([run for run in runs if "asked" not in run],
            next((run for run in runs if "asked" in run), None))


def peer_times():
    times = {}
    for row in load("data", "h200x2", "peers.json")["moe_ep2_w8a8_us"]["rows"]:
        times[row["layer"], row["tokens"]] = min(row["us"])
    return times


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def sweep_numbers():
    """One dictionary a row of the sweep; `auto` where it was measured."""
    for row in load("results", "moe_sweep.json")["rows"]:
        named, auto = runs_of(row)
        best = min(named + ([auto] if auto else []), key=median)
        wave = next(run for run in named if run["schedule"] == "wave")
        leads = [run for run in named if run["schedule"] != "wave"]
        yield {"layer": row["layer"], "named": named, "auto": auto, "best": best, "wave": wave,
               "products": sum(v["median"] for v in row["products_us"].values()),
               "cublas": sum(v["median"] for v in row["cublas_us"].values()) if row.get("cublas_us") else None,
               "gain": median(wave) / min(map(median, leads)), "link": link_us(row)}


def link_us(row):
    """Results of one rank for the others at the drain rate with both directions busy."""
    layer = row["layer"]
    rate = load("profiles", "h200-nv18-x2.json")["drain"]["both_ways_gb_per_s"] * 1e3
    return row["remote_share"] * layer["tokens"] * layer["topk"] * layer["hidden"] * 2 / rate


def where(layer):
    return f"{layer['shape']}, {layer['routing']}, {layer['tokens']} tokens"


def balanced_8192():
    return [n for n in sweep_numbers() if n["layer"]["routing"] == "balanced" and n["layer"]["tokens"] == 8192]


def peers():
    peer, alone = peer_times(), gemm_alone()
    yield "| layer, 8192 tokens | fastest | order | peer | peer / ours | own products alone | peer's GEMM alone | cuBLAS, dense |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    ratios = []
    for n in balanced_8192():
        shape = n["layer"]["shape"]
        if (shape, 8192) not in peer:
            continue
        us, wanted = median(n["best"]), peer[shape, 8192]
        ratios.append(wanted / us)
        yield (f"| {shape} | {us:.0f} | {name_of(n['best'])} | {wanted:.0f} | {wanted / us:.2f} | {n['products']:.0f} | "
               f"{alone[shape, 8192]:.0f} | {n['cublas']:.0f} |")
    yield ""
    yield f"Geometric mean of peer / ours: {geometric_mean(ratios):.3f}."


def sweep():
    rows = list(sweep_numbers())
    leads = [run["lead"] for run in rows[0]["named"] if run["lead"] is not None]
    yield ("| layer | routing | tokens | wave | " + " | ".join(f"lead {lead}" for lead in leads) +
           " | wave / best lead | products alone | link |")
    yield "| --- " * (7 + len(leads) - 1 + 1) + "|"
    for n in rows:
        layer = n["layer"]
        times = " | ".join(f"{median(run):.0f}" for run in n["named"])
        yield (f"| {layer['shape']} | {layer['routing']} | {layer['tokens']} | {times} | {n['gain']:.2f} | "
               f"{n['products']:.0f} | {n['link']:.0f} |")


def predicted(name, text):
    document = load("results", name)
    runs = [(abs(run["predicted_us"] / run["measured_us"] - 1), row["layer"], run) for row in document["rows"]
            for run in row["runs"]]
    sizes = sorted(e for e, _, _ in runs)
    worst = max(runs, key=lambda x: x[0])
    rows = document["rows"]
    over = sorted(row["auto_over_fastest"] for row in rows)
    row = max(rows, key=lambda x: x["auto_over_fastest"])
    lead = worst[2]["lead"]
    yield (f"- {text}: {len(sizes)} runs that took no part in the fit, error median {100 * sizes[len(sizes) // 2]:.1f} %, p95 "
           f"{100 * sizes[int(0.95 * (len(sizes) - 1))]:.1f} %, worst {100 * worst[0]:.1f} % ({where(worst[1])}, "
           f"{'wave' if lead is None else f'lead {lead}'}); {sum(e <= 0.08 for e in sizes)} within 8 %, {sum(e <= 0.2 for e in sizes)} "
           f"within 20 %. What `auto` would have taken, over the fastest of the row: median {over[len(over) // 2]:.3f}, worst "
           f"{over[-1]:.3f} ({where(row['layer'])}), {sum(x <= 1.02 for x in over)} of {len(over)} rows within 2 %.")


def summary():
    rows = list(sweep_numbers())
    gains = sorted(n["gain"] for n in rows)
    best, least = max(rows, key=lambda n: n["gain"]), min(rows, key=lambda n: n["gain"])
    yield (f"- Best lead against the wave, same kernel, {len(rows)} rows: geometric mean {geometric_mean(gains):.3f}, "
           f"{best['gain']:.2f} at most ({where(best['layer'])}), {least['gain']:.2f} at least ({where(least['layer'])}).")
    yield from predicted("moe_predictions_first.json", "Predictions for the kernel of the sweep, 8192 tokens from 2048 and 16384")
    yield from predicted("moe_predictions.json", "Predictions for a later kernel, 5120 tokens from 1536 and 20480")


def ep8():
    yield "| layer, 8 ranks, tokens a rank | predicted, wave | lead 16 | lead 64 | `auto` takes |"
    yield "| --- | --- | --- | --- | --- |"
    for row in load("results", "moe_ep8_predicted.json")["rows"]:
        us = " | ".join(f"{run['predicted_us']:.0f}" for run in row["runs"] if "asked" not in run)
        yield f"| {row['layer']['shape']}, {row['layer']['tokens']} | {us} | {row['auto']['schedule']} |"


def bf16():
    yield "| layer, tokens a rank | fastest | order | L2 overwritten before | own products alone | cuBLAS, dense |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in load("results", "moe_bf16.json")["rows"]:
        best = min(runs_of(row)[0], key=median)
        cold = f"{best['cold_us']['median']:.0f}" if best.get("cold_us") else "–"
        products = sum(v["median"] for v in row["products_us"].values())
        cublas = f"{sum(v['median'] for v in row['cublas_us'].values()):.0f}" if row.get("cublas_us") else "–"
        yield (f"| {row['layer']['shape']}, {row['layer']['tokens']} | {median(best):.0f} | {name_of(best)} | {cold} | "
               f"{products:.0f} | {cublas} |")


def gemm_alone():
    """A peer's grouped GEMM of both linears, one GPU, no communication."""
    return {(row["layer"], row["tokens"]): row["linear1"] + row["linear2"]
            for row in load("data", "h200x2", "peers.json")["grouped_gemm_alone_us"]["rows"]}


def floors():
    yield "| what | measured | floor | target | |"
    yield "| --- | --- | --- | --- | --- |"

    def line(what, measured, floor, target, lower_is_better=True, digits=0):
        better = (lambda a, b: a <= b) if lower_is_better else (lambda a, b: a >= b)
        word = "target met" if better(measured, target) else "floor met, target missed" if better(measured, floor) else "**missed**"
        sign = "≤" if lower_is_better else "≥"
        return f"| {what} | {measured:.{digits}f} | {sign} {floor:.{digits}f} | {sign} {target:.{digits}f} | {word} |"

    peer, alone, ratios = peer_times(), gemm_alone(), []
    for n in balanced_8192():
        shape = n["layer"]["shape"]
        if (shape, 8192) not in peer:
            continue
        ratios.append(peer[shape, 8192] / median(n["best"]))
        yield line(f"{shape}, 8192 tokens, µs", median(n["best"]), peer[shape, 8192], 1.2 * max(alone[shape, 8192], n["link"]))
    yield line("geometric mean over the peer, 8192 tokens", geometric_mean(ratios), 1.15, 1.45, False, 3)
    for n in sweep_numbers():
        layer = n["layer"]
        if (layer["shape"], layer["routing"], layer["tokens"]) == ("lingbot-video", "remote:0.875", 8192):
            yield line("lingbot-video, 7/8 of the rows remote, over the larger of a GEMM alone and link",
                       median(n["best"]) / max(alone["lingbot-video", 8192], n["link"]), 1.25, 1.1, True, 2)
    for name, which in (("moe_predictions_first.json", "the sweep's kernel"), ("moe_predictions.json", "a later kernel")):
        rows = load("results", name)["rows"]
        yield line(f"`auto` over the fastest schedule, worst row, {which}", max(row["auto_over_fastest"] for row in rows),
                   1.02, 1.01, True, 3)
        yield line(f"predicted against measured, worst run, {which}, %",
                   100 * max(abs(run["predicted_us"] / run["measured_us"] - 1) for row in rows for run in row["runs"]), 20, 8, True, 1)


PAGES = {"performance.md": {"moe floors": floors}, "moe.md": {"peers": peers, "summary": summary, "ep8": ep8, "bf16": bf16}, "moe_sweep.md": {"sweep": sweep}}


def main():
    changed = False
    for name, tables in PAGES.items():
        path = os.path.join(ROOT, "docs", name)
        with open(path) as file:
            page = before = file.read()
        for marker, rows in tables.items():
            begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->"
            head, rest = page.split(begin)
            page = head + begin + "\n".join(rows()) + "\n" + end + rest.split(end, 1)[1]
        changed = changed or page != before
        if "--check" not in sys.argv and page != before:
            with open(path + ".part", "w") as file:
                file.write(page)
            os.replace(path + ".part", path)
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
