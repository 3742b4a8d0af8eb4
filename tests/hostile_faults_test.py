"""Faults of a running service: processes that die in every combination, full logs, bursts and storms of requests, stops in a hurry."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import time
import unittest

from service import BIN, DATA, Service, free_port, wait_until

MODEL = os.path.join(DATA, "text_models", "qwen35.gguf")  # four layers
GREEDY = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
ENDLESS = {**GREEDY, "max_tokens": 30000, "stream": True}


class Stream:
    """An answer that is read by hand."""

    def __init__(self, service: Service, body: dict):
        self.connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        self.connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()
        self.first = self.response.readline() if self.response.status == 200 else b""

    def rest(self) -> bytes:
        try:
            return self.response.read()
        except http.client.IncompleteRead as error:
            return error.partial
        except OSError:
            return b""

    def close(self):
        self.response.close()
        self.connection.close()


def text_of(service: Service) -> str:
    status, answer = service.post("/v1/completions", GREEDY)
    return answer["choices"][0]["text"] if status == 200 else f"{status}: {answer}"


class DeathTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(MODEL, "--workers", 3, "-t", 3, "-c", 32000)
        cls.expected = text_of(cls.service)

    @classmethod
    def tearDownClass(cls):
        code = cls.service.stop()
        assert code == 0, f"serve ended with {code}: {cls.service.tail()}"
        assert not cls.service.processes(), "processes left behind"

    def assert_ready_again(self, limit_s: float = 10):
        self.assertTrue(wait_until(lambda: self.service.get("/ready")[0] == 200, limit_s), self.service.tail())
        self.assertEqual(text_of(self.service), self.expected)
        self.assertTrue(wait_until(lambda: self.service.metric("warpline_slots_used") == 0))

    def test_each_worker_while_prompts_are_read_and_while_tokens_are_made(self):
        prompt = {"prompt": [7] * 20000, "max_tokens": 4, "temperature": 0}
        for body in (prompt, {**ENDLESS, "stream": False}):
            for victim in range(3):
                with concurrent.futures.ThreadPoolExecutor(8) as pool:
                    waiting = [pool.submit(self.service.post, "/v1/completions", body) for _ in range(8)]
                    self.assertTrue(wait_until(lambda: self.service.metric("warpline_slots_used") > 0))
                    os.kill(self.service.stages()[victim]["pid"], signal.SIGKILL)
                    killed = time.monotonic()
                    answers = [future.result() for future in waiting]
                self.assertLess(time.monotonic() - killed, 2.5)
                for status, answer in answers:
                    self.assertEqual(status, 503, answer)
                    self.assertRegex(answer["error"]["message"], f"stage {victim}|not ready")
                self.assert_ready_again()

    def test_two_workers_at_once(self):
        before = [stage["pid"] for stage in self.service.stages()]
        for victim in (0, 2):
            os.kill(before[victim], signal.SIGKILL)
        replaced = wait_until(lambda: {0, 2} == {stage for stage, now in enumerate(self.service.stages())
                                                 if now["pid"] not in (None, before[stage])})
        self.assertTrue(replaced, self.service.tail())
        self.assert_ready_again()

    def test_the_same_worker_again_and_again_while_it_loads(self):
        for _ in range(8):
            pid = wait_until(lambda: self.service.stages()[1]["pid"])
            os.kill(pid, signal.SIGKILL)
            self.assertTrue(wait_until(lambda: self.service.stages()[1]["pid"] != pid))
        self.assert_ready_again()

    def test_the_gateway_in_the_middle_of_a_stream(self):
        stream = Stream(self.service, ENDLESS)
        self.addCleanup(stream.close)
        self.assertIn(b"data: ", stream.first)
        os.kill(self.service.pid_of("warpline-gateway"), signal.SIGKILL)
        self.assertNotIn(b"[DONE]", stream.rest())
        self.assert_ready_again()  # On the same port, and the coordinator has cancelled the request.

    def test_the_coordinator_in_the_middle_of_a_stream(self):
        stream = Stream(self.service, ENDLESS)
        self.addCleanup(stream.close)
        workers = [stage["pid"] for stage in self.service.stages()]
        os.kill(json.loads(self.service.get("/v1/status")[1])["coordinator"]["pid"], signal.SIGKILL)
        rest = stream.rest()
        self.assertNotIn(b"[DONE]", rest)
        self.assertIn(b'data: {"error"', rest)
        self.assertTrue(wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers), 5), "workers outlive it")
        self.assert_ready_again()


class StopTest(unittest.TestCase):
    def start(self, *flags):
        service = Service(MODEL, "--workers", 2, "-c", 32000, *flags)
        self.addCleanup(service.stop)
        stream = Stream(service, ENDLESS)
        self.addCleanup(stream.close)
        self.assertIn(b"data: ", stream.first)
        return service, stream

    def test_what_outlives_the_drain_ends_with_an_error_event(self):
        service, stream = self.start("--drain-seconds", 1)
        service.process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_until(lambda: service.get("/ready")[0] == 503))
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps(GREEDY), {"Content-Type": "application/json"})
        refusal = connection.getresponse()
        self.assertEqual((refusal.status, refusal.headers["Connection"]), (503, "close"))
        self.assertGreater(int(refusal.headers["Retry-After"]), 0)
        rest = stream.rest()
        self.assertIn(b'data: {"error"', rest.split(b"\n\n")[-2])
        self.assertNotIn(b"[DONE]", rest)
        self.assertEqual(service.process.wait(10), 0)
        self.assertEqual(service.processes(), [])

    def test_a_second_signal_ends_all_at_once(self):
        service, stream = self.start("--drain-seconds", 600)
        service.process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_until(lambda: service.get("/ready")[0] == 503))
        service.process.send_signal(signal.SIGTERM)
        self.assertIsNotNone(service.process.wait(10))
        self.assertEqual(service.processes(), [])
        self.assertNotIn(b"[DONE]", stream.rest())


class LoadTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(MODEL, "--workers", 2, "-c", 4096, "--parallel", 4)

    @classmethod
    def tearDownClass(cls):
        cls.service.stop()

    def resources(self) -> list[tuple[int, int]]:
        """(descriptors, threads) of each process."""
        return [(len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))) for pid in sorted(self.service.processes())]

    def assert_nothing_in_use(self):
        for name in ("warpline_slots_used", "warpline_pages_used", "warpline_queue_length", "warpline_stage_open_sequences"):
            self.assertTrue(wait_until(lambda: self.service.metric(name) == 0), f"{name} stays at {self.service.metric(name)}")

    def test_a_burst_is_queued_and_what_is_beyond_the_queue_is_told_to_come_back(self):
        def ask(_):
            connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=60)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/completions", json.dumps({**GREEDY, "max_tokens": 40}), {"Content-Type": "application/json"})
                response = connection.getresponse()
                return response.status, response.headers["Retry-After"], json.loads(response.read())

        with concurrent.futures.ThreadPoolExecutor(160) as pool:
            answers = list(pool.map(ask, range(160)))
        self.assertEqual(len({answer["choices"][0]["text"] for status, _, answer in answers if status == 200}), 1)
        self.assertGreaterEqual(sum(status == 200 for status, *_ in answers), 68)  # Those that run, and a queue of 64.
        for status, retry_after, answer in answers:
            self.assertIn(status, (200, 429), answer)
            if status == 429:
                self.assertGreater(int(retry_after), 0)
        self.assert_nothing_in_use()

    def test_a_storm_of_cancelled_requests_leaves_nothing(self):
        expected = text_of(self.service)

        def start_and_leave(_):
            Stream(self.service, {**ENDLESS, "max_tokens": 3000}).close()

        def storm(count: int):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(start_and_leave, range(count)))
            self.assert_nothing_in_use()

        storm(50)
        warm = self.resources()
        storm(400)
        # gRPC keeps a thread or two more at times.
        self.assertTrue(wait_until(lambda: all(now[0] <= then[0] + 2 and now[1] <= then[1] + 4
                                               for now, then in zip(self.resources(), warm))), (warm, self.resources()))
        self.assertEqual(text_of(self.service), expected)


class DescriptorTest(unittest.TestCase):
    def test_connections_that_take_every_descriptor_of_the_coordinator(self):
        with Service(MODEL, "--workers", 1, "-c", 4096) as service:
            expected = text_of(service)
            coordinator = json.loads(service.get("/v1/status")[1])["coordinator"]["pid"]
            hard = resource.prlimit(coordinator, resource.RLIMIT_NOFILE)[1]
            stream = Stream(service, {**ENDLESS, "max_tokens": 1000})
            self.addCleanup(stream.close)
            resource.prlimit(coordinator, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{coordinator}/fd")) + 8, hard))
            flood = [socket.create_connection(("127.0.0.1", service.grpc_port), timeout=5) for _ in range(40)]
            self.assertTrue(wait_until(lambda: "cannot accept connections" in service.tail()), service.tail())
            self.assertEqual(text_of(service), expected)  # Over the connection that the gateway has.
            self.assertIn(b"[DONE]", stream.rest())
            for client in flood:
                client.close()
            with socket.create_connection(("127.0.0.1", service.grpc_port), timeout=10) as client:
                self.assertTrue(client.recv(9))  # The settings that an HTTP/2 server sends first.


class BlockedLogTest(unittest.TestCase):
    def test_a_log_that_nobody_reads_stops_nothing(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        service = Service.__new__(Service)
        service.port = free_port()
        service.process = subprocess.Popen(
            [os.path.join(BIN, "warpline"), "serve", "-m", MODEL, "--workers", "1", "--port", str(service.port), "--grpc-port", "0",
             "--log-level", "debug"], stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
        self.addCleanup(service.process.kill)
        self.assertTrue(wait_until(lambda: service.get("/ready")[0] == 200))
        os.set_blocking(writer, False)
        for size in (4096, 1):
            with contextlib.suppress(BlockingIOError):
                while os.write(writer, b"x" * size):
                    pass
        os.set_blocking(writer, True)  # For all who write to the same pipe.
        os.close(writer)
        lost = service.metric("warpline_dropped_log_lines_total")
        for _ in range(30):
            self.assertEqual(service.post("/v1/completions", GREEDY)[0], 200)
        self.assertGreater(service.metric("warpline_dropped_log_lines_total"), lost)
        worker = service.stages()[0]["pid"]
        os.kill(worker, signal.SIGKILL)
        self.assertTrue(wait_until(lambda: service.stages()[0]["pid"] not in (None, worker) and service.get("/ready")[0] == 200))
        service.process.send_signal(signal.SIGTERM)
        self.assertEqual(service.process.wait(20), 0)


if __name__ == "__main__":
    unittest.main()
