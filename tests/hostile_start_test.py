"""Starting under hostile circumstances: limits, options, addresses, files, surroundings. What cannot run says why and leaves nothing behind."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from service import BIN, DATA, Service, free_port, wait_until

MODEL = os.path.join(DATA, "families", "llama-plain.gguf")  # two layers
TRACES = ("terminate called", "assertion failed", "Aborted", "core dumped", "Traceback")


def serve(*flags, model: str = MODEL):
    """A start that must fail: (exit code, what it said, seconds)."""
    ports = [word for name in ("--port", "--grpc-port") if name not in flags for word in (name, str(free_port()))]
    begin = time.monotonic()
    result = subprocess.run([os.path.join(BIN, "warpline"), "serve", "-m", model, *ports, *map(str, flags)],
                            stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    return result.returncode, (result.stdout + result.stderr).decode("utf-8", "replace"), time.monotonic() - begin


def answers(service: Service) -> bool:
    status, body = service.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0.7, "ignore_eos": True})
    return status == 200 and body["usage"]["completion_tokens"] == 2


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self, name: str, contents: bytes, mode: int = 0o600) -> str:
        with open(self.path(name), "wb") as file:
            file.write(contents)
        os.chmod(self.path(name), mode)
        return self.path(name)


class ThreadLimitTest(Folder):
    """Whichever thread of a program is the first that cannot be started: one line says so and the exit code is 1."""

    def start(self, name: str, limit: int, arguments: list[str]):
        """(exit code, output), the code None when the program runs."""
        account = 300000 + os.getpid()  # One that has no other process; limits do not bind the superuser.

        def restrict():
            if os.geteuid() == 0:
                os.setgid(account)
                os.setuid(account)
            resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))

        # By descriptors, so that it does not matter whose the folders above are.
        with open(os.path.join(BIN, name), "rb") as program, open(MODEL, "rb") as model:
            arguments = [text.replace("MODEL", f"/proc/self/fd/{model.fileno()}") for text in arguments]
            process = subprocess.Popen(
                [name, *arguments], executable=f"/proc/self/fd/{program.fileno()}", pass_fds=(program.fileno(), model.fileno()),
                preexec_fn=restrict, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
        self.addCleanup(process.stdout.close)
        os.set_blocking(process.stdout.fileno(), False)
        output = bytearray()

        def ended_or_listens():
            output.extend(process.stdout.read() or b"")
            return process.poll() is not None or b"listening address=" in output

        found = wait_until(ended_or_listens, 10)
        code = process.poll()
        process.kill()
        process.wait()
        output.extend(process.stdout.read() or b"")
        self.assertTrue(found, f"{name} with {limit} threads neither runs nor ends: {output.decode()}")
        return code, output.decode()

    def check(self, name: str, *arguments: str):
        failures = 0
        for limit in range(1, 40 if os.geteuid() == 0 else 2):
            code, output = self.start(name, limit, list(arguments))
            if code is None:
                break
            self.assertEqual(code, 1, f"{name} with {limit} threads: {output}")
            self.assertRegex(output.splitlines()[-1], "cannot start .*thread.*limit on threads, processes or memory")
            for trace in TRACES:
                self.assertNotIn(trace, output)
            failures += 1
        else:
            self.assertNotEqual(os.geteuid(), 0, f"{name} does not start with 39 threads")
        self.assertGreater(failures, 2 if os.geteuid() == 0 else 0)

    def test_worker(self):
        os.chmod(self.folder, 0o777)
        self.check("warpline-worker", "-m", "MODEL", "--listen", "unix:" + self.path("w"), "-t", "4")

    def test_coordinator(self):
        os.chmod(self.folder, 0o777)
        self.check("warpline-coordinator", "-m", "MODEL", "--worker", "unix:" + self.path("w"), "--listen", "unix:" + self.path("c"))

    def test_gateway(self):
        self.check("warpline-gateway", "--coordinator", "unix:" + self.path("c"), "--port", "0")


class OptionTest(Folder):
    def test_numbers_and_splits(self):
        cases = [(["-c"], "--ctx-size"), (["-c", "1e9"], "0 to 16777216"), (["-c", "-1"], "0 to 16777216"), (["-c", "4k"], "0 to 16777216"),
                 (["--chunk", "99999999999999999999"], "0 to 1048576"), (["--frobnicate"], "--frobnicate"), (["--port", "70000"], "0 to 65535"),
                 (["--grpc-port", "-2"], "65535"), (["--workers", "2", "--layer-split", "1,1"], "1 later stage"),
                 (["--workers", "3", "--layer-split", "1,1"], "1 to"), (["--workers", "2", "--layer-split", "0"], "valid range 1 to 1"),
                 (["--workers", "2", "--layer-split", "-1"], "valid range 1 to 1"), (["--workers", "2", "--layer-split", "2"], "valid range 1 to 1"),
                 (["--workers", "3"], "1 to 2 workers")]
        for flags, says in cases:
            code, output, seconds = serve(*flags)
            self.assertEqual(code, 2, (flags, output))
            self.assertIn(says, output, flags)
            self.assertLess(seconds, 5)

    def test_config_files(self):
        cases = [(b"chunk = 8\nport\n", "line 2"), (b"\xef\xbb\xbfchunk = 8\n", "line 1"), (b"chunk = 8\nnosuch = 1\n", "nosuch"),
                 (b"chunk = 8\nchunk = 8\n", "line 2"), (b"chunk = two\n", "--chunk"), (b"chunk = [1,2]\n", "--chunk"),
                 (b"chunk = 8\0\n", "--chunk"), (bytes(range(256)), "line 1"), (b"#" * (2 << 20), "2097152 bytes")]
        for text, says in cases:
            code, output, _ = serve("--config", self.write("bad.conf", text))
            self.assertEqual(code, 2, (text[:40], output))
            self.assertIn(says, output, text[:40])
        os.mkfifo(self.path("fifo"))
        os.symlink("loop", self.path("loop"))
        for path in (self.folder, self.path("fifo"), self.path("loop"), self.path("absent")):
            code, output, seconds = serve("--config", path)
            self.assertEqual((code, len(output.splitlines())), (2, 2), output)  # The reason, and where help is.
            self.assertIn(path, output)
            self.assertLess(seconds, 5)

    def test_odd_but_sound_config_files_are_read_and_open_doors_are_warned_of(self):
        text = b"\tchunk\t=\t32\t\r\n# a comment\r\n\r\nparallel = 3\r\n"
        self.write("good.conf", text, 0o666)
        os.symlink("good.conf", self.path("link.conf"))
        with Service(MODEL, "--workers", 1, "--config", self.path("link.conf")) as service:
            self.assertEqual(json.loads(service.get("/v1/status")[1])["slots"], 3)
            self.assertIn("may be written by everybody", service.tail())

    def test_secrets_that_everybody_can_read_are_warned_of(self):
        config = self.write("key.conf", b"api-key = \"hunter2\"\n", 0o644)
        keys = self.write("keys", b"hunter2\n", 0o644)
        gateway = [os.path.join(BIN, "warpline-gateway"), "--coordinator", "unix:/nowhere", "--print-config"]
        result = subprocess.run([*gateway, "--config", config], capture_output=True, timeout=10)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"holds api-key and can be read by everybody", result.stderr)
        process = subprocess.Popen([*gateway[:-1], "--port", "0", "--api-key-file", keys], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertIn(b"can be read by everybody", process.stderr.readline())

    def test_precedence_and_masked_secrets(self):
        path = self.write("one.conf", b"chunk = 11\nparallel = 5\nqueue = 70\napi-key = \"hunter2\"\n".replace(b"queue = 70\n", b""))
        environment = {**os.environ, "WARPLINE_CHUNK": "12", "WARPLINE_PARALLEL": "6"}
        result = subprocess.run([os.path.join(BIN, "warpline"), "serve", "-m", MODEL, "--config", path, "--parallel", "7", "--print-config"],
                                capture_output=True, env=environment, timeout=10)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.decode().splitlines()
        self.assertIn('chunk="12"', lines)  # The environment beats the file,
        self.assertIn('parallel="7"', lines)  # a flag both.
        self.assertIn('api-key="***"', lines)
        self.assertNotIn(b"hunter2", result.stdout + result.stderr)


class FileTest(Folder):
    def test_model_files_that_are_none(self):
        os.mkfifo(self.path("fifo"))
        os.symlink("loop", self.path("loop"))
        page = self.write("page.gguf", b"<!DOCTYPE html><html>not found</html>")
        pointer = self.write("pointer.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
        cases = [(self.path("fifo"), "FIFO"), ("/dev/zero", "a device"), (self.folder, "a directory"), (self.path("absent"), "No such file"),
                 (self.path("loop"), "loop"), (self.write("empty.gguf", b""), "empty"), (page, "HTML"), (pointer, "Git LFS")]
        for model, says in cases:
            code, output, seconds = serve(model=model)
            self.assertEqual(code, 3, (model, output))
            self.assertIn(says, output)
            self.assertLess(seconds, 5)

    def test_a_truncated_file_is_refused_with_both_sizes(self):
        with open(MODEL, "rb") as file:
            whole = file.read()
        for size in (len(whole) - 1, len(whole) // 2):
            code, output, _ = serve(model=self.write("cut.gguf", whole[:size]))
            self.assertEqual(code, 3, output)
            self.assertIn(f"the file has {size} bytes", output)

    def test_a_path_with_spaces_line_ends_and_no_utf8(self):
        path = self.path(os.fsdecode(b"a b\nforged line \xff.gguf"))
        shutil.copy(MODEL, path)
        with Service(path, "--workers", 2) as service:
            self.assertTrue(answers(service))
            self.assertIn(r"a b\x0Aforged line \xFF.gguf", service.tail())
            self.assertNotRegex(service.tail(), "(?m)^forged")

    def test_files_of_another_owner(self):
        if os.geteuid() == 0:
            self.skipTest("the superuser may read everything")
        self.write("closed.gguf", b"GGUF", 0)
        self.assertEqual(serve(model=self.path("closed.gguf"))[0], 3)
        self.assertEqual(serve("--config", self.write("closed.conf", b"", 0))[0], 2)


class AddressTest(Folder):
    def test_names_and_ports(self):
        for host in ("localhost", "::1", "[::1]"):
            with contextlib.suppress(OSError):  # A machine without IPv6.
                if ":" in host:
                    with socket.socket(socket.AF_INET6) as probe:
                        probe.bind(("::1", 0))
                service = Service(MODEL, "--workers", 1, "--host", host, wait=False)
                self.addCleanup(service.stop)
                self.assertTrue(wait_until(lambda: "warpline ready" in service.tail()), service.tail())
                with socket.create_connection((host.strip("[]"), service.port), timeout=5) as client:
                    client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                    self.assertIn(b"200 OK", client.recv(4096))
                self.assertEqual(service.stop(), 0)
        for host in ("no-such-host.invalid", "256.1.1.1"):
            code, output, _ = serve("--host", host)
            self.assertEqual(code, 1, output)
            self.assertIn(host, output)

    def test_port_zero_prints_the_real_one(self):
        service = Service(MODEL, "--workers", 1, wait=False, ports=(0, 0))
        self.addCleanup(service.stop)
        self.assertTrue(wait_until(lambda: "warpline ready" in service.tail()), service.tail())
        service.port = int(re.search(r"gateway listening address=\S+ port=(\d+)", service.tail()).group(1))
        self.assertTrue(answers(service))  # What is ready answers.
        grpc_port = int(re.search(r"coordinator listening address=127\S+ port=(\d+)", service.tail()).group(1))
        socket.create_connection(("127.0.0.1", grpc_port)).close()

    def test_a_socket_path_that_is_too_long(self):
        # Too long for every socket, for all but the shortest name, and for the longest name only.
        for length in (108, 107 - len("/notify.sock"), 107 - len("/coordinator.sock") + 1):
            folder = self.path("").ljust(length, "x")
            code, output, _ = serve("--socket-dir", folder)
            self.assertEqual(code, 2, output)
            self.assertIn(f"--socket-dir: socket path {folder}/coordinator.sock is longer than 107 bytes", output)
            self.assertNotIn("started process", output)
            self.assertFalse(os.path.exists(folder))
        # The longest one that fits works.
        service = Service(MODEL, "--socket-dir", self.path("").ljust(107 - len("/coordinator.sock"), "x"))
        self.addCleanup(service.stop)
        self.assertTrue(answers(service))

    def test_a_temporary_folder_whose_path_is_too_long(self):
        os.mkdir(folder := self.path("x" * 100))
        result = subprocess.run([os.path.join(BIN, "warpline"), "serve", "-m", MODEL], stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, timeout=30, env={**os.environ, "TMPDIR": folder})
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("coordinator.sock is longer than 107 bytes", result.stderr)
        self.assertEqual(os.listdir(folder), [])

    def test_a_port_in_use_ends_everything_at_once(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            code, output, seconds = serve("--grpc-port", port)
            self.assertEqual(code, 1)
            self.assertIn(f"127.0.0.1:{port}: port {port} is in use", output)
            self.assertLess(seconds, 5)
            started = {int(pid) for pid in re.findall(r"started process=.* pid=(\d+)", output)}
            self.assertTrue(started)
            self.assertFalse([pid for pid in started if os.path.exists(f"/proc/{pid}")])

    def test_restarts_at_once_on_the_port_of_a_killed_service_with_live_connections(self):
        service = Service(MODEL, "--workers", 1)
        self.addCleanup(service.stop)
        client = socket.create_connection(("127.0.0.1", service.port))
        self.addCleanup(client.close)
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertIn(b"200 OK", client.recv(4096))
        service.process.kill()
        service.process.wait()
        self.assertTrue(wait_until(lambda: not service.processes(), 5))
        again = Service(MODEL, "--workers", 1, wait=False, ports=(service.port, service.grpc_port))
        self.addCleanup(again.stop)
        self.assertTrue(wait_until(lambda: again.get("/ready")[0] == 200, 10), again.tail())


class SurroundingsTest(Folder):
    """The service runs, answers and stops with 0 whatever it finds around it."""

    def check(self, before=None, environment=None, wrapper=()):
        port = free_port()
        log = self.path("log")
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [*wrapper, os.path.join(BIN, "warpline"), "serve", "-m", MODEL, "--workers", "2", "--port", str(port), "--grpc-port", "0"],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, preexec_fn=before, env=environment)
        self.addCleanup(process.kill)
        service = Service.__new__(Service)
        service.port, service.process = port, process
        ready = wait_until(lambda: process.poll() is not None or service.get("/ready")[0] == 200)
        with open(log, "rb") as file:
            said = file.read().decode("utf-8", "replace")
        self.assertTrue(ready and process.poll() is None, said)
        self.assertTrue(answers(service))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), 0, said)

    def test_umask_that_forbids_everything(self):
        self.check(lambda: os.umask(0o777))

    def test_without_environment(self):
        self.check(environment={key: os.environ[key] for key in os.environ if key.startswith(("ASAN_", "UBSAN_", "TSAN_"))})

    def test_locales_with_other_numbers_and_letters(self):
        for locale in ("C", "tr_TR.UTF-8", "de_DE.UTF-8"):
            self.check(environment={**os.environ, "LC_ALL": locale, "LANG": locale})

    def test_closed_standard_streams(self):
        for closed in ((0,), (1,), (0, 1, 2)):
            self.check(lambda: [os.close(number) for number in closed])  # pylint: disable=cell-var-from-loop

    def test_read_only_file_system(self):
        script = 'mount --bind / / && mount -o remount,ro,bind / && cd / && exec "$@"'
        wrapper = ("unshare", "-m", "sh", "-c", script, "sh")
        probe = subprocess.run([*wrapper, "sh", "-c", "! touch /warpline-test 2>/dev/null"], capture_output=True)
        if probe.returncode != 0:
            self.skipTest("no right to mount a read-only root")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as sockets:
            self.check(environment={**os.environ, "TMPDIR": sockets}, wrapper=wrapper)

    def test_few_descriptors_and_a_small_stack(self):
        self.check(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        if "asan" not in BIN:
            self.check(lambda: resource.setrlimit(resource.RLIMIT_STACK, (256 << 10, 256 << 10)))


if __name__ == "__main__":
    unittest.main()
