"""lockstep schedule as others use it: its JSON fields, exit codes and files.

    schedule_test.py LOCKSTEP_BINARY
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = sys.argv[1]
ORDERS = pathlib.Path(__file__).resolve().parent / "golden" / "schedules" / "pytorch_orders"
FIELDS = {"makespan", "ideal", "bubble_of_total", "bubble_of_ideal", "bubble_of_span", "busy", "in_flight_peak", "critical_path",
          "valid", "problems"}


def schedule(*arguments):
    return subprocess.run([LOCKSTEP, "schedule", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def document(*arguments, code=0):
    done = schedule(*arguments, "--json")
    assert done.returncode == code, (done.returncode, done.stderr)
    return json.loads(done.stdout)


class Schedule(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def test_fields_and_figures(self):
        one = document("--kind", "1f1b", "--stages", 4, "--microbatches", 8)
        self.assertLessEqual(FIELDS, set(one))
        self.assertEqual((one["makespan"], one["ideal"], one["busy"], one["in_flight_peak"]), (33, 24, [24] * 4, [4, 3, 2, 1]))
        self.assertAlmostEqual(one["bubble_of_total"], 3 / 11, 12)
        self.assertEqual((one["valid"], one["problems"]), (True, []))
        self.assertEqual(one["critical_path"][:5], ["0F0", "1F0", "2F0", "3F0", "3B0"])

    def test_default_times_are_of_a_chunk(self):
        two = document("--kind", "interleaved", "--stages", 4, "--microbatches", 8, "--chunks", 2)
        self.assertEqual((two["makespan"], max(two["in_flight_peak"])), (28.5, 5.5))
        v = document("--kind", "zb_v", "--stages", 2, "--microbatches", 4)  # two chunks, as it has no choice
        self.assertEqual((v["chunks"], v["makespan"]), (2, 12.5))
        h1 = document("--kind", "zb_h1", "--stages", 4, "--microbatches", 8, "--backward", 4)  # halves of 2 each
        self.assertEqual(h1["busy"], [8 + 32] * 4)

    def test_times_transfers_and_memory(self):
        uneven = document("--kind", "1f1b", "--stages", 4, "--microbatches", 8, "--forward", "1,2,1,1", "--backward", "2,4,2,3")
        self.assertEqual((uneven["makespan"], uneven["busy"]), (54, [24, 48, 24, 32]))
        split = document("--kind", "zb_h1", "--stages", 3, "--microbatches", 4, "--forward", 2, "--input-grad", 3, "--weight-grad", 1)
        self.assertEqual(split["makespan"], 32)
        gpipe = ["--kind", "gpipe", "--stages", 3, "--microbatches", 4, "--transfer", 1.5]
        modes = {mode: document(*gpipe, "--transfer-mode", mode)["makespan"] for mode in ("async", "link", "block")}
        self.assertEqual((modes["async"], modes["link"]), (24, 25.5))
        self.assertGreater(modes["block"], modes["link"])
        memory = document(*gpipe, "--activation-bytes", "1K")
        self.assertEqual(memory["activation_peak_bytes"], [4096] * 3)
        less = document(*gpipe, "--activation-bytes", "1K", "--recompute", 1)
        self.assertEqual((less["activation_peak_bytes"], less["in_flight_peak"]), ([1024] * 3, [4] * 3))

    def test_files_of_pytorch(self):
        for path in ORDERS.glob("*_K2_M4*.csv"):  # all of them are read in tests/golden
            placement = "v" if path.name.startswith(("zbv", "dualpipev")) else "loop"
            self.assertTrue(document("--from", path, "--placement", placement, "--blocking")["valid"], path.name)
        wrong = document("--from", ORDERS / "zbv_K2_M4_v2.csv", "--placement", "loop", code=1)
        self.assertEqual((wrong["valid"], wrong["problems"]), (False, ["stage 2 = rank 1: placement loop puts it elsewhere (nearest: rank 0)"]))
        for path in (ORDERS / "invalid").glob("*_K2_*.csv"):
            refused = document("--from", path, code=1)
            self.assertIn("micro-batches are numbered from 0", refused["problems"][0])

    def test_broken_files_exit_with_1_and_the_reason(self):
        crossed = self.folder / "crossed.csv"
        crossed.write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n")
        done = schedule("--from", crossed)
        self.assertEqual(done.returncode, 1)
        self.assertIn("rank 0 = 0B0: waits for ever for 1B0, as rank 1 stands at 1F1", done.stdout)

    def test_blocking_sends(self):
        both_first = self.folder / "both_first.csv"
        both_first.write_text("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n")
        self.assertTrue(document("--from", both_first)["valid"])
        for waiting in (["--blocking"], ["--transfer-mode", "block"]):
            self.assertIn("(blocking sends)", document("--from", both_first, *waiting, code=1)["problems"][0])

    def test_lists_print_a_table(self):
        several = document("--kind", "gpipe,1f1b", "--stages", 4, "--microbatches", "4,8")["schedules"]
        self.assertEqual([(s["schedule"], s["microbatches"]) for s in several], [("gpipe", 4), ("gpipe", 8), ("1f1b", 4), ("1f1b", 8)])
        refused = document("--kind", "interleaved", "--stages", 4, "--microbatches", "4,6,8", "--chunks", 2, code=1)["schedules"]
        self.assertEqual([s["valid"] for s in refused], [True, False, True])
        text = schedule("--kind", "gpipe,1f1b,zb_h1,zb_v", "--stages", 4, "--microbatches", "8,16").stdout
        self.assertEqual(len(text.splitlines()), 9)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def test_waves(self):
        waves = document("--waves", "--stages", 3, "--microbatches", 2)
        self.assertEqual(waves, {"waves": [[[0, 0]], [[1, 0], [0, 1]], [[1, 1], [0, 2]], [[1, 2]]]})
        self.assertEqual(document("--waves", "--stages", 3, "--microbatches", 0), {"waves": []})
        self.assertIn("k = 1: [(1, 0), (0, 1)]", schedule("--kind", "gpipe", "--waves", "--stages", 3, "--microbatches", 3).stdout)

    def test_export_and_picture(self):
        exported, picture = self.folder / "table.csv", self.folder / "table.svg"
        arguments = ["--kind", "dualpipe_v", "--stages", 2, "--microbatches", 4]
        done = schedule(*arguments, "--export", exported, "--svg", picture)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("(0F3;3B1)OVERLAP_F_B", exported.read_text())
        self.assertEqual(document("--from", exported)["makespan"], document(*arguments)["makespan"])
        self.assertIn("<svg", picture.read_text())
        self.assertEqual(schedule(*arguments, "--export", "/nowhere/table.csv").returncode, 2)

    def test_timelines_fit_100_columns(self):
        text = schedule("--kind", "interleaved", "--stages", 4, "--microbatches", 16, "--chunks", 2, "--transfer", 0.3).stdout
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        self.assertIn("rank 3 |", text)
        self.assertIn("critical path", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
