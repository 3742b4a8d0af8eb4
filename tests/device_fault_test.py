"""A card that faults amid a replayed decode step, on purpose: the stage ends and says why, requests get 503, it comes back and serves.

For a build that was configured with -DWARPLINE_FAULT_INJECTION=N, whose card traps in step N of each process; TRAP_AT_STEP names N too."""

import os
import subprocess
import sys
import time
import unittest

from service import BIN, Service, default_model, wait_until

TRAP_AT_STEP = int(os.environ.get("TRAP_AT_STEP", "40"))
LIMIT_S = 10  # from the fault to the answer


def complete(service: Service, tokens: int):
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return service.post("/v1/completions", body, timeout=60)


class DeviceFaultTest(unittest.TestCase):
    def test_the_stage_ends_and_comes_back(self):
        with Service(default_model(), "--workers", 1, "--backend", "cuda", "-c", 2048, "-np", 2) as service:
            pid = service.stages()[0]["pid"]
            # The warm-up and this take a few steps; the decode step of one row is recorded by then.
            status, answer = complete(service, 8)
            self.assertEqual(status, 200, answer)
            expected = answer["choices"][0]["text"]
            begin = time.monotonic()
            status, answer = complete(service, 2 * TRAP_AT_STEP)
            self.assertEqual(status, 503, answer)
            self.assertIn("stage 0", answer["error"]["message"])
            self.assertLess(time.monotonic() - begin, LIMIT_S)
            back = wait_until(lambda: service.get("/ready")[0] == 200 and service.stages()[0]["pid"] not in (pid, None), 60)
            self.assertTrue(back, service.tail())
            self.assertIn("gives up", service.tail())
            status, answer = complete(service, 8)
            self.assertEqual((status, answer["choices"][0]["text"]), (200, expected))
            self.assertTrue(wait_until(lambda: not os.path.exists(f"/proc/{pid}")), "the faulty worker hangs")


if __name__ == "__main__":
    if subprocess.run([os.path.join(BIN, "warpline"), "doctor"], stdout=subprocess.DEVNULL).returncode == 77:
        print("skipped: no CUDA device")
        sys.exit(77)
    unittest.main()
