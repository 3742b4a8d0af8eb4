"""`warpline bench` with a small model: its figures, its files, and what it refuses."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
import uuid
import xml.etree.ElementTree

from service import BIN, DATA, Service, free_port, wait_until

MODEL = os.path.join(DATA, "text_models", "qwen35moe.gguf")
SMALL = ("--prompts", "40,150", "--batch", "1,3", "--decode-tokens", "24", "--decode-prompt", "20")


class BenchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = pathlib.Path(folder.name) / "bench.json"
        self.svg = pathlib.Path(folder.name) / "bench.svg"

    def start(self, *arguments) -> subprocess.Popen:
        self.mark = f"TEST_MARK_{uuid.uuid4().hex}"
        process = subprocess.Popen([os.path.join(BIN, "warpline"), "bench", *map(str, arguments)], text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, self.mark: "1"})
        self.addCleanup(process.kill)
        return process

    def bench(self, *arguments) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        self.assertEqual(self.left_over(), [])
        return process.returncode, out, err

    def left_over(self) -> list[str]:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.mark.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found

    def check_measurements(self, measurements):
        names = [(entry["kind"], entry["prompt_tokens"], entry["streams"]) for entry in measurements]
        self.assertEqual(names, [("prompt", 40, 1), ("prompt", 40, 2), ("prompt", 150, 1), ("prompt", 150, 2),
                                 ("decode", 20, 1), ("decode", 20, 3)])
        for entry in measurements:
            self.assertGreater(entry["seconds"], 0)
            self.assertAlmostEqual(entry["tokens_per_second"] * entry["seconds"], entry["counted_tokens"], 6)
            if entry["kind"] == "prompt":
                self.assertEqual(entry["counted_tokens"], entry["prompt_tokens"] * entry["streams"])
                self.assertEqual(entry["received_tokens"], entry["streams"])
            else:
                # Streams that hardly ran at one time are run again with twice the tokens.
                rounds = entry["received_tokens"] / (24 * entry["streams"])
                self.assertIn(rounds, (1, 2, 4, 8, 16))
                self.assertLessEqual(entry["counted_tokens"], entry["received_tokens"] - entry["streams"])
        # All but what came first, which may be more than one token.
        self.assertIn(measurements[4]["counted_tokens"], range(20, 24))

    def test_two_arms_take_turns(self):
        code, out, err = self.bench("-m", MODEL, "-t", 2, *SMALL, "--concurrent-prompts", "1,2", "--ab", "--chunk 16",
                                    "--chunk=64", "--repeat", 2, "--json", self.json, "--plot", self.svg)
        self.assertEqual(code, 0, err)
        result = json.loads(self.json.read_text())
        self.assertIsNone(result["error"])
        self.assertEqual([arm["options"] for arm in result["arms"]], ["--chunk 16", "--chunk=64"])
        for arm, chunk in zip(result["arms"], ("16", "64")):
            arguments = arm["serve_arguments"]
            self.assertEqual(arguments[arguments.index("--chunk") + 1], chunk)
            self.assertEqual(arguments[arguments.index("--parallel") + 1], "3")
        self.assertEqual([run["arm"] for run in result["runs"]], ["A", "B", "A", "B"])
        for run in result["runs"]:
            self.check_measurements(run["measurements"])
            self.assertGreater(run["ready_seconds"], 0)
            self.assertEqual(run["context_length"], 20 + 16 * 24)
            self.assertEqual(len(run["devices"]), 1)
            self.assertEqual(run["model"]["architecture"], "qwen35moe")
        self.assertEqual(len(result["summary"]), 6)
        for row in result["summary"]:
            self.assertLessEqual(row["A"]["min"], row["A"]["median"])
            self.assertLessEqual(row["A"]["median"], row["A"]["max"])
            self.assertAlmostEqual(row["B/A"], row["B"]["median"] / row["A"]["median"])
        self.assertIn("--ab", result["command_line"])
        self.assertGreater(result["machine"]["usable_cores"], 0)
        self.assertIn(f"seed {result['seed']}", out)
        for text in ("A: --chunk 16", "prompt 150 x2", "decode x3", "B/A", "start to ready, s"):
            self.assertIn(text, out)
        self.assertEqual(xml.etree.ElementTree.parse(self.svg).getroot().tag, "{http://www.w3.org/2000/svg}svg")

    def test_an_arm_may_have_no_options(self):
        code, out, err = self.bench("-m", MODEL, "-t", 2, "--prompts", 40, "--batch", 0, "--ab", "", "-np 2", "--repeat", 1)
        self.assertEqual(code, 0, err)
        self.assertIn("A: no more options\nB: -np 2\n", out)

    def test_many_streams_find_a_common_span(self):
        code, _, err = self.bench("-m", MODEL, "-t", 2, "--prompts", 0, "--batch", 64, "--decode-tokens", 32, "--repeat", 1,
                                  "--json", self.json)
        self.assertEqual(code, 0, err)
        (entry,) = json.loads(self.json.read_text())["runs"][0]["measurements"]
        self.assertEqual(entry["received_tokens"] % (64 * 32), 0)
        self.assertGreater(entry["counted_tokens"], 0)

    def test_a_running_service(self):
        with Service(MODEL, "-t", 2, "--api-key", "sesame") as service:
            url = f"http://127.0.0.1:{service.port}/"
            code, _, err = self.bench("--url", url, "--api-key", "sesame", *SMALL, "--concurrent-prompts", "1,2",
                                      "--repeat", 2, "--seed", 7, "--json", self.json)
            self.assertEqual(code, 0, err)
            result = json.loads(self.json.read_text())
            self.assertEqual(result["seed"], 7)
            self.assertNotIn("sesame", self.json.read_text())
            for run in result["runs"]:
                self.check_measurements(run["measurements"])
                self.assertIsNone(run["ready_seconds"])
            # A failed request fails the bench, and is on record.
            code, _, err = self.bench("--url", url, *SMALL, "--json", self.json)
            self.assertEqual(code, 1)
            self.assertIn("HTTP status 401", err)
            self.assertIn("HTTP status 401", json.loads(self.json.read_text())["error"])
            code, _, err = self.bench("--url", url, "--api-key", "sesame", "--prompts", 40000)
            self.assertEqual(code, 1)
            self.assertIn("a context of 32768 tokens, the longest sequence takes 40001", err)
            code, _, err = self.bench("--url", url, "--api-key", "sesame", "--prompts", 40, "--batch", 9)
            self.assertEqual(code, 1)
            self.assertIn("8 sequences at a time, the bench wants 9", err)

    def test_what_is_refused(self):
        for arguments, status, message in (
                ((), 2, "--model or --url is required"),
                (("-m", MODEL, "--no-such-option"), 2, "--no-such-option"),
                (("-m", MODEL, "--prompts", "x"), 2, "no whole number"),
                (("-m", MODEL, "--prompts", "0", "--batch", "0"), 2, "nothing to measure"),
                (("-m", MODEL), 2, "context has 32768 tokens, the longest sequence 104001"),
                (("-m", MODEL, "--prompts", "100", "-c", "99"), 2, "--ctx-size is 99"),
                (("-m", MODEL, *SMALL, "--ab", "--chunk 16", "--chunk x"), 2, "--ab '--chunk x'"),
                (("-m", MODEL, *SMALL, "--ab", "--chunk 16"), 2, "--ab"),
                (("-m", "/no/model.gguf", *SMALL), 3, "/no/model.gguf"),
                (("--url", "localhost", *SMALL), 2, "--url"),
                (("--url", "http://localhost:1", "--ab", "", "", *SMALL), 2, "--ab"),
                (("--url", f"http://127.0.0.1:{free_port()}", *SMALL), 1, "cannot connect to 127.0.0.1"),
                (("-m", MODEL, *SMALL, "--json", "/no/folder/x.json"), 1, "cannot write /no/folder/x.json")):
            code, out, err = self.bench(*arguments)
            self.assertEqual(code, status, (arguments, err))
            self.assertIn(message, err)
            self.assertEqual(out, "")

    def test_ctrl_c_ends_it(self):
        process = self.start("-m", MODEL, "-t", 2, "--prompts", 30000, "--chunk", 16, "--json", self.json)
        self.assertTrue(wait_until(lambda: "ready after" in process.stderr.readline(), 60))
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1)
        self.assertIn("interrupted", err)
        self.assertTrue(wait_until(lambda: not self.left_over(), 5))
        self.assertIn("interrupted", json.loads(self.json.read_text())["error"])

    def test_a_service_that_dies(self):
        process = self.start("-m", MODEL, "-t", 2, "--prompts", 30000, "--chunk", 16)
        self.assertTrue(wait_until(lambda: "ready after" in process.stderr.readline(), 60))
        time.sleep(0.5)
        for pid in self.left_over():
            if "warpline-worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(int(pid), signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("warpline: run 1 of 3: ", err)
        self.assertTrue(wait_until(lambda: not self.left_over(), 5))


if __name__ == "__main__":
    unittest.main()
