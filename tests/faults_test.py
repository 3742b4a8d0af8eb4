"""Processes that die: clear errors at once, restarts, no orphans, a clean stop; and what a command says when it cannot start."""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import time
import unittest

from service import BIN, DATA, Service, default_model, free_port, wait_until


def complete(service: Service, tokens: int = 400):
    """(status, error message or text, when the answer came)."""
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    status, answer = service.post("/v1/completions", body, timeout=60)
    text = answer["choices"][0]["text"] if status == 200 else answer["error"]["message"]
    return status, text, time.monotonic()


def run(*arguments, timeout: float = 30):
    return subprocess.run([os.path.join(BIN, arguments[0]), *map(str, arguments[1:])], capture_output=True, timeout=timeout)


class DeadWorkerTest(unittest.TestCase):
    def test_requests_fail_clearly_and_the_stage_comes_back(self):
        with Service(default_model(), "--workers", 2) as service:
            expected = complete(service, 16)[1]
            for victim in (0, 1, 1):
                pid = service.stages()[victim]["pid"]
                with concurrent.futures.ThreadPoolExecutor(3) as pool:
                    waiting = [pool.submit(complete, service) for _ in range(3)]
                    self.assertTrue(wait_until(lambda: service.metric("warpline_slots_used") == 3))
                    os.kill(pid, signal.SIGKILL)
                    killed = time.monotonic()
                    answers = [future.result() for future in waiting]
                for status, message, at in answers:
                    self.assertEqual(status, 503, message)
                    self.assertIn(f"stage {victim}", message)
                    self.assertLess(at - killed, 2.5)
                back = wait_until(lambda: service.get("/ready")[0] == 200 and service.stages()[victim]["pid"] not in (pid, None))
                self.assertTrue(back, service.tail())
                self.assertEqual(complete(service, 16)[1], expected)
            # The last stage confirms the end a moment after the answer.
            self.assertTrue(wait_until(lambda: service.metric("warpline_slots_used") == 0), service.tail())
            service.process.send_signal(signal.SIGTERM)
            self.assertEqual(service.process.wait(40), 0)
            self.assertEqual(service.processes(), [])

    def test_nothing_survives_its_parents(self):
        service = Service(default_model(), "--workers", 2)
        self.addCleanup(service.stop)
        status = json.loads(service.get("/v1/status")[1])
        workers = [stage["pid"] for stage in status["stages"]]
        os.kill(status["coordinator"]["pid"], signal.SIGKILL)
        replaced = wait_until(lambda: service.get("/ready")[0] == 200 and
                              not {stage["pid"] for stage in service.stages()} & set(workers))
        self.assertTrue(replaced, "workers outlive their coordinator, or the service does not come back: " + service.tail())
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
        self.assertTrue(wait_until(lambda: not service.processes(), 5), "children outlive the supervisor")


class DrainTest(unittest.TestCase):
    def test_running_requests_finish_and_new_ones_are_refused(self):
        service = Service(default_model(), "--workers", 1)
        self.addCleanup(service.stop)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(complete, service, 150)
            self.assertTrue(wait_until(lambda: service.metric("warpline_slots_used") == 1))
            service.process.send_signal(signal.SIGTERM)
            self.assertEqual(running.result()[0], 200)
        self.assertEqual(service.process.wait(40), 0)
        self.assertEqual(service.processes(), [])


class FullOutputTest(unittest.TestCase):
    def test_an_answer_that_nobody_can_read_ends(self):
        with open("/dev/full", "wb") as full:
            complete = subprocess.run([os.path.join(BIN, "warpline"), "complete", "-m", default_model(), "Once"],
                                      stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(complete.returncode, 1)
        self.assertIn(b"standard output cannot be written", complete.stderr)


class RefusalTest(unittest.TestCase):
    def test_options(self):
        model = os.path.join(DATA, "families", "llama-plain.gguf")
        for flags in (["--no-such"], ["-c", "-1"], ["-c", "4k"], ["--workers", "0"], ["--layer-split", "1,2", "--workers", "2"],
                      ["--layer-split", "0", "--workers", "2"], ["--layer-split", "99", "--workers", "2"], ["--workers", "99"], ["--host", ""]):
            result = run("warpline", "serve", "-m", model, "--port", free_port(), "--grpc-port", free_port(), *flags)
            self.assertEqual(result.returncode, 2, (flags, result.stderr))
            self.assertTrue(result.stderr.strip(), flags)

    def test_model_files(self):
        for model in ("/no/such/file.gguf", DATA, os.path.join(DATA, "families", "llama-plain.json")):
            result = run("warpline", "serve", "-m", model, "--port", free_port(), "--grpc-port", free_port())
            self.assertEqual(result.returncode, 3, (model, result.stderr))

    def test_port_in_use(self):
        model = os.path.join(DATA, "families", "llama-plain.gguf")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for flags in (["--port", port, "--grpc-port", free_port()], ["--port", free_port(), "--grpc-port", port]):
                result = run("warpline", "serve", "-m", model, *flags)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(str(port).encode(), result.stderr)


if __name__ == "__main__":
    unittest.main()
