"""A real service for tests: `warpline serve` on free ports, its processes, and small HTTP calls."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid

BIN = os.environ["WARPLINE_BIN"]
DATA = os.environ["WARPLINE_DATA"]  # tests/data


def default_model() -> str:
    """The default model, which ./test fetches and names."""
    path = os.environ.get("WARPLINE_TEST_MODEL", "")
    if not os.path.isfile(path):
        raise RuntimeError("WARPLINE_TEST_MODEL names no file; ./test sets it")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, limit_s: float = 20.0):
    """The first true value of condition(), or None after the limit."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException):
            if value := condition():
                return value
        time.sleep(0.01)
    return None


class Service:
    def __init__(self, model: str, *flags, wait: bool = True, ports: tuple[int, int] | None = None):
        self.port, self.grpc_port = ports or (free_port(), free_port())
        self.log = tempfile.TemporaryFile("w+b")
        self.mark = f"TEST_MARK_{uuid.uuid4().hex}"  # Children inherit no WARPLINE_ variable.
        self.process = subprocess.Popen(
            [os.path.join(BIN, "warpline"), "serve", "-m", model, "--port", str(self.port),
             "--grpc-port", str(self.grpc_port), *map(str, flags)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env={**os.environ, self.mark: "1"})
        if wait and not wait_until(lambda: self.process.poll() is not None or self.get("/ready")[0] == 200, 60):
            self.stop()
            raise RuntimeError(f"not ready: {self.tail()}")
        if wait and self.process.poll() is not None:
            raise RuntimeError(f"serve ended with {self.process.returncode}: {self.tail()}")

    def tail(self) -> str:
        """The end of what the service's processes wrote to their log."""
        if self.log.closed:
            return self.said
        self.log.seek(0)
        return self.log.read()[-3000:].decode("utf-8", "replace")

    def request(self, method: str, path: str, body=None, headers=None, timeout: float = 60):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            payload = None if body is None else body if isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def get(self, path: str):
        return self.request("GET", path, timeout=5)

    def post(self, path: str, body, timeout: float = 60):
        status, text = self.request("POST", path, body, timeout=timeout)
        return status, json.loads(text)

    def stages(self) -> list[dict]:
        return json.loads(self.get("/v1/status")[1])["stages"]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.split("{")[0].split(" ")[0] == name]
        if not lines:
            raise KeyError(name)
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def processes(self) -> list[int]:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if self.mark.encode() not in file.read():
                        continue
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] != "Z":
                        found.append(int(pid))
        return found

    def pid_of(self, name: str) -> int:
        """The first process of a program (the kernel keeps fifteen bytes of its name)."""
        for pid in self.processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                if file.read().strip() == name[:15]:
                    return pid
        raise KeyError(name)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        if not self.log.closed:
            self.said = self.tail()
            self.log.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
