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
sys.path.insert(0, str(ROOT / "bench"))
import moe_tables  # noqa: E402
import ulysses_tables  # noqa: E402

DATA = ROOT / "data" / "h200x2"
RESULTS = ROOT / "results" / "h200x2"
UNSEEN = ["samples_unseen.csv", "samples_unseen_bursts.csv"]
PROFILE = ROOT / "profiles" / "h200-nv18-x2.json"
README = ROOT / "README.md"
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
    rows = rows_of(unseen, "16-byte stores one way, at random points")
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


def row_against(what, against, ratios):
    return (f"| {what} | {against} | {moe_tables.geometric_mean(ratios):.2f} × "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |")


def kernels(_):
    """How the fused kernels compare, from the same results as the tables of their pages."""
    rows = []
    peer = "a peer's kernel on another such node"
    beside_peer = lambda tokens: [row["peer"] / moe_tables.median(row["auto"]) for row in moe_tables.with_peers(tokens)]
    layer = "[MoE layer](docs/moe.md), w8a8, 6 layers,"
    rows.append(row_against(f"{layer} 8192 tokens a rank", peer, beside_peer(8192)))
    rows.append(row_against("the same, nine launches in a row: at the power limit", peer,
                            moe_tables.peer_over(moe_tables.swept_us(8192, moe_tables.HOT), 8192)))
    rows.append(row_against(f"{layer} 1024 tokens a rank", peer, beside_peer(1024)))
    torch = ulysses_tables.load("torch.json")["layers"]
    rows.append(row_against(f"[attention](docs/ulysses.md) alone, {len(torch)} shapes", "cuDNN in the same run",
                            [entry["over_cudnn"] for entry in torch]))
    lengths = (8192, 16384, 32768)
    beside = {e["layer"]["seq"]: e["time_us"] for e in torch if e["layer"]["name"] == "paper"}
    fused = {e["layer"]["seq"]: e for e in ulysses_tables.layers() if e["layer"]["shape"] == "paper"}
    rows.append("| attention and its output All-to-All fused, 4 heads, S = 8192 / 16384 / 32768 | permutes and NCCL after it | "
                + " / ".join(f"{beside[s]['attention + nccl'] / beside[s]['fused']:.2f}" for s in lengths) + " × |")
    rows.append("| the same: what the All-to-All adds | attention alone | "
                + " / ".join(f"{100 * fused[s]['residual_share']:.2f}" for s in lengths) + " % |")
    return "\n".join(["| kernels on two H200 | against | times as fast |", "| --- | --- | ---: |", *rows])


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
    for name, make in (("figures", table), ("kernels", kernels)):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        old, after = rest.split(end)
        new = f"\n{make(sys.argv[1])}\n"
        if "--check" in sys.argv and not same(old, new):
            print(f"README.md says:{old}\nthe data say:{new}\nmake them anew: scripts/readme_figures.py build/xstage")
            return 1
        text = before + begin + new + end + after
    if "--check" not in sys.argv:
        README.write_text(text)
    return 0


sys.exit(main())
