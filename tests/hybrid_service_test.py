"""Chats with a small model of each architecture that keeps more than keys and values: usage, streams, cancelling, slots used again."""

import base64
import concurrent.futures
import http.client
import json
import os
import subprocess
import unittest

from service import BIN, DATA, Service, wait_until

WORDS = "A pipeline moves work from one stage to the next."


def body(text: str, tokens: int, **fields) -> dict:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": tokens, "ignore_eos": True, **fields}


class Chats:
    """The tests of one model; a class below names it."""

    arch = ""

    @classmethod
    def setUpClass(cls):
        cls.model = os.path.join(DATA, "text_models", cls.arch + ".gguf")
        cls.service = Service(cls.model, "--workers", 2, "-t", 2, "--parallel", 4, "--chunk", 16)

    @classmethod
    def tearDownClass(cls):
        code = cls.service.stop()
        assert code == 0, f"serve ended with {code}: {cls.service.tail()}"
        assert not cls.service.processes(), "processes left behind"

    def chat(self, text: str = WORDS, tokens: int = 12, **fields) -> dict:
        status, answer = self.service.post("/v1/chat/completions", body(text, tokens, **fields))
        self.assertEqual(status, 200, answer)
        return answer

    def text(self, *arguments) -> str:
        return self.chat(*arguments)["choices"][0]["message"]["content"]

    def open_stream(self, text: str, tokens: int, **fields):
        """(connection, response whose body has not been read)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=60)
        self.addCleanup(connection.close)
        payload = json.dumps(body(text, tokens, stream=True, **fields))
        connection.request("POST", "/v1/chat/completions", payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        return connection, response

    def prompt_count(self, text: str) -> int:
        """What the tokenizer makes of the rendered template."""
        rendered = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        line = json.dumps({"text_b64": base64.b64encode(rendered.encode()).decode(), "parse_special": True})
        result = subprocess.run([os.path.join(BIN, "warpline"), "tokenize", "-m", self.model, "--jsonl"], input=line.encode() + b"\n",
                                capture_output=True, timeout=30)
        self.assertEqual(result.returncode, 0, result.stderr)
        return len(json.loads(result.stdout)["ids"])

    def assert_nothing_in_use(self):
        for name in ("warpline_slots_used", "warpline_pages_used", "warpline_running_sequences", "warpline_stage_open_sequences"):
            self.assertTrue(wait_until(lambda: self.service.metric(name) == 0), f"{name} stays at {self.service.metric(name)}")

    def test_usage_is_right(self):
        for text in (WORDS, WORDS * 5):
            answer = self.chat(text)
            prompt = self.prompt_count(text)
            usage = answer["usage"]
            self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]), (prompt, 12, prompt + 12))
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assert_nothing_in_use()

    def test_a_stream_says_the_same(self):
        whole = self.chat()
        _, response = self.open_stream(WORDS, 12, stream_options={"include_usage": True})
        lines = response.read().decode().split("\n\n")
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        self.assertEqual(events[-1], "[DONE]")
        chunks = [json.loads(event) for event in events[:-1]]
        text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        self.assertEqual(text, whole["choices"][0]["message"]["content"])
        self.assertEqual(chunks[-1]["usage"], whole["usage"])

    def test_neighbours_change_nothing(self):
        texts = [WORDS[: 10 + 9 * i] for i in range(4)]
        alone = [self.text(text, 20) for text in texts]
        self.assertGreater(len(set(alone)), 1, "the prompts do not matter")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(list(pool.map(lambda text: self.text(text, 20), texts)), alone)

    def test_cancelling_frees_every_slot_and_leaves_nothing_in_it(self):
        expected = self.text()
        streams = [self.open_stream(WORDS[i:], 30000) for i in range(4)]
        for _, response in streams:
            self.assertIn(b"data: ", response.readline())
        self.assertEqual(self.service.metric("warpline_slots_used"), 4)
        self.assertGreaterEqual(self.service.metric("warpline_pages_used"), 4)
        for connection, response in streams:
            response.close()
            connection.close()
        self.assert_nothing_in_use()
        # All four slots have been used: whichever comes now, its old state must be gone.
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(list(pool.map(lambda _: self.text(), range(4))), [expected] * 4)


class Qwen3NextTest(Chats, unittest.TestCase):
    arch = "qwen3next"


class Qwen35Test(Chats, unittest.TestCase):
    arch = "qwen35"


class Qwen35MoeTest(Chats, unittest.TestCase):
    arch = "qwen35moe"


class Qwen4ExpTest(Chats, unittest.TestCase):
    arch = "qwen4exp"


class Gemma3Test(Chats, unittest.TestCase):
    arch = "gemma3"


if __name__ == "__main__":
    unittest.main()
