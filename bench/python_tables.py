#!/usr/bin/env python3
"""Writes the table of docs/python.md from results/python.json (bench/python_overhead.py).

usage: python_tables.py [--check]
With --check nothing is written; ends with 1 where the page says something else.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs/python.md", ROOT / "results/python.json"


def table():
    result = json.loads(RESULTS.read_text())
    lines = [f"`results/python.json`: {result['gpus']} {result['gpu']}, driver {result['driver'][0]}, PyTorch {result['torch']}, kernels of commit "
             f"{result['commit'][:7]}, {result['created_utc']}. Medians of {result['rounds']}; µs. Made by `python3 bench/python_overhead.py "
             "--gpus 2`. *host* is the Python call itself, *call* what one in a row of calls takes, *graph* the same replayed from a CUDA graph: the kernels alone.", "",
             "| operator | heads × rows, head_dim | host | call | graph | call − graph |", "| --- | --- | --- | --- | --- | --- |"]
    for row in result["rows"]:
        lines.append(f"| {row['operator']} | {row['heads']} × {row['sequence']}, {row['head_dim']} | {row['host']:.0f} | "
                     f"{row['call']:.0f} | {row['graph']:.0f} | {row['call'] - row['graph']:.1f} |")
    return "\n".join(lines)


def main():
    text = PAGE.read_text()
    begin, end = "<!-- overhead -->\n", "<!-- end of overhead -->"
    head, rest = text.split(begin)
    made = head + begin + table() + "\n" + end + rest.split(end)[1]
    if made == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE} is not what {RESULTS} says; python3 bench/python_tables.py writes it", file=sys.stderr)
        return 1
    PAGE.write_text(made)
    return 0


sys.exit(main())
