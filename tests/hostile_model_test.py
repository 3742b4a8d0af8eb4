"""Model files with faults that only show when they are used: weights that are no numbers, chat templates of every bad kind."""

import os
import tempfile
import time
import unittest

from gguf_edit import GgufFile
from service import DATA, Service, wait_until

WEIGHTS = os.path.join(DATA, "families", "llama-q8_0.gguf")
CHAT = os.path.join(DATA, "text_models", "qwen35.gguf")
Q8_0_BYTES = 34  # of a block of 32 values, its f16 scale first
NOT_A_NUMBER, INFINITE = b"\x00\x7e", b"\x00\x7c"


class FiniteWeightTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "model.gguf")

    def spoil(self, name: str, block: int, scale: bytes):
        file = GgufFile(WEIGHTS)
        blocks = bytearray(file.tensors[name][2])
        blocks[block * Q8_0_BYTES:block * Q8_0_BYTES + 2] = scale
        file.tensors[name][2] = bytes(blocks)
        file.write(self.path)

    def test_verify_refuses_the_file_and_names_the_block(self):
        for name, block, scale in (("blk.1.ffn_down.weight", 5, NOT_A_NUMBER), ("token_embd.weight", 239, INFINITE)):
            self.spoil(name, block, scale)
            service = Service(self.path, "--workers", 1, "--verify", wait=False)
            self.addCleanup(service.stop)
            self.assertEqual(service.process.wait(20), 3, service.tail())
            self.assertIn(f"tensor {name}: block {block} of type Q8_0", service.tail())

    def test_a_sound_file_passes(self):
        with Service(WEIGHTS, "--workers", 2, "--verify") as service:
            self.assertEqual(service.get("/ready")[0], 200)

    def test_without_verify_it_is_never_ready_and_says_why(self):
        self.spoil("blk.0.ffn_down.weight", 0, NOT_A_NUMBER)
        service = Service(self.path, "--workers", 2, wait=False)
        self.addCleanup(service.stop)
        why = "the warm-up token failed: "
        self.assertTrue(wait_until(lambda: service.get("/ready")[0] == 503 and why in service.get("/ready")[1]), service.tail())
        status, answer = service.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 1})
        self.assertEqual(status, 503)
        self.assertIn("not finite", answer["error"]["message"])
        self.assertLess(service.tail().count(why), 20)  # It tries on, but does not fill the log.
        self.assertEqual(service.stop(), 0)


class ChatTemplateTest(unittest.TestCase):
    """The service lives, chats get a 400 that names the reason, and completions are none the worse."""

    def check(self, template: str | None, code: str, *says: str, flags=()):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            file = GgufFile(CHAT)
            if template is None:
                del file.keys["tokenizer.chat_template"]
            else:
                file.set_text("tokenizer.chat_template", template)
            file.write(path)
            with Service(path, "--workers", 1, *flags) as service:
                begin = time.monotonic()
                status, answer = service.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
                self.assertLess(time.monotonic() - begin, 5)
                if code:
                    self.assertEqual((status, answer["error"]["code"]), (400, code), answer)
                    for text in says:
                        self.assertIn(text, answer["error"]["message"])
                else:
                    self.assertEqual(status, 200, answer)
                self.assertEqual(service.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})[0], 200)
                return service.tail()

    def test_missing(self):
        self.check(None, "no_chat_template", "--chat-template")
        self.check(None, "", flags=("--chat-template", "chatml"))

    def test_syntax_error(self):
        log = self.check("{% if x %}\n{{ unclosed", "no_chat_template", "line 2")
        self.assertEqual(log.count("chat template"), 1)

    def test_endless_loops_and_growth(self):
        loop = "{% for i in range(99999) %}" * 8 + "x" + "{% endfor %}" * 8
        self.check(loop, "chat_template_error", "line 1")
        self.check("{{ 'x' * 100000000 }}", "chat_template_error", "line 1")
        self.check("x" * (2 << 20), "no_chat_template", "at most 1048576")

    def test_host_objects(self):
        for template in ("{{ ''.__class__.__mro__ }}", "{{ messages.__class__.__init__.__globals__ }}"):
            self.check(template, "chat_template_error", "__class__")


if __name__ == "__main__":
    unittest.main()
