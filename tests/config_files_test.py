"""The programs started one by one, as systemd does, find one another by the example config files."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import unittest

from service import BIN, default_model, free_port, wait_until

CONFIGS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "deploy", "systemd")


class ConfigFilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.port, grpc_port = free_port(), free_port()
        for name in ("worker", "coordinator", "gateway"):
            with open(os.path.join(CONFIGS, name + ".conf"), encoding="utf-8") as file:
                text = file.read()
            text = text.replace("/run/warpline", self.folder.name).replace("/var/lib/warpline/model.gguf", default_model())
            text = text.replace("127.0.0.1:50051", f"127.0.0.1:{grpc_port}")
            text = re.sub(r"(?m)^port = 8080$", f"port = {self.port}", text)
            with open(self.path(name + ".conf"), "w", encoding="utf-8") as file:
                file.write(text)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(self.path("notify"))
        self.notify.settimeout(30)
        self.processes = {}

    def tearDown(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.notify.close()
        self.folder.cleanup()

    def path(self, name: str) -> str:
        return os.path.join(self.folder.name, name)

    def start(self, name: str, *flags):
        """Starts a program that notifies READY=1, as Type=notify wants."""
        kind = name.split("-")[0]
        self.processes[name] = subprocess.Popen(
            [os.path.join(BIN, "warpline-" + kind), "--config", self.path(kind + ".conf"), *flags],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "NOTIFY_SOCKET": self.path("notify")})

    def await_ready(self, count: int):
        ready = 0
        while ready < count:
            ready += self.notify.recv(4096).decode().split("\n").count("READY=1")

    def get(self, path: str):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def test_they_find_one_another_in_any_order(self):
        self.start("gateway")
        self.assertTrue(wait_until(lambda: self.get("/ready")[0] == 503))
        self.start("coordinator")
        for number in (0, 1):
            self.start(f"worker-{number}", "--listen", f"unix:{self.path(f'worker-{number}.sock')}")
        # Coordinator and gateway say so after the warm-up token, the gateway once it has heard of it.
        self.await_ready(4)
        status, body = self.get("/ready")
        self.assertEqual(status, 200, body)
        stages = json.loads(self.get("/v1/status")[1])["stages"]
        self.assertEqual([stage["pid"] for stage in stages], [self.processes[f"worker-{n}"].pid for n in (0, 1)])
        for name in ("gateway", "coordinator"):
            self.processes[name].send_signal(signal.SIGTERM)
            self.assertEqual(self.processes[name].wait(40), 0, name)
        for number in (0, 1):  # Told to by the coordinator.
            self.assertEqual(self.processes[f"worker-{number}"].wait(10), 0)


if __name__ == "__main__":
    unittest.main()
