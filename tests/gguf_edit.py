"""A GGUF file taken apart into keys and tensors, to be put together again with something changed."""

import struct

ALIGNMENT = 32
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


class GgufFile:
    """Keys are kept as their encoded bytes (type and value), tensors as (name, dimensions, type, data)."""

    def __init__(self, path: str):
        with open(path, "rb") as file:
            self.bytes = file.read()
        self.at = 8
        tensor_count, key_count = self.take("<qq")
        self.keys = {}
        for _ in range(key_count):
            name = self.take_text()
            begin = self.at
            self.skip_value(self.take("<I")[0])
            self.keys[name.decode()] = self.bytes[begin:self.at]
        infos = []
        for _ in range(tensor_count):
            name, count = self.take_text().decode(), self.take("<I")[0]
            infos.append((name, self.take(f"<{count}q"), *self.take("<iQ")))
        start = (self.at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        ends = [info[3] for info in infos[1:]] + [len(self.bytes) - start]
        self.tensors = {name: [dims, kind, self.bytes[start + offset:start + end]]
                        for (name, dims, kind, offset), end in zip(infos, ends)}

    def take(self, form: str):
        values = struct.unpack_from(form, self.bytes, self.at)
        self.at += struct.calcsize(form)
        return values

    def take_text(self) -> bytes:
        size = self.take("<Q")[0]
        self.at += size
        return self.bytes[self.at - size:self.at]

    def skip_value(self, kind: int):
        if kind == STRING:
            self.take_text()
        elif kind == ARRAY:
            element, count = self.take("<IQ")
            for _ in range(count if element == STRING else 0):
                self.take_text()
            self.at += 0 if element == STRING else SIZES[element] * count
        else:
            self.at += SIZES[kind]

    def set_text(self, key: str, value: str):
        self.keys[key] = struct.pack("<I", STRING) + text(value.encode())

    def write(self, path):
        head = b"GGUF" + struct.pack("<Iqq", 3, len(self.tensors), len(self.keys))
        for key, value in self.keys.items():
            head += text(key.encode()) + value
        data = b""
        for name, (dims, kind, values) in self.tensors.items():
            head += text(name.encode()) + struct.pack(f"<I{len(dims)}qiQ", len(dims), *dims, kind, len(data))
            data += values + b"\0" * (-len(values) % ALIGNMENT)
        head += b"\0" * (-len(head) % ALIGNMENT)
        with open(path, "wb") as file:
            file.write(head + data)
