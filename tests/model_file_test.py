"""A model file that changes under a running service: what is served goes on, what starts anew is refused until it fits."""

import json
import os
import shutil
import signal
import tempfile
import unittest

from service import DATA, Service, wait_until

MODEL = os.path.join(DATA, "families", "llama-plain.gguf")
OTHER = os.path.join(DATA, "families", "llama-q8_0.gguf")


class ModelFileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "model.gguf")
        shutil.copy(MODEL, self.path)
        self.service = Service(self.path, "--workers", 2)
        self.addCleanup(self.service.stop)
        self.expected = self.complete()

    def complete(self):
        status, answer = self.service.post("/v1/completions", {
            "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True})
        return answer["choices"][0]["token_ids"] if status == 200 else (status, answer["error"]["message"])

    def put(self, contents: bytes):
        """In one step, as a download manager does."""
        with open(self.path + ".new", "wb") as file:
            file.write(contents)
        os.rename(self.path + ".new", self.path)

    def put_back(self):
        with open(MODEL, "rb") as file:
            self.put(file.read())

    def kill_worker(self):
        os.kill(self.service.stages()[1]["pid"], signal.SIGKILL)

    def fingerprint(self) -> str:
        return json.loads(self.service.get("/v1/status")[1])["model"]["fingerprint"]

    def wait_refused(self, text: str):
        def refused():
            status, body = self.service.get("/ready")
            return status == 503 and text in body and body
        body = wait_until(refused)
        self.assertTrue(body, f"/ready never said {text!r}: {self.service.get('/ready')}")
        return body

    def assert_back(self):
        self.assertTrue(wait_until(lambda: self.service.get("/ready")[0] == 200, 20), self.service.tail())
        self.assertEqual(self.complete(), self.expected)

    def test_another_model_is_refused_with_both_fingerprints(self):
        ours = self.fingerprint()
        with open(OTHER, "rb") as file:
            self.put(file.read())
        self.assertEqual(self.complete(), self.expected)  # The weights have been copied.
        self.kill_worker()
        reason = f"fingerprint is {ours}, this worker has "
        theirs = self.wait_refused(reason).split(reason)[1][:32]  # The other stage may have its own reason.
        self.assertRegex(theirs, "^[0-9a-f]{32}$")
        self.assertNotEqual(theirs, ours)
        self.assertEqual(self.complete()[0], 503)
        self.put_back()
        self.assert_back()

    def test_a_new_coordinator_takes_the_new_model_on(self):
        ours = self.fingerprint()
        with open(OTHER, "rb") as file:
            self.put(file.read())
        os.kill(json.loads(self.service.get("/v1/status")[1])["coordinator"]["pid"], signal.SIGKILL)
        self.assertTrue(wait_until(lambda: self.service.get("/ready")[0] == 200 and self.fingerprint() != ours), self.service.tail())

    def test_a_truncated_or_missing_file_keeps_the_stage_down_until_it_is_whole(self):
        with open(MODEL, "rb") as file:
            whole = file.read()
        for spoil, line in ((lambda: self.put(whole[:-2000]), "(truncated?)"),
                            (lambda: os.truncate(self.path, len(whole) // 2), "(truncated?)"),
                            (lambda: os.unlink(self.path), "No such file")):
            spoil()
            self.assertEqual(self.complete(), self.expected)
            self.kill_worker()
            self.wait_refused("stage 1: down")
            self.assertTrue(wait_until(lambda: line in self.service.tail()), self.service.tail())
            self.assertEqual(self.complete()[0], 503)
            self.put_back()
            self.assert_back()


if __name__ == "__main__":
    unittest.main()
