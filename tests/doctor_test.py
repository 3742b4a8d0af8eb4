"""`warpline doctor` on any machine: a sheet where there is a CUDA device, else one clear sentence and exit code 77."""

import os
import pathlib
import shutil
import subprocess
import tempfile

BIN = pathlib.Path(os.environ["WARPLINE_BIN"])
NONE = "no CUDA device can be used: "


def run(*command: str) -> tuple[int, str]:
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.stderr == "", result.stderr
    return result.returncode, result.stdout


def test_this_machine() -> None:
    code, text = run(str(BIN / "warpline"), "doctor")
    if code == 77:
        assert text.startswith(NONE) and text.count("\n") == 1, text
    else:
        assert code == 0 and "device 0 " in text and "self-check         passed" in text, text
    assert (code, text) == run(str(BIN / "warpline-worker"), "--doctor"), "the worker says the same"


def test_memory_of_a_device() -> None:
    code, text = run(str(BIN / "warpline-worker"), "--show-device-memory")
    if code == 77:
        assert text.startswith(NONE) and text.count("\n") == 1, text
    else:
        free, total = map(int, text.split())
        assert code == 0 and 0 < free < total, text


def test_without_the_library() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = shutil.copy(BIN / "warpline-worker", folder)
        code, text = run(program, "--doctor")
        assert code == 77 and text.startswith(NONE + "the CUDA back end could not be loaded: "), text
        assert "libwarpline_cuda.so" in text, text

        # A file that is no library must not end the program in another way.
        (pathlib.Path(folder) / "libwarpline_cuda.so").write_text("no library")
        code, text = run(program, "--doctor")
        assert code == 77 and text.startswith(NONE + "the CUDA back end could not be loaded: "), text


def main() -> None:
    test_this_machine()
    test_memory_of_a_device()
    test_without_the_library()


if __name__ == "__main__":
    main()
