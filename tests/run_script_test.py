"""Wrong options of ./run are refused at once with exit code 2, before anything is installed or built."""

import pathlib
import subprocess
import unittest

RUN = pathlib.Path(__file__).resolve().parent.parent / "run"


class UsageTest(unittest.TestCase):
    def test_wrong_options(self) -> None:
        cases = [
            (["--once"], "--once needs a message"),
            (["--once", "--serve"], "--once needs a message"),
            (["--workers"], "--workers needs a number"),
            (["-m"], "-m needs a file"),
            (["-m", "/no/such/file.gguf"], "cannot read /no/such/file.gguf"),
            (["--model=/no/such/file.gguf"], "cannot read /no/such/file.gguf"),
            (["--build", "more"], "unexpected more"),
            (["--model-path", "--bogus"], "unexpected --bogus"),
        ]
        for arguments, message in cases:
            with self.subTest(arguments):
                result = subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(result.stdout, "")
                self.assertEqual(result.stderr, f"{message}\nSee ./run --help\n")

    def test_help(self) -> None:
        result = subprocess.run([RUN, "--help"], capture_output=True, text=True, timeout=20, check=True)
        self.assertTrue(result.stdout.startswith("Usage: ./run "))


if __name__ == "__main__":
    unittest.main()
