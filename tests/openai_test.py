"""The official OpenAI client against a real service with the default model."""

import unittest

import openai

from service import Service, default_model, wait_until


class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(default_model(), "--workers", 2, "--api-key", "sesame", "--alias", "small")
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.service.port}/v1", api_key="sesame", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        code = cls.service.stop()
        assert code == 0, f"serve ended with {code}: {cls.service.tail()}"
        assert not cls.service.processes(), "processes left behind"

    def chat(self, **arguments):
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        return self.client.chat.completions.create(model="small", messages=messages, temperature=0, max_tokens=24, **arguments)

    def test_lists_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["small"])

    def test_chats(self):
        answer = self.chat()
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertGreater(answer.usage.prompt_tokens, 5)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_streams_the_same_text_with_usage(self):
        whole = self.chat()
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-1].choices, [])

    def test_completes_a_batch_of_prompts(self):
        answer = self.client.completions.create(model="small", prompt=["One, two, three,", "A, B, C,"], max_tokens=4, temperature=0)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertIn("four", answer.choices[0].text)
        self.assertIn("D", answer.choices[1].text)

    def test_stops_at_a_string(self):
        answer = self.client.completions.create(model="small", prompt="One, two, three,", max_tokens=30, temperature=0, stop=["six"])
        self.assertNotIn("six", answer.choices[0].text)
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_bad_request_is_a_proper_exception(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="small", messages=[{"role": "user", "content": "x"}], temperature=-1)
        self.assertEqual(caught.exception.status_code, 400)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="small", prompt="x " * 20000, max_tokens=1)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_wrong_key_is_refused(self):
        stranger = openai.OpenAI(base_url=self.client.base_url, api_key="wrong", max_retries=0)
        with self.assertRaises(openai.AuthenticationError):
            stranger.models.list()

    def test_closing_a_stream_frees_everything(self):
        stream = self.client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "Tell a very long story."}], stream=True, max_tokens=2000,
            extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertTrue(wait_until(lambda: self.service.metric("warpline_slots_used") == 0), "slots stay in use after the client left")


if __name__ == "__main__":
    unittest.main()
