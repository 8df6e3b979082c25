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


def peers():
    peer = peer_times()
    yield ("| layer | tokens | auto | order | best | order | cold L2, auto | peer | peer / auto | own products alone | cuBLAS, dense |")
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    ratios = {}
    for row in load("results", "moe_peers.json")["rows"]:
        layer = row["layer"]
        named, auto = runs_of(row)
        best = min(named + [auto], key=median)
        wanted = peer[layer["shape"], layer["tokens"]]
        ratios.setdefault(layer["tokens"], []).append(wanted / median(auto))
        both = lambda key: sum(row[key][linear]["median"] for linear in ("linear1", "linear2"))
        cublas = f"{both('cublas_us'):.0f}" if row.get("cublas_us") else ""
        mark = "" if median(auto) <= wanted else " (slower)"
        yield (f"| {layer['shape']} | {layer['tokens']} | {median(auto):.0f} | {name_of(auto)} | {median(best):.0f} | "
               f"{name_of(best)} | {auto['cold_us']['median']:.0f} | {wanted:.0f} | "
               f"{wanted / median(auto):.2f}{mark} | {both('products_us'):.0f} | {cublas} |")
    yield ""
    means = ", ".join(f"{geometric_mean(values):.3f} at {tokens} tokens" for tokens, values in ratios.items())
    yield f"Geometric mean of peer / auto: {means}."


def ways():
    """Dispatch once a rank against once a slot, the same schedule."""
    yield "| layer | tokens | once a rank | once a slot |"
    yield "| --- | --- | --- | --- |"
    for row in load("results", "moe_peers.json")["rows"]:
        rank, slot = (runs_of(row, way)[1] for way in ("per-rank", "per-slot"))
        yield f"| {row['layer']['shape']} | {row['layer']['tokens']} | {median(rank):.0f} | {median(slot):.0f} |"


def sweep_numbers():
    """One dictionary a row of the sweep."""
    for row in load("results", "moe_sweep.json")["rows"]:
        named, auto = runs_of(row)
        best = min(named + [auto], key=median)
        wave = next(run for run in named if run["schedule"] == "wave")
        leads = [run for run in named if run["schedule"] != "wave"]
        spread = (auto["time_us"]["p95"] - auto["time_us"]["p05"]) / median(auto)
        yield {"layer": row["layer"], "named": named, "auto": auto, "best": best, "wave": wave, "spread": spread,
               "over_best": median(auto) / median(best), "products": sum(v["median"] for v in row["products_us"].values()),
               "gain": median(wave) / min(map(median, leads)), "link": row["link_us"],
               "errors": [(run["predicted_us"] / median(run) - 1, run) for run in named + [auto]]}


def sweep():
    rows = list(sweep_numbers())
    leads = [run["lead"] for run in rows[0]["named"] if run["lead"] is not None]
    yield ("| layer | routing | tokens | wave | " + " | ".join(f"lead {lead}" for lead in leads) +
           " | auto | takes | auto / fastest | predicted | error | wave / best lead | products alone | link |")
    yield "| --- " * (11 + len(leads)) + "|"
    for n in rows:
        layer = n["layer"]
        times = " | ".join(f"{median(run):.0f}" for run in n["named"])
        error = n["auto"]["predicted_us"] / median(n["auto"]) - 1
        yield (f"| {layer['shape']} | {layer['routing']} | {layer['tokens']} | {times} | {median(n['auto']):.0f} | "
               f"{name_of(n['auto'])} | {n['over_best']:.3f} | {n['auto']['predicted_us']:.0f} | {100 * error:+.1f} % | "
               f"{n['gain']:.2f} | {n['products']:.0f} | {n['link']:.0f} |")


def summary():
    rows = list(sweep_numbers())
    worst = max(rows, key=lambda n: n["over_best"])
    where = lambda n: f"{n['layer']['shape']}, {n['layer']['routing']}, {n['layer']['tokens']} tokens"
    over = sorted(n["over_best"] for n in rows)
    yield (f"- `auto` against the fastest schedule of its row, {len(rows)} rows: geometric mean {geometric_mean(over):.4f}, "
           f"worst {worst['over_best']:.3f} ({where(worst)}; that run's own launches spread by {100 * worst['spread']:.1f} %). "
           f"{sum(x <= 1.01 for x in over)} rows within 1 %, {sum(x <= 1.02 for x in over)} within 2 %.")
    gains = sorted(n["gain"] for n in rows)
    best_gain, least = max(rows, key=lambda n: n["gain"]), min(rows, key=lambda n: n["gain"])
    yield (f"- Best lead against the wave: geometric mean {geometric_mean(gains):.3f}, {best_gain['gain']:.2f} at most "
           f"({where(best_gain)}), {least['gain']:.2f} at least ({where(least)}).")
    for text, chosen in (("every schedule", lambda run: True),
                         ("wave, leads 16 and 64, auto", lambda run: run["lead"] is None or run["lead"] >= 16)):
        errors = [(abs(e), n, run) for n in rows for e, run in n["errors"] if chosen(run)]
        sizes = sorted(e for e, _, _ in errors)
        at = max(errors, key=lambda x: x[0])
        yield (f"- Predicted against measured, {text} ({len(sizes)} runs): median {100 * sizes[len(sizes) // 2]:.1f} %, p95 "
               f"{100 * sizes[int(0.95 * (len(sizes) - 1))]:.1f} %, worst {100 * at[0]:.1f} % ({where(at[1])}, {name_of(at[2])}); "
               f"{sum(e <= 0.08 for e in sizes)} within 8 %, {sum(e <= 0.2 for e in sizes)} within 20 %.")


# µs that the layers are to reach at 1024 tokens (weights read once, and what cannot overlap).
WANTED_1024 = {"lingbot-video": 170, "hy3": 670, "qwen3.5-397b": 940, "deepseek-v4-flash": 940, "glm-5": 1410,
               "deepseek-v4-pro": 3200}


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

    peer, alone, ratios = peer_times(), gemm_alone(), {}
    for row in load("results", "moe_peers.json")["rows"]:
        shape, tokens = row["layer"]["shape"], row["layer"]["tokens"]
        auto = median(runs_of(row)[1])
        ratios.setdefault(tokens, []).append(peer[shape, tokens] / auto)
        target = WANTED_1024[shape] if tokens == 1024 else 1.2 * max(alone[shape, tokens], row["link_us"])
        yield line(f"{shape}, {tokens} tokens, µs", auto, peer[shape, tokens], target)
    yield line("geometric mean over the peer, 8192 tokens", geometric_mean(ratios[8192]), 1.15, 1.45, False, 3)
    rows = list(sweep_numbers())
    for n in rows:
        layer = n["layer"]
        if (layer["shape"], layer["routing"], layer["tokens"]) == ("lingbot-video", "remote:0.875", 8192):
            bound = max(alone["lingbot-video", 8192], n["link"])
            yield line("lingbot-video, 7/8 of the rows remote, over the larger of products alone and link",
                       median(n["auto"]) / bound, 1.25, 1.1, True, 2)
    yield line("`auto` over the fastest schedule, worst of all rows", max(n["over_best"] for n in rows), 1.02, 1.01, True, 3)
    errors = [abs(e) for n in rows for e, _ in n["errors"]]
    yield line("predicted against measured, worst of all runs, %", 100 * max(errors), 20, 8, True, 1)


PAGES = {"performance.md": {"moe floors": floors}, "moe.md": {"peers": peers, "summary": summary, "ways": ways}, "moe_sweep.md": {"sweep": sweep}}


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
