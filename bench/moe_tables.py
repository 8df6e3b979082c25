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


def median(run, key="time_us"):
    return run[key]["median"]


def spread(run):
    """Of the launches of one run, relative."""
    return (run["time_us"]["p95"] - run["time_us"]["p05"]) / median(run)


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def where(layer):
    return f"{layer['shape']}, {layer['routing']}, {layer['tokens']} tokens"


def peer_times():
    """The smaller of a peer's runs, µs."""
    return {(row["layer"], row["tokens"]): min(row["us"])
            for row in load("data", "h200x2", "peers.json")["moe_ep2_w8a8_us"]["rows"]}


def gemm_alone():
    """A peer's grouped GEMM of both linears, one GPU, no communication, µs."""
    return {(row["layer"], row["tokens"]): row["linear1"] + row["linear2"]
            for row in load("data", "h200x2", "peers.json")["grouped_gemm_alone_us"]["rows"]}


def link_us(row):
    """Results of one rank for the others at the drain rate with both directions busy."""
    layer = row["layer"]
    rate = load("profiles", "h200-nv18-x2.json")["drain"]["both_ways_gb_per_s"] * 1e3
    return row["remote_share"] * layer["tokens"] * layer["topk"] * layer["hidden"] * 2 / rate


def weights_us(layer):
    """A rank's weights once from memory."""
    hbm = 4.3e6  # bytes a µs
    return layer["experts"] / layer["ranks"] * 3 * layer["hidden"] * layer["intermediate"] / hbm


def rows_of(name):
    """One dictionary a row of a table; `named`: the runs asked for by name, token sent once a rank."""
    for row in load("results", name)["rows"]:
        runs = [run for run in row["runs"] if run["dispatch"] == "per-rank"]
        named = [run for run in runs if "asked" not in run]
        auto = next(run for run in runs if "asked" in run)
        leads = [run for run in named if run["schedule"] != "wave"]
        wave = next(run for run in named if run["schedule"] == "wave")
        best = min(named + [auto], key=median)
        per_slot = [run for run in row["runs"] if run["dispatch"] == "per-slot"]
        phases = row.get("phases_us", {})
        yield {"layer": row["layer"], "named": named, "auto": auto, "best": best, "wave": wave, "per_slot": per_slot,
               "products": sum(v["median"] for v in row["products_us"].values()),
               "cublas": sum(v["median"] for v in row["cublas_us"].values()) if row.get("cublas_us") else None,
               "gain": median(wave) / min(map(median, leads)), "over": median(auto) / median(best),
               "spread": max(spread(auto), spread(best)), "link": link_us(row), "phases": phases,
               "errors": [run["predicted_us"] / median(run) - 1 for run in named]}


def with_peers(tokens):
    peer, alone = peer_times(), gemm_alone()
    for n in rows_of("moe_peers.json"):
        key = n["layer"]["shape"], tokens
        if n["layer"]["tokens"] == tokens and key in peer:
            yield {**n, "peer": peer[key], "alone": alone.get(key),
                   "bound": max(alone.get(key, 0) if tokens == 8192 else 0, n["link"], weights_us(n["layer"]))}


HOT = "moe_sweep_hot.json"  # nine launches of a schedule in a row instead of three: large layers at the power limit


def swept_us(tokens, name="moe_sweep.json"):
    """Times of `auto` in a sweep, balanced rows, by layer; empty where it has no such row."""
    return {n["layer"]["shape"]: median(n["auto"]) for n in rows_of(name)
            if n["layer"]["routing"] == "balanced" and n["layer"]["tokens"] == tokens}


def peer_over(us_of, tokens):
    peer = peer_times()
    return [peer[shape, tokens] / us for shape, us in us_of.items() if (shape, tokens) in peer]


def made(name):
    document = load("results", name)
    at, node = document["provenance"], document["node"]
    return (f"`{name}`: commit {at['git_commit'][:7]}, kernel {at['kernel_digest'][:8]}, {at['created_utc']}, {node['gpus']} {node['gpu']}, "
            f"driver {node['driver']}.")


def peers():
    yield made("moe_peers.json") + " " + made("moe_sweep.json")
    yield ""
    for tokens in (8192, 1024):
        ratios = []
        yield (f"| {tokens} tokens | `auto` | its order | cold L2 | fastest | a token once a slot | peer | peer / `auto` | "
               "own products alone | peer's GEMM alone | cuBLAS, dense |")
        yield "| --- " * 11 + "|"
        for n in with_peers(tokens):
            us = median(n["auto"])
            ratios.append(n["peer"] / us)
            slot = f"{min(map(median, n['per_slot'])):.0f}" if n["per_slot"] else ""
            alone = f"{n['alone']:.0f}" if n["alone"] else ""
            cublas = f"{n['cublas']:.0f}" if n["cublas"] else ""
            yield (f"| {n['layer']['shape']} | {us:.0f} | {name_of(n['auto'])} | {median(n['auto'], 'cold_us'):.0f} | "
                   f"{median(n['best']):.0f}, {name_of(n['best'])} | {slot} | {n['peer']:.0f} | {n['peer'] / us:.2f} | "
                   f"{n['products']:.0f} | {alone} | {cublas} |")
        yield ""
        text = f"{tokens} tokens, geometric mean of peer / `auto`: {geometric_mean(ratios):.3f}"
        swept, hot = swept_us(tokens), swept_us(tokens, HOT)
        if swept:
            text += (f"; in the sweep, which lets the GPUs rest nowhere, {geometric_mean(peer_over(swept, tokens)):.3f}; in one with nine launches "
                     f"of each schedule in a row, large layers at the power limit throughout (`{HOT}`), {geometric_mean(peer_over(hot, tokens)):.3f}, with "
                     + ", ".join(f"{shape} {us:.0f}" for shape, us in hot.items() if (shape, tokens) in peer_times()))
        yield text + "."
        yield ""


def sweep():
    rows = list(rows_of("moe_sweep.json"))
    leads = [run["lead"] for run in rows[0]["named"] if run["lead"] is not None]
    yield ("| layer | routing | tokens | wave | " + " | ".join(f"lead {lead}" for lead in leads) +
           " | `auto` | `auto` / fastest | wave / best lead | worst prediction, % | products alone | link |")
    yield "| --- " * (4 + len(leads) + 6) + "|"
    for n in rows:
        layer = n["layer"]
        times = " | ".join(f"{median(run):.0f}" for run in n["named"])
        worst = max(n["errors"], key=abs)
        bound = " **bound by it**" if n["link"] > n["products"] else ""
        yield (f"| {layer['shape']} | {layer['routing']} | {layer['tokens']} | {times} | {name_of(n['auto'])}, "
               f"{median(n['auto']):.0f} | {n['over']:.3f} | {n['gain']:.2f} | {100 * worst:+.1f} | "
               f"{n['products']:.0f} | {n['link']:.0f}{bound} |")


def error_text(errors):
    sizes = sorted(map(abs, errors))
    return (f"median {100 * sizes[len(sizes) // 2]:.1f} %, p95 {100 * sizes[int(0.95 * (len(sizes) - 1))]:.1f} %, worst "
            f"{100 * sizes[-1]:.1f} %; {sum(e <= 0.08 for e in sizes)} of {len(sizes)} within 8 %, "
            f"{sum(e <= 0.2 for e in sizes)} within 20 %")


def summary():
    rows = list(rows_of("moe_sweep.json"))
    gains = [n["gain"] for n in rows]
    best, least = max(rows, key=lambda n: n["gain"]), min(rows, key=lambda n: n["gain"])
    yield (f"- Best lead against the wave, same kernel, {len(rows)} rows: geometric mean {geometric_mean(gains):.3f}, "
           f"{best['gain']:.2f} at most ({where(best['layer'])}), {least['gain']:.2f} at least ({where(least['layer'])}). In "
           f"{sum(n['link'] > n['products'] for n in rows)} rows the link takes longer than the products.")
    late = max(rows, key=lambda n: n["over"])
    yield (f"- `auto` over the fastest of the row: {sum(n['over'] <= 1.0 for n in rows)} rows exactly the fastest, "
           f"{sum(n['over'] <= 1.02 for n in rows)} within 2 %, {sum(n['over'] <= 1 + n['spread'] for n in rows)} within the spread of "
           f"the row's own launches; worst {late['over']:.3f} ({where(late['layer'])}, spread of its launches {100 * late['spread']:.1f} %).")
    yield (f"- Predicted before the sweep was measured, from other sizes: error {error_text([e for n in rows for e in n['errors']])}.")
    covered = [e for n in rows for run, e in zip(n["named"], n["errors"])
               if run["lead"] is None or run["lead"] >= 16]
    yield f"- The same without leads 1 and 4, which nobody would take: {error_text(covered)}."
    document = load("results", "moe_predictions.json")
    errors = [run["predicted_us"] / run["measured_us"] - 1 for row in document["rows"] for run in row["runs"]]
    over = sorted(row["auto_over_fastest"] for row in document["rows"])
    yield (f"- Cross-validated (every second size of the kernel table left out): error {error_text(errors)}; what `auto` would have "
           f"taken over the fastest: median {over[len(over) // 2]:.3f}, worst {over[-1]:.3f}.")


def mechanism():
    yield ("| layer, routing | order | µs | issue of a tile's stores, µs | until staging is read, µs | math waited for staging, µs | "
           "loader waited for Linear-1, µs | last tile done | all results at their owner |")
    yield "| --- " * 9 + "|"
    for row in load("results", "moe_mechanism.json")["rows"]:
        for run in row["runs"]:
            if run["dispatch"] != "per-rank" or "asked" in run:
                continue
            marks = run["phases_us"]["marks"]
            tiles = max(marks["store_tiles"], 1)
            yield (f"| {row['layer']['shape']}, {row['layer']['routing']} | {name_of(run)} | {median(run):.0f} | "
                   f"{marks['store_issue'] / tiles:.2f} | {marks['store_read'] / tiles:.2f} | {marks['waited_staging']:.0f} | "
                   f"{marks['waited_linear1']:.0f} | {marks['tiles_done']:.0f} | {marks['combined']:.0f} |")


def bf16():
    yield "| layer, tokens a rank | fastest | order | L2 overwritten before | own products alone | cuBLAS, dense |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in load("results", "moe_bf16.json")["rows"]:
        best = min((run for run in row["runs"] if run["dispatch"] == "per-rank"), key=median)
        cold = f"{best['cold_us']['median']:.0f}" if best.get("cold_us") else "–"
        products = sum(v["median"] for v in row["products_us"].values())
        cublas = f"{sum(v['median'] for v in row['cublas_us'].values()):.0f}" if row.get("cublas_us") else "–"
        yield (f"| {row['layer']['shape']}, {row['layer']['tokens']} | {median(best):.0f} | {name_of(best)} | {cold} | "
               f"{products:.0f} | {cublas} |")


TARGETS_1024 = {"lingbot-video": 170, "hy3": 670, "qwen3.5-397b": 940, "deepseek-v4-flash": 940, "glm-5": 1410, "deepseek-v4-pro": 3200}


def floors():
    yield "| what | measured | three / nine launches in a row | bound | floor | target | | of it |"
    yield "| --- " * 8 + "|"

    def line(what, measured, bound, floor, target, lower_is_better=True, digits=0, parts="", hot=()):
        better = (lambda a, b: a <= b) if lower_is_better else (lambda a, b: a >= b)
        always = lambda wanted: all(better(value, wanted) for value in (measured, *hot))
        word = ("target met" if always(target) else "target met on rested GPUs only" if better(measured, target) and always(floor)
                else "floor met, target missed" if always(floor) else "**missed**")
        sign = "≤" if lower_is_better else "≥"
        return (f"| {what} | {measured:.{digits}f} | {' / '.join(f'{value:.{digits}f}' for value in hot)} | {bound} | "
                f"{sign} {floor:.{digits}f} | {sign} {target:.{digits}f} | {word} | {parts} |")

    def parts(n):
        phases = n["phases"]
        return (f"start {phases['start']:.0f}, slot sum {phases['end'] - phases['combined']:.0f}, products alone {n['products']:.0f}"
                if phases else "")

    for tokens in (8192, 1024):
        ratios = []
        in_a_row = [us_of for us_of in (swept_us(tokens), swept_us(tokens, HOT)) if us_of]
        for n in with_peers(tokens):
            shape, us = n["layer"]["shape"], median(n["auto"])
            ratios.append(n["peer"] / us)
            target = 1.2 * max(n["alone"], n["link"]) if tokens == 8192 else TARGETS_1024[shape]
            yield line(f"{shape}, {tokens} tokens, µs", us, f"{n['bound']:.0f}", n["peer"], target, parts=parts(n),
                       hot=[us_of[shape] for us_of in in_a_row])
        if tokens == 8192:
            yield line("geometric mean of peer / `auto`, 8192 tokens", geometric_mean(ratios), "", 1.15, 1.45, False, 3,
                       hot=[geometric_mean(peer_over(us_of, tokens)) for us_of in in_a_row])
    alone = gemm_alone()["lingbot-video", 8192]
    rows = list(rows_of("moe_sweep.json"))
    for n in rows:
        layer = n["layer"]
        if (layer["shape"], layer["routing"], layer["tokens"]) == ("lingbot-video", "remote:0.875", 8192):
            bound = max(alone, n["link"])
            yield line("lingbot-video, 7/8 of the rows remote, over the larger of a GEMM alone and link", median(n["auto"]) / bound,
                       f"{bound:.0f} µs", 1.25, 1.1, True, 2, f"{median(n['auto']):.0f} µs; {parts(n)}")
    hot = list(rows_of(HOT))
    late_of = lambda rows: max(rows, key=lambda n: (n["over"] > 1 + n["spread"], n["over"]))
    late, late_hot = late_of(rows), late_of(hot)
    yield line("`auto` over the fastest schedule, worst row; floor: the spread of its few launches, a weak one", late["over"], "1",
               1 + late["spread"], 1.0, True, 3, f"{where(late['layer'])}; spread {100 * late['spread']:.1f} %; nine launches in a row: "
               f"{late_hot['over']:.3f} where launches spread by {100 * late_hot['spread']:.0f} %, {max(n['over'] for n in hot):.3f} at worst")
    worst_of = lambda rows: max(((e, run, n) for n in rows for run, e in zip(n["named"], n["errors"])), key=lambda x: abs(x[0]))
    worst = worst_of(rows)
    yield line("predicted against measured, worst of the sweep, %", 100 * abs(worst[0]), "", 20, 8, True, 1,
               f"{where(worst[2]['layer'])}, {name_of(worst[1])}", hot=[100 * abs(worst[0]), 100 * abs(worst_of(hot)[0])])


PAGES = {"performance.md": {"moe floors": floors}, "moe.md": {"peers": peers, "summary": summary, "mechanism": mechanism, "bf16": bf16}, "moe_sweep.md": {"sweep": sweep}}


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
