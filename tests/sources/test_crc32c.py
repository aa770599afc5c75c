import numpy as np

from gristmill.sources import crc32c as module
from gristmill.sources.crc32c import crc32c, masked_crc32c


def slow_crc32c(data):
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_published_values_all_lengths_and_strings_longer_than_a_fold(monkeypatch):
    """RFC 3720, appendix B.4, and catalogues; masked by TensorFlow's rule: rotated by 15 bits, plus a constant."""
    strings = [bytes(32), b"\xff" * 32, bytes(range(32)), bytes(range(31, -1, -1)), b"123456789"]
    published = [0x8A9136AA, 0x62A8AB43, 0x46DD794E, 0x113FDB5C, 0xE3069283]
    assert crc32c(strings).tolist() == published
    assert masked_crc32c(strings).tolist() == [((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32 for crc in published]
    rng = np.random.default_rng(1)
    strings = [rng.bytes(n) for n in [*range(70), 127, 128, 129, 1000, 1023, 1024, 1025]]
    strings += [bytes(n) for n in range(20)]  # leading zeros count
    expected = [slow_crc32c(data) for data in strings]
    assert crc32c(strings).tolist() == [int(crc32c([data])[0]) for data in strings] == expected
    assert crc32c(strings).dtype == np.uint32 and crc32c([]).tolist() == []
    strings = [rng.bytes(size) for size in (4 * 1024 - 4, 4 * 1024, 70_001)]
    whole = crc32c(strings).tolist()
    assert whole[:2] == [*map(slow_crc32c, strings[:2])]
    monkeypatch.setattr(module, "_MAX_FOLD", 16)
    assert [int(crc32c([data])[0]) for data in strings] == whole
