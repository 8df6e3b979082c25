"""bench/eight_ranks_tables.py with and without measured files; the measured ones are made up here, in a folder of their
own, and nowhere else."""
import importlib.util
import json
import os
import re
import shutil
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
spec = importlib.util.spec_from_file_location("eight_ranks_tables", os.path.join(ROOT, "bench", "eight_ranks_tables.py"))
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)

NODE = {"gpu": "made up", "gpus": 8, "driver": "0"}


def measured_moe(predicted, factor):
    """What a run would write that took `factor` times what was predicted."""
    rows = []
    for row in predicted["rows"]:
        runs = []
        for run in row["runs"]:
            wave = run["schedule"].startswith("wave")
            runs.append({"schedule": "wave" if wave else "interleaved", "lead": None if wave else int(run["schedule"].split()[1]),
                         "dispatch": "per-rank", "time_us": {"median": factor * run["predicted_us"]}, **({"asked": "auto"} if "asked" in run else {})})
        rows.append({"layer": row["layer"], "runs": runs})
    return {"provenance": predicted["provenance"], "node": NODE, "rows": rows}


def measured_ulysses(predicted, factor):
    layers = []
    for entry in predicted["layers"]:
        p = entry["predicted"]
        us = {"attention": p["attention_us"], "fused": factor * p["fused_us"], "attention + push": p["push_serial_us"]}
        layers.append({"layer": entry["layer"], "rows": [{"what": what, "time_us": {"median": value}} for what, value in us.items()],
                       "residual_us": p["residual_us"] + 1, "serial_less_attention_us": p["push_serial_us"] - p["attention_us"]})
    return {"provenance": predicted["provenance"], "node": NODE, "layers": layers}


class EightRanksTables(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.mkdir(os.path.join(self.folder.name, "ulysses"))
        for name in ("moe_ep8_predicted.json", "moe_ep4_predicted.json", "ulysses/p8_predicted.json", "ulysses/p4_predicted.json"):
            shutil.copy(os.path.join(ROOT, "results", name), os.path.join(self.folder.name, name))

    def document(self, name):
        return tables.load(self.folder.name, name)

    def write(self, name, document):
        with open(os.path.join(self.folder.name, name), "w") as file:
            json.dump(document, file)

    def text(self):
        return {marker: "\n".join(rows) for marker, rows in tables.tables(self.folder.name).items()}

    def test_predictions_are_of_the_kernels_whose_times_they_rest_on(self):
        digest = lambda *path: tables.load(ROOT, *path)["provenance"]["kernel_digest"]
        for ranks in (8, 4):
            self.assertEqual(digest("results", f"moe_ep{ranks}_predicted.json"), digest("data", "h200x2", "moe_kernel.json"), "run scripts/eight_ranks.sh")
            self.assertEqual(digest("results", "ulysses", f"p{ranks}_predicted.json"), digest("results", "ulysses", "paper.json"), "run scripts/eight_ranks.sh")

    def test_without_measured_files_their_columns_are_empty(self):
        text = self.text()
        self.assertNotIn("error of", text["moe summary"])
        self.assertIn("none is measured", text["peer"])
        self.assertIn("All of it is predicted", text["answer"])
        self.assertEqual(text["moe 8"].count("\n"), 1 + 42)
        for line in text["moe 8"].split("\n")[2:]:
            self.assertTrue(line.endswith("|  |  |  |  |  |  |"), line)
        for line in text["ulysses 8"].split("\n")[2:7]:
            self.assertTrue(line.endswith("|  |  |  |  |  |  |  |"), line)

    def test_measured_times_stand_beside_what_was_predicted(self):
        self.write("moe_ep8.json", measured_moe(self.document("moe_ep8_predicted.json"), 1.25))
        self.write("ulysses/p8.json", measured_ulysses(self.document("ulysses/p8_predicted.json"), 1.25))
        text = self.text()
        self.assertIn("median 20.0 %, p95 20.0 %, worst 20.0 %, mean -20.0 %", text["moe summary"])
        self.assertIn("8 made up", text["moe summary"])
        for line in text["moe 8"].split("\n")[2:]:
            self.assertTrue(line.endswith("| -20.0 |"), line)
        self.assertNotIn("none is measured", text["peer"])
        self.assertNotIn("All of it is predicted", text["answer"])
        self.assertIn("mean -20.0 %", text["ulysses 8"])
        for line in text["ulysses 8"].split("\n")[2:7]:
            self.assertTrue(line.endswith("| -20.0 | -1.0 |"), line)
        # Of four ranks nothing is there.
        self.assertNotIn("-20.0", text["ulysses 4"] + text["moe 4"])

    def test_an_unfinished_run_fills_its_rows_only(self):
        measured = measured_moe(self.document("moe_ep8_predicted.json"), 1.25)
        measured["rows"] = measured["rows"][:5]
        self.write("moe_ep8.json", measured)
        text = self.text()
        lines = text["moe 8"].split("\n")[2:]
        self.assertEqual(sum(line.endswith("| -20.0 |") for line in lines), 5)
        # Three schedules each, and auto's where it is a fourth one.
        runs = int(re.search(r"against measured, (\d+) runs", text["moe summary"]).group(1))
        self.assertTrue(15 <= runs <= 20, runs)


if __name__ == "__main__":
    unittest.main()
