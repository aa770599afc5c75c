import numpy as np
from refusing import assert_raises

from gristmill.transforms.concat_split import Concatenation, Target, is_full_length


def row(concatenation):
    return {name: array.tolist() for name, array in concatenation.output().items()}


def test_meta_features_first_tokens_dtypes_and_full_length():
    targets = [Target("a", 3), Target("m", 4, is_meta=True)]
    joined = Concatenation(targets)
    assert joined.add([np.arange(5), np.array([7, 8])], [3, 0]) is joined.limiting is None
    assert joined.add([np.arange(1), np.array([1, 2, 3])], [0, 0]) == [0, 0] and joined.limiting is targets[1]
    assert row(joined)["m"] == [7, 8, 0, 0]
    assert_raises(ValueError, "meta feature 'm' is 5 long", joined.add, [np.arange(1), np.arange(5)], [0, 0])
    joined = Concatenation([Target("a", 4, bos_id=99), Target("b", 4)])
    for a, b in [([1, 2], [5]), ([], [6, 7]), ([3, 4], [])]:
        assert joined.add([np.array(a, np.int64), np.array(b, np.int64)], [0, 0]) is None
    assert row(joined)["a"] == [99, 2, 99, 4]  # the one without tokens would have written behind the end
    assert row(joined)["b"] == [5, 6, 7, 0]
    wrong = [Target("a", 4, bos_id=300)]
    assert_raises(ValueError, r"feature 'a'.*int8.*bos_token_id", Concatenation, wrong, [np.zeros(2, np.int8)])
    assert Concatenation([Target("a", 2, bos_id=5)], [np.zeros((1, 2))]).output()["a"].tolist() == [[5, 5], [0, 0]]
    joined = Concatenation([Target("a", 9)], [np.zeros(2, np.int8)])
    assert joined.add([np.array([100])], [0]) is None
    for bad, match in [([300], "dtype int64 that int8"), ([[1]], r"trailing shape \(1,\)")]:
        assert_raises(ValueError, f"feature 'a'.*{match}", joined.add, [np.array(bad)], [0])
    output = joined.output()
    assert [output[name].dtype for name in ("a", "a_segment_ids", "a_positions")] == [np.int8, np.int32, np.int32]
    assert output["a"].tolist() == [0, 0, 100, 0, 0, 0, 0, 0, 0]
    targets = [Target("a", 3), Target("b", 2, is_meta=True)]
    for a, b, expected in [(3, 1, True), (1, 2, True), (2, 1, False), (3, 3, False), (4, 2, False), (0, 2, True)]:
        assert is_full_length(targets, [np.arange(a), np.arange(b)]) is expected
