"""Writes the box on top of the demo's report: the key figures of its documents.

usage: demo_summary.py DIR
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(sys.argv[1])


def load(name):
    path = FOLDER / name
    return json.loads(path.read_text()) if path.exists() else {}


def figure(label, value, unit, source):
    return {"label": label, "value": value, "unit": unit, "from": source}


def rounded(value, digits=3):
    return float(f"{value:.{digits}g}")


def main():
    figures, sentences = [], []
    validation = load("validation.json")
    for fold in validation.get("cross_validation", []):
        if fold["left_out"] == "B":
            windowed, isolated = fold["windowed"], fold["isolated"]
            figures.append(figure("period error on unseen burst sizes, median",
                                  rounded(100 * windowed["period"]["median"]), "%", "validation.json"))
            figures.append(figure("issue time error on unseen burst sizes, median",
                                  rounded(1000 * windowed["issue_us"]["median"]), "ns",
                                  "validation.json"))
            sentences.append(f"Each burst size left out of the fit in turn, the model predicts the "
                             f"{windowed['n']} windowed and {isolated['n']} isolated runs it never saw.")
    drain = load("profile.json").get("drain", {})
    if drain:
        figures.append(figure("drain rate, one way", rounded(drain["one_way_gb_per_s"], 4), "GB/s",
                              "profile.json"))
    simulation = load("simulation-moe.json")
    times = {row["schedule"]: row["time_us"] for row in simulation.get("runs", [])}
    if {"wave", "interleaved"} <= times.keys():
        figures.append(figure("interleaved over wave, simulated", rounded(times["wave"] / times["interleaved"]),
                              "×", "simulation-moe.json"))
    runs = [load(path.name) for path in sorted(FOLDER.glob("run-*.json"))]
    for backend, where in (("cpu", "on CPU ranks"), ("cuda", "on GPUs")):
        these = [run for run in runs if run.get("backend") == backend]
        if these:
            right = sum(bool(run.get("ok")) for run in these)
            sentences.append(f"{right} of {len(these)} layers run with real numbers {where} agree with the "
                             "reference, with the same bits in every order.")
    document = {
        "format": "xstage.summary/1",
        "provenance": {"tool": "xstage", "verb": "demo.sh"},
        "title": "Two H200, from the measured samples that ship with xstage",
        "headline": " ".join(sentences),
        "figures": figures,
    }
    (FOLDER / "summary.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


main()
