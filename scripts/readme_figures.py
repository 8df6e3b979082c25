"""Makes the figures of README.md from the measurements in results/ and data/, and puts them between markers.

usage: readme_figures.py XSTAGE [--check]

XSTAGE is the executable. With --check nothing is written: the figures in README.md are compared
with new ones, number by number (2 %, or one unit of the last digit shown, since compilers round
differently), and a difference ends with status 1.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "data" / "h200x2"
RESULTS = ROOT / "results" / "h200x2"
UNSEEN = ["samples_unseen.csv", "samples_unseen_bursts.csv"]
PROFILE = ROOT / "profiles" / "h200-nv18-x2.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
SAMPLES = ["window_samples.csv", "remote_store_samples.csv", "per_sm_bursts.csv", "sm_groups.json"]


def run(executable, *arguments):
    done = subprocess.run([executable, *arguments, "--json"], check=True, capture_output=True)
    return json.loads(done.stdout)


def pair(errors, scale, digits):
    return f"{scale * errors['median']:.{digits}f}", f"{scale * errors['p95']:.{digits}f}"


def rows_of(validation, what):
    windowed, isolated = validation["windowed"], validation["isolated"]
    period, issue = pair(windowed["period"], 100, 2), pair(windowed["issue_us"], 1, 3)
    burst = pair(isolated["issue_us"], 1, 2)
    return [f"| period of a loop of bursts, {what} | {windowed['n']} | {period[0]} % | {period[1]} % |",
            f"| mean issue time in that loop | {windowed['n']} | {issue[0]} µs | {issue[1]} µs |",
            f"| mean issue time of an aligned burst beyond the knee, {what} | {isolated['n']} | {burst[0]} µs | {burst[1]} µs |"]


def table(executable):
    unseen = run(executable, "validate", "--profile", str(PROFILE),
                 *[part for name in UNSEEN for part in ("--samples", str(RESULTS / name))])
    samples = [part for name in SAMPLES for part in ("--samples", str(DATA / name))]
    with tempfile.TemporaryDirectory() as folder:
        profile = str(pathlib.Path(folder) / "profile.json")
        run(executable, "fit", *samples, "--name", "h200-nv18-x2", "--out", profile)
        validation = run(executable, "validate", "--profile", profile, *samples, "--folds")
    drain = json.loads(PROFILE.read_text())["drain"]
    rows = rows_of(unseen, "at random points")
    coupled = next(law for law in unseen["laws"] if "coupled" in law["law"])
    median, p95 = pair(coupled["period"], 100, 0)
    rows.append(f"| for comparison: period if every burst waited for its completion | {unseen['windowed']['n']} | {median} % | {p95} % |")
    for crossed in validation["cross_validation"]:
        left_out = {"B": "burst size", "K": "number of producers"}[crossed["left_out"]]
        rows += rows_of(crossed, f"its {left_out} never seen")
    return "\n".join([
        "| predicted, against measured on two H200 (NV18) | runs | error, median | p95 |",
        "| --- | ---: | ---: | ---: |", *rows, "",
        f"Drain rate of a GPU: {drain['one_way_gb_per_s']:.1f} GB/s one way, "
        f"{drain['both_ways_gb_per_s']:.1f} GB/s each way when both send."])


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def same(old, new):
    if NUMBER.sub("#", old) != NUMBER.sub("#", new):
        return False
    for was, now in zip(NUMBER.findall(old), NUMBER.findall(new)):
        last_digit = 10.0 ** -len(was.partition(".")[2])
        if abs(float(was) - float(now)) > max(0.02 * float(was), 1.01 * last_digit):
            return False
    return True


def main():
    text = README.read_text()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    new = f"\n{table(sys.argv[1])}\n"
    if "--check" not in sys.argv:
        README.write_text(before + BEGIN + new + END + after)
    elif not same(old, new):
        print(f"README.md says:{old}\nthe data say:{new}\nmake them anew: scripts/readme_figures.py build/xstage")
        return 1
    return 0


sys.exit(main())
