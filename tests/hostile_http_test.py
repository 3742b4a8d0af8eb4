"""Hostile clients of the whole product: keys, bytes of other protocols, large bodies, thousands of connections."""

import json
import os
import resource
import socket
import time
import unittest

from service import DATA, Service, wait_until

MODEL = os.path.join(DATA, "text_models", "qwen35.gguf")
BODY = b'{"prompt":"hi","max_tokens":2}'
KEY = b"Authorization: Bearer sesame\r\n"


def exchange(port: int, request: bytes) -> bytes:
    """All that comes back until the other side closes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        try:
            client.sendall(request)
            while piece := client.recv(1 << 16):
                answer += piece
        except ConnectionError:
            pass  # It closed before it had read everything.
    return answer


def post(fields: bytes, body: bytes = BODY, path: bytes = b"/v1/completions") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s" % (path, len(body), fields, body)


class HostileClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["WARPLINE_API_KEY"] = "sesame"
        try:
            cls.service = Service(MODEL, "--workers", 2)
        finally:
            del os.environ["WARPLINE_API_KEY"]

    @classmethod
    def tearDownClass(cls):
        assert cls.service.stop() == 0, cls.service.tail()

    def tearDown(self):
        self.assert_status(200, KEY)

    def assert_status(self, status: int, fields: bytes, body: bytes = BODY, code: str = "") -> dict:
        answer = exchange(self.service.port, post(fields, body))
        self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % status), (fields[:60], answer[:400]))
        content = json.loads(answer.split(b"\r\n\r\n", 1)[1])
        if code:
            self.assertEqual(content["error"]["code"], code)
        return content

    def test_keys(self):
        for fields in (b"", b"Authorization: Bearer sesam\r\n", b"Authorization: Bearer sesamee\r\n", b"Authorization: Bearer \r\n",
                       b"Authorization: Basic sesame\r\n", b"Authorization: Bearer s\xc3\xa9same\r\n", b"Authorization: Bearer \xff\xfe\r\n",
                       b"X-Api-Key: wrong\r\n", b"Authorization: Bearer wrong\r\nX-Api-Key: sesame\r\n"):
            self.assert_status(401, fields, code="invalid_api_key")
        self.assert_status(431, b"Authorization: Bearer " + b"x" * (1 << 20) + b"\r\n")
        self.assert_status(400, KEY * 2)
        self.assert_status(400, b"X-Api-Key: sesame\r\n" * 2)
        self.assert_status(200, b"X-Api-Key: sesame\r\n")
        self.assertNotIn("sesame", self.service.tail())

    def test_other_protocols(self):
        for port in (self.service.port, self.service.grpc_port):
            for request in (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50,
                            b"\0" * 4096, b"SSH-2.0-OpenSSH_9.2\r\n"):
                begin = time.monotonic()
                exchange(port, request)
                self.assertLess(time.monotonic() - begin, 10, request[:20])
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
        self.assertTrue(exchange(self.service.port, preface).startswith(b"HTTP/1.1 400 "))
        for trace in ("Assertion", "terminate", "stack"):
            self.assertNotIn(trace, self.service.tail())

    def test_large_bodies_cost_little_memory(self):
        def peak_kib():
            with open(f"/proc/{self.service.pid_of('warpline-gateway')}/status", encoding="utf-8") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))

        before = peak_kib()
        self.assert_status(413, KEY, b'{"prompt":"' + b"x" * (50 << 20) + b'"}')
        self.assert_status(413, KEY, b'{"prompt":[' + b"1," * 1000000 + b"1]}", code="request_too_large")
        text = b'{"prompt":"' + b"x" * (7 << 20) + b'"}'
        self.assert_status(400, KEY, text, code="context_length_exceeded")
        if "asan" not in os.environ["WARPLINE_BIN"]:
            self.assertLess((peak_kib() - before) << 10, 4 * (8 << 20) + (16 << 20))  # Of the longest body that is taken.

    def test_thousands_of_idle_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        idle = []
        try:
            for _ in range(min(10000, hard - 100)):
                idle.append(socket.create_connection(("127.0.0.1", self.service.port), timeout=20))
            begin = time.monotonic()
            self.assert_status(200, KEY)
            self.assertLess(time.monotonic() - begin, 5)
            status, metrics = self.service.request("GET", "/metrics", headers={"Authorization": "Bearer sesame"})
            self.assertEqual(status, 200)
            open_now = next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("warpline_gateway_connections "))
            self.assertLessEqual(open_now, 1024)
            self.assertEqual(idle[0].recv(1), b"")  # The oldest had to go,
            idle[-1].sendall(b"GET /health HTTP/1.0\r\n\r\n")  # the youngest not.
            self.assertIn(b"200 OK", idle[-1].recv(4096))
        finally:
            for client in idle:
                client.close()
        self.assertTrue(wait_until(lambda: self.service.get("/ready")[0] == 200))


if __name__ == "__main__":
    unittest.main()
