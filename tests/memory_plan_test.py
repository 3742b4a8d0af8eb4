"""The memory of the workers while they read a long prompt is what `warpline plan` said."""

import contextlib
import json
import os
import random
import re
import subprocess
import tempfile
import time
import unittest

from service import BIN, DATA

MODEL = os.path.join(DATA, "long_context", "hybrid.gguf")
TOKENS = 3 * 8192  # whole chunks, as many as there are hand-off slots, and whole cache pages
VOCABULARY = 128
# A worker's share of the code that programs of this machine have mapped, as the plan counts it. The true share depends on what
# else runs here.
CODE_BYTES = 4_000_000


def workers_of(service: int) -> list[int]:
    """The worker processes that descend from a process."""
    parents, workers = {}, []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                # "pid (name) state parent ..."
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
            parents[int(pid)] = int(rest.split()[1])
            if name == "warpline-worker":
                workers.append(int(pid))

    def descends(pid: int) -> bool:
        return pid == service or (pid in parents and descends(parents[pid]))

    return list(filter(descends, workers))


def memory_bytes(pid: int) -> int:
    """What the process has for itself, and its share of what it shares with another one; 0 when it is gone."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            shares = re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", file.read(), re.MULTILINE)
        return CODE_BYTES + 1024 * sum(map(int, shares))
    return 0


def has_huge_pages() -> bool:
    with contextlib.suppress(OSError):
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            return "[never]" not in file.read()
    return False


@unittest.skipIf("san/" in BIN, "sanitizers have memory of their own")
@unittest.skipUnless(has_huge_pages(), "the plan counts whole huge pages")
class MemoryPlanTest(unittest.TestCase):
    def check(self, *flags):
        flags = ["-m", MODEL, "--workers", 2, "-c", TOKENS, "--parallel", 1, "-t", 2, *flags]
        plan = subprocess.run([os.path.join(BIN, "warpline"), "plan", *map(str, flags)], capture_output=True, text=True, timeout=20)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        planned = int(re.search(r"^all .* (\d+)$", plan.stdout, re.MULTILINE)[1])
        measured = self.peak(flags)
        self.assertLess(abs(measured / planned - 1), 0.05, f"{flags}: {measured} bytes, planned were\n{plan.stdout}")

    def peak(self, flags) -> int:
        """The most that all workers took at one time."""
        numbers = random.Random(9)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as tokens:
            json.dump({"tokens": [numbers.randrange(VOCABULARY) for _ in range(TOKENS)]}, tokens)
            tokens.flush()
            command = ["eval", *flags, "--tokens", tokens.name, "--logits-last", 64]
            most = 0
            process = subprocess.Popen([os.path.join(BIN, "warpline"), *map(str, command)], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            while process.poll() is None:
                most = max(most, sum(map(memory_bytes, workers_of(process.pid))))
                time.sleep(0.01)
            self.assertEqual(process.returncode, 0)
            return most

    def test_short_chunks(self):
        self.check("--chunk", 512, "--kv-type", "f32")

    def test_long_chunks(self):
        self.check("--chunk", 8192)

    def test_int8_cache(self):
        self.check("--chunk", 8192, "--kv-type", "q8_0")


if __name__ == "__main__":
    unittest.main()
