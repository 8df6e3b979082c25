#!/usr/bin/env python3
"""Writes the tables of docs/eight_ranks.md: what was predicted for four and eight ranks, beside what others published
and, once a file of the same table is there, beside what was measured.

usage: eight_ranks_tables.py [--check] [--results DIR] [--print]

Replaces what stands between the markers; with --check only says whether it would change anything. --results reads
predictions and measurements from another folder, --print writes the tables to standard output instead of the page.
"""
import argparse
import json
import math
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = os.path.join(ROOT, "docs", "eight_ranks.md")
PEER_SIZES = (512, 1024, 2048, 4096, 8192)


def load(*path):
    """The document, or None where no such file exists."""
    path = os.path.join(*path)
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def head(*columns):
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * len(columns)


def line(*cells):
    return "| " + " | ".join(cells) + " |"


def cell(value, form=".0f"):
    return "" if value is None else format(value, form)


def error_text(errors):
    sizes = sorted(map(abs, errors))
    return (f"median {100 * sizes[len(sizes) // 2]:.1f} %, p95 {100 * sizes[int(0.95 * (len(sizes) - 1))]:.1f} %, worst "
            f"{100 * sizes[-1]:.1f} %, mean {100 * sum(errors) / len(errors):+.1f} %")


def made(name, document):
    at = document["provenance"]
    node = document.get("node")
    what = f"{node['gpus']} {node['gpu']}, driver {node['driver']}" if node else f"profile {document['profile']['name']}"
    return f"`{name}`: commit {at['git_commit'][:7]}{'+' if at['git_commit'].endswith('-modified') else ''}, kernel {at['kernel_digest'][:8]}, {at['created_utc']}, {what}."


class Row:
    """A row of table ep8: predicted and, where it is there, measured times by schedule."""

    def __init__(self, predicted, measured):
        layer = predicted["layer"]
        self.key = key_of(predicted)
        self.shape, self.routing, self.tokens = layer["shape"], layer["routing"], layer["tokens"]
        self.predicted = {order_of(run): run["predicted_us"] for run in predicted["runs"] if "asked" not in run}
        self.auto = next(run for run in predicted["runs"] if "asked" in run)
        self.start, self.landed, self.link = predicted["start_us"], predicted["landed_us"], predicted["link_us"]
        self.measured = self.measured_auto = self.took = None
        if measured:
            runs = [run for run in measured["runs"] if run["dispatch"] == "per-rank"]
            self.measured = {order_of(run): run["time_us"]["median"] for run in runs if "asked" not in run}
            auto = next((run for run in runs if "asked" in run), None)
            if auto:
                self.measured_auto, self.took = auto["time_us"]["median"], order_of(auto)

    def errors(self):
        """Predicted over measured, less one, of every schedule that both have."""
        pairs = [(us, (self.measured or {}).get(order)) for order, us in self.predicted.items()]
        if self.measured_auto and self.took == order_of(self.auto) and self.took not in self.predicted:
            pairs.append((self.auto["predicted_us"], self.measured_auto))
        return [us / measured - 1 for us, measured in pairs if measured]


def key_of(row):
    layer = row["layer"]
    return tuple(layer[name] for name in ("shape", "routing", "tokens", "ranks", "weights"))


def order_of(run):
    """wave, or lead N; the group of a wave is not part of it."""
    if run["schedule"] == "interleaved":
        return f"lead {run['lead']}"
    return run["schedule"].split()[0] if run["schedule"].startswith("wave") else run["schedule"]


def gain(us):
    """The wave over the best lead; None without either."""
    leads = [value for order, value in us.items() if order != "wave"] if us else []
    return us["wave"] / min(leads) if leads and "wave" in us else None


def moe_rows(results, ranks):
    predicted = load(results, f"moe_ep{ranks}_predicted.json")
    measured = load(results, f"moe_ep{ranks}.json")
    by_key = {key_of(row): row for row in measured["rows"]} if measured else {}
    rows = [Row(row, by_key.get(key_of(row))) for row in predicted["rows"]]
    return predicted, measured, rows


def grid_rows(rows):
    return [row for row in rows if row.tokens in (2048, 8192, 16384)]


def moe_grid(results, ranks):
    _, _, rows = moe_rows(results, ranks)
    yield from head("layer", "routing", "tokens", "wave", "lead 16", "lead 64", "`auto`", "wave / best lead", "tokens there", "tiles begin",
                    "link time of results", "measured wave", "lead 16", "lead 64", "`auto`", "wave / best lead", "worst error, %")
    for row in grid_rows(rows):
        measured = row.measured or {}
        worst = max(row.errors(), key=abs, default=None)
        took = f", {row.took}" if row.took and row.took != order_of(row.auto) else ""
        yield line(row.shape, row.routing, str(row.tokens), *(cell(row.predicted.get(o)) for o in ("wave", "lead 16", "lead 64")),
                   f"{order_of(row.auto)}, {row.auto['predicted_us']:.0f}", cell(gain(row.predicted), ".2f"), cell(row.landed), cell(row.start), cell(row.link),
                   *(cell(measured.get(o)) for o in ("wave", "lead 16", "lead 64")), cell(row.measured_auto) + took,
                   cell(gain(row.measured), ".2f"), cell(None if worst is None else 100 * worst, "+.1f"))


def gains_text(rows, us_of):
    gains = [(gain(us_of(row)), row) for row in rows]
    if any(value is None for value, _ in gains):
        return None
    where = lambda row: f"{row.shape}, {row.routing}, {row.tokens} tokens"
    most, least = max(gains, key=lambda g: g[0]), min(gains, key=lambda g: g[0])
    return (geometric_mean([value for value, _ in gains]), f"{most[0]:.2f} ({where(most[1])})", f"{least[0]:.2f} ({where(least[1])})")


def moe_summary(results):
    paper = load(ROOT, "data", "published.json")["paper"]["moe"]
    yield from head("wave / best lead", "geometric mean", "most", "least")
    yield line(f"the paper, 8 GPUs, {paper['what'].split(',', 1)[1].strip()}", f"{paper['geometric_mean']:.2f}", f"{paper['most']:.2f}", f"{paper['least']:.2f}")
    notes = []
    for ranks in (8, 4):
        predicted, measured, rows = moe_rows(results, ranks)
        rows = grid_rows(rows)
        notes.append(made(f"moe_ep{ranks}_predicted.json", predicted))
        for routing in ("balanced", "zipf:1.2", None):
            some = [row for row in rows if routing in (None, row.routing)]
            what = f"{ranks} ranks, {routing or 'both'}, {len(some)} rows"
            mean, most, least = gains_text(some, lambda row: row.predicted)
            yield line(f"predicted, {what}", f"{mean:.3f}", most, least)
            found = gains_text(some, lambda row: row.measured) if measured else None
            yield line(f"measured, {what}", *((f"{found[0]:.3f}", found[1], found[2]) if found else ("", "", "")))
        if measured:
            notes.append(made(f"moe_ep{ranks}.json", measured))
            errors = [e for row in rows for e in row.errors()]
            if errors:
                notes.append(f"{ranks} ranks, predicted before the run against measured, {len(errors)} runs: {error_text(errors)}.")
            late = [row.measured_auto / min([*row.measured.values(), row.measured_auto]) for row in rows if row.measured_auto]
            if late:
                notes.append(f"`auto` over the fastest: worst {max(late):.3f}.")
    yield ""
    yield " ".join(notes)


def peer(results):
    published = load(ROOT, "data", "published.json")["peer"]
    peer_us = {(row["layer"], row["tokens"]): row["us"] for row in published["moe_ep8_w8a8_us"]}
    _, measured, rows = moe_rows(results, 8)
    yield from head("layer, tokens a rank", "peer", "predicted `auto`", "peer / predicted", "measured `auto`", "peer / measured", "error, %")
    ratios, found = [], []
    for row in sorted((r for r in rows if r.routing == "balanced" and (r.shape, r.tokens) in peer_us), key=lambda r: (r.shape, r.tokens)):
        theirs, ours, us = peer_us[row.shape, row.tokens], row.auto["predicted_us"], row.measured_auto
        ratios.append(theirs / ours)
        found += [theirs / us] if us else []
        yield line(f"{row.shape}, {row.tokens}", cell(theirs), f"{ours:.0f}, {order_of(row.auto)}", f"{theirs / ours:.2f}", cell(us),
                   cell(theirs / us if us else None, ".2f"), cell(100 * (ours / us - 1) if us else None, "+.1f"))
    yield ""
    yield (f"Geometric mean of peer / predicted: {geometric_mean(ratios):.2f}" +
           (f"; of peer / measured: {geometric_mean(found):.2f}." if found else "; none is measured."))


def ulysses(results, ranks):
    paper = {row["seq"]: row for row in load(ROOT, "data", "published.json")["paper"]["ulysses"]["rows"]}
    predicted = load(results, "ulysses", f"p{ranks}_predicted.json")
    measured = load(results, "ulysses", f"p{ranks}.json")
    torch = load(results, "ulysses", f"torch_p{ranks}.json")
    shape = lambda layer: (layer.get("heads_local") or layer["heads"] // layer["ranks"], layer["seq"], layer["head_dim"])
    ours = {shape(e["layer"]): e for e in measured["layers"]} if measured else {}
    theirs = {shape(e["layer"]): e for e in torch["layers"]} if torch else {}
    yield from head("S", "attention", "fused", "residual (range)", "attention + push", "/ fused", "attention + permutes and NCCL", "/ fused",
                    *(("the paper's serial / fused (µs)",) if ranks == 8 else ()), "measured attention", "fused", "residual", "attention + push / fused",
                    "NCCL's / fused", "error of fused, %", "of residual, µs")
    errors = []
    for entry in predicted["layers"]:
        layer, p = entry["layer"], entry["predicted"]
        if shape(layer)[0] != 4:
            continue
        low, high = p["residual_range_us"]
        of_paper = paper.get(layer["seq"])
        cells = [f"{layer['seq']}", f"{p['attention_us']:.1f}", f"{p['fused_us']:.1f}", f"{p['residual_us']:.1f} ({low:.1f} to {high:.1f})",
                 f"{p['push_serial_us']:.1f}", f"{p['push_over_fused']:.3f}", f"{p['nccl_serial_us']:.1f}", f"{p['nccl_over_fused']:.3f}"]
        if ranks == 8:
            cells.append(f"{of_paper['serial'] / of_paper['fused']:.2f} ({of_paper['serial']} / {of_paper['fused']})" if of_paper else "")
        found, beside = ours.get(shape(layer)), theirs.get(shape(layer))
        us = {row["what"]: row["time_us"]["median"] for row in found["rows"]} if found else {}
        nccl = beside["time_us"] if beside else {}
        if found:
            errors.append(p["fused_us"] / us["fused"] - 1)
        cells += [cell(us.get("attention"), ".1f"), cell(us.get("fused"), ".1f"), cell(found["residual_us"] if found else None, ".1f"),
                  cell((us["attention"] + found["serial_less_attention_us"]) / (us["attention"] + found["residual_us"]) if found else None, ".3f"),
                  cell(nccl["attention + nccl"] / nccl["fused"] if "attention + nccl" in nccl else None, ".3f"),
                  cell(100 * errors[-1] if found else None, "+.1f"), cell(p["residual_us"] - found["residual_us"] if found else None, "+.1f")]
        yield line(*cells)
    yield ""
    yield made(f"p{ranks}_predicted.json", predicted) + (
        f" {made(f'p{ranks}.json', measured)} Fused, predicted against measured: {error_text(errors)}." if measured else "")


def answer(results):
    """What the page says, in two sentences."""
    paper = load(ROOT, "data", "published.json")["paper"]["moe"]
    _, measured, rows = moe_rows(results, 8)
    grid = grid_rows(rows)
    mean, most, _ = gains_text(grid, lambda row: row.predicted)
    short = load(results, "ulysses", "p8_predicted.json")["layers"][0]
    us = short["predicted"]
    yield (f"Expected of eight ranks: a lead beats the wave {mean:.2f} times in the geometric mean of {len(grid)} MoE layers, {most} at most (the paper: {paper['geometric_mean']:.2f}, {paper['most']:.2f}); "
           f"attention with its All-to-All fused, four heads, S = {short['layer']['seq']}, is {us['push_serial_us'] / us['fused_us']:.2f} times as fast as with a push after it, "
           f"{us['nccl_serial_us'] / us['fused_us']:.2f} times as with permutes and NCCL.")
    if not measured:
        yield "All of it is predicted: no node with four or eight GPUs has run this yet."


def tables(results):
    return {"answer": answer(results), "moe summary": moe_summary(results), "peer": peer(results), "moe 8": moe_grid(results, 8), "moe 4": moe_grid(results, 4),
            "ulysses 8": ulysses(results, 8), "ulysses 4": ulysses(results, 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", default=os.path.join(ROOT, "results"))
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    found = tables(options.results)
    if options.print:
        for marker, rows in found.items():
            print(f"## {marker}", *rows, sep="\n")
        return 0
    with open(PAGE) as file:
        page = before = file.read()
    for marker, rows in found.items():
        begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->"
        start, rest = page.split(begin)
        page = start + begin + "\n".join(rows) + "\n" + end + rest.split(end, 1)[1]
    if options.check:
        return 0 if page == before else 1
    with open(PAGE + ".part", "w") as file:
        file.write(page)
    os.replace(PAGE + ".part", PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
