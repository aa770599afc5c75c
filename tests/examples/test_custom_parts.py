"""The example with parts of its own: what it prints, what it reads, and that its checks notice a broken part."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from test_examples import EXAMPLES, run_example

import gristmill as grain

WORDS = [b"fir\n", b"\n", b"a longer line, which is as long as several frames are taken together\n", b"oak elm\n"] * 20


@pytest.fixture(scope="module")
def parts():
    spec = importlib.util.spec_from_file_location("custom_parts", EXAMPLES / "custom_parts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_bytes(b"".join(WORDS))
    return path


def test_it_resumes_in_the_middle(file):
    output = run_example("custom_parts.py", "--file", file)
    assert output.startswith(f"Lines('words.txt', 80 lines, {file.stat().st_size} bytes): source, sampler and stage conform\n")
    done, of, next_index = map(int, re.findall(r'after (\d+) of (\d+) .*"next_index": (\d+)', output)[0])
    assert done == of // 2 and 0 < next_index < 160
    assert output.endswith("resumed in the middle: bit-identical\n")


def test_frames_have_all_bytes_in_the_order_of_the_sampler(parts, file):
    in_order = b"".join(sorted(WORDS, key=len)) * 2
    text = b"".join(batch.astype(np.uint8).tobytes() for batch in parts.make_pipeline(file))
    assert len(text) == len(in_order) // 64 * 64
    assert text == in_order[: len(text)]


def test_a_loader_reads_in_the_same_order(parts, file):
    lines = parts.Lines(file)
    shard = grain.sharding.NoSharding()
    loader = grain.DataLoader(data_source=lines, sampler=parts.ShortFirst(lines.lengths), shard_options=shard)
    assert [line.tobytes() for line in loader] == sorted(WORDS, key=len)


def test_a_careless_iterator_is_noticed(parts, file, monkeypatch):
    def set_state(self, state):
        self._parent.set_state(state["parent"])
        self._buffer, self._delivered = [], 0

    monkeypatch.setattr(parts.FrameIterator, "set_state", set_state)
    with pytest.raises(AssertionError, match=r"broken law: .*Found: "):
        grain.testing.assert_iter_dataset_conforms(parts.make_pipeline(file))
