"""Long prompts of models with a context of 262,144: the same bits for short and long chunks, and attention that reaches far back."""

import json
import os
import random
import subprocess
import tempfile
import unittest

from service import BIN, DATA

TOKENS = 6000
VOCABULARY = 128
EARLY = 700  # the token that is changed


class LongContextTest(unittest.TestCase):
    def setUp(self):
        numbers = random.Random(4)
        self.tokens = [numbers.randrange(VOCABULARY) for _ in range(TOKENS)]
        self.changed = list(self.tokens)
        self.changed[EARLY] = (self.changed[EARLY] + 1) % VOCABULARY
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def logits(self, model: str, tokens: list[int], *flags) -> bytes:
        """Of the last 64 positions."""
        names = [os.path.join(self.folder, name) for name in ("tokens.json", "logits.f32")]
        with open(names[0], "w", encoding="utf-8") as file:
            json.dump({"tokens": tokens}, file)
        path = os.path.join(DATA, "long_context", model + ".gguf")
        command = ["eval", "-m", path, "--tokens", names[0], "--logits", names[1], "--logits-last", 64, "--workers", 2, "-t", 2, *flags]
        result = subprocess.run([os.path.join(BIN, "warpline"), *map(str, command)], capture_output=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr[-1000:])
        with open(names[1], "rb") as file:
            values = file.read()
        self.assertEqual(len(values), 64 * VOCABULARY * 4)
        return values

    def test_chunks_of_any_length_give_the_same_bits(self):
        # 6,000 tokens are far beyond the budget of 512, so most rows choose their blocks.
        for kv_type in ("f16", "q8_0"):
            short = self.logits("hybrid", self.tokens, "--chunk", 512, "--kv-type", kv_type)
            self.assertEqual(short, self.logits("hybrid", self.tokens, "--chunk", 8192, "--kv-type", kv_type))
            self.assertEqual(short, self.logits("hybrid", self.tokens, "--chunk", 999, "--kv-type", kv_type, "--edge", "grpc",
                                                "--decode-from", TOKENS - 40))

    def test_an_early_token_is_found_through_attention_alone(self):
        self.assertNotEqual(self.logits("attention", self.tokens), self.logits("attention", self.changed))
        # Without attention the decay of the recurrent memory has forgotten it, to the last bit.
        self.assertEqual(self.logits("recurrent", self.tokens), self.logits("recurrent", self.changed))
        self.assertNotEqual(self.logits("hybrid", self.tokens), self.logits("hybrid", self.changed))


if __name__ == "__main__":
    unittest.main()
