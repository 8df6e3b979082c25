#!/usr/bin/env python3
"""Writes the simulator's tables of docs/performance.md from results/simulator.json.

usage: simulator_tables.py [--check]

Replaces what stands between the markers; with --check only says whether it would change anything.
"""
import json
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = os.path.join(ROOT, "docs", "performance.md")


def cost(document, what, title):
    yield f"| {title} | tiles | routing, s | both schedules, s | µs a tile | peak memory, MB |"
    yield "|" + " --- |" * 6
    for row in document[what]:
        yield (f"| {row[what]} | {row['tiles']} | {row['setup_s']:.2f} | {row['both_schedules_s']:.2f} | "
               f"{1e6 * row['both_schedules_s'] / row['tiles']:.2f} | {row['peak_mb']:.0f} |")


def schedule_of(chosen):
    return "wave" if chosen["lead"] is None else f"interleaved, lead {chosen['lead']}"


def grid(document):
    found, at = document["grid"], document["provenance"]
    rows = found["rows"]
    ratio = lambda row: row["wave_us"] / row["best_interleaved_us"]
    least, most = min(rows, key=ratio), max(rows, key=ratio)
    where = lambda row: "{shape}, {weights}, {routing}, {tokens} tokens".format(**row["layer"])
    yield (f"Commit {at['git_commit'][:7]}, {at['created_utc']}; {found['configurations']} configurations in {found['wall_s']:.0f} s on {found['threads']} threads, {document['peak_mb']:.0f} MB. "
           f"Best lead over the wave: geometric mean {found['speedup_geometric_mean']:.3f}, most {found['speedup_most']:.3f} ({where(most)}), least "
           f"{found['speedup_least']:.3f} ({where(least)}); `auto` takes the wave in {sum(row['chosen']['lead'] is None for row in rows)} rows.")
    yield ""
    yield "| layer | weights | routing | tokens | wave, µs | best interleaved, µs | chosen |"
    yield "|" + " --- |" * 7
    for row in rows:
        layer = row["layer"]
        yield (f"| {layer['shape']} | {layer['weights']} | {layer['routing']} | {layer['tokens']} | {row['wave_us']:.0f} | "
               f"{row['best_interleaved_us']:.0f} | {schedule_of(row['chosen'])} |")


def main():
    with open(os.path.join(ROOT, "results", "simulator.json")) as file:
        document = json.load(file)
    document["grid"]["rows"].sort(key=lambda row: tuple(row["layer"][k] for k in ("shape", "weights", "routing", "tokens")))
    with open(PAGE) as file:
        page = before = file.read()
    for marker, rows in (("simulator tokens", cost(document, "tokens", "tokens a rank (lingbot-video, 2 ranks)")),
                         ("simulator ranks", cost(document, "ranks", "ranks (deepseek-v4-flash with 288 experts, 1024 tokens a rank)")),
                         ("simulator grid", grid(document))):
        begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->"
        head, rest = page.split(begin)
        page = head + begin + "\n".join(rows) + "\n" + end + rest.split(end, 1)[1]
    if "--check" in sys.argv:
        return 0 if page == before else 1
    with open(PAGE + ".part", "w") as file:
        file.write(page)
    os.replace(PAGE + ".part", PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
